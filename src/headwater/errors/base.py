"""The base class of all errors, and which statuses can be retried."""

from __future__ import annotations

from typing import ClassVar


def is_retryable(status: int) -> bool:
    """Whether the same request may succeed later, given the status of the response."""
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))


class HeadwaterError(Exception):
    """Base class of all errors that Headwater reports.

    `retryable` follows from `status`, unless a class or an instance sets it. The client also sets `url`, `attempts`,
    and `nothing_done`, which is True if the request certainly had no effect.

    ```python
    with Client("http://127.0.0.1:4437") as client:
        try:
            client.stream("nowhere").read().all()
        except StreamNotFoundError as error:
            print(error.status, error.retryable, error.advice)
    ```
    """

    status: int = 500
    title: ClassVar[str] = "Internal error"
    retryable: bool = is_retryable(status)
    outcome_unknown: ClassVar[bool] = False  # whether the request may have had an effect although it failed
    advice: ClassVar[str] = "Look at the server's log."
    protocol_code: ClassVar[str] = ""  # the code in responses about subscriptions, where PROTOCOL.md defines one

    def __init_subclass__(cls) -> None:
        if "status" in vars(cls) and "retryable" not in vars(cls):
            cls.retryable = is_retryable(cls.status)
        cls.__doc__ = cls.__doc__ or f"{cls.title}. {cls.advice}"

    def __init__(self, detail: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(detail or self.title)
        self.detail = detail
        self.url = ""
        self.stream = ""  # the stream that failed, if the request named several
        self.attempts = 1
        self.nothing_done = False
        self.retry_after_s = retry_after_s
        self.add_note(self.advice)  # tracebacks show it

    def __str__(self) -> str:
        if not self.url:
            return self.detail or self.title
        url = self.url.partition("?")[0]  # a query is the client's own, and may hold a signature
        return f"{self.title}: {self.detail} ({url})" if self.detail else f"{self.title} ({url})"

    @property
    def code(self) -> str:
        """A stable name that programs can match on: the class name in kebab-case, without `Error`."""
        name = type(self).__name__.removesuffix("Error")
        return "".join("-" + c.lower() if c.isupper() else c for c in name).lstrip("-")
