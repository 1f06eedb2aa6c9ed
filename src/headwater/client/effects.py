"""Effects: what a flow asks its shell to do.

A flow is a generator with the client's logic. It yields effects. The shell, blocking or asyncio, performs each effect
and sends the result back into the flow, or throws a NetworkError into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from headwater import limits
from headwater.errors import HeadwaterError
from headwater.positions import Position

T = TypeVar("T")


class HttpRequest(msgspec.Struct, frozen=True):
    """A request. A `guarded` request goes to a URL that may come from others, so redirects are not followed."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: bytes = b""
    read_timeout_s: float = limits.ANSWER_TIMEOUT_S
    guarded: bool = False


class HttpReply(msgspec.Struct, frozen=True):
    """A response with header names in lower case. The body is empty until it is received."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Send(msgspec.Struct, frozen=True):
    """Send a request and get the whole HttpReply."""

    request: HttpRequest


class Open(msgspec.Struct, frozen=True):
    """Send a request and get the HttpReply without its body; at most one is open at a time."""

    request: HttpRequest


class Receive(msgspec.Struct, frozen=True):
    """Get the next bytes of the open reply's body, none at its end."""


class CloseReply(msgspec.Struct, frozen=True):
    """Close the open reply, if there is one."""


class Sleep(msgspec.Struct, frozen=True):
    seconds: float


class Report(msgspec.Struct, frozen=True):
    """Call the `on_error` hook with an error that will be retried. If the hook raises, the flow ends."""

    error: HeadwaterError
    attempt: int
    delay_s: float


class Call(msgspec.Struct, frozen=True):
    """Call a hook of the user and get its result. In the asyncio client it may be a coroutine function."""

    hook: Callable[[], Any]


class Batch(msgspec.Struct, Generic[T], frozen=True):
    """Messages that arrived together, and the position after them.

    `skip` is more than 0 only if the batch is a part of a response that is too large for memory. A batch without
    messages means that the reader is up to date, or begins again. `restarted`: the data at the reader's position is
    gone, and what follows begins with the first data that is there. `begin` is the offset at which a read from the
    beginning began, in its first batch, if the server tells it.
    """

    items: list[T]
    position: Position
    up_to_date: bool = False
    closed: bool = False
    restarted: bool = False
    begin: str = ""

    @property
    def offset(self) -> str:
        """The offset of the position."""
        return self.position.offset

    @property
    def skip(self) -> int:
        """The number of messages after that offset that were delivered as well."""
        return self.position.skip


class Emit(msgspec.Struct, frozen=True):
    """Deliver a batch to the reader."""

    batch: Batch[Any]


Effect: TypeAlias = Send | Open | Receive | CloseReply | Sleep | Report | Call | Emit
Flow: TypeAlias = Generator[Effect, Any, T]


class RunningFlow(Generic[T]):
    """A running flow. `go` takes the result of one effect and returns the next one, or None at the end."""

    result: T

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow

    def go(self, outcome: Any = None) -> Effect | None:
        try:
            return self._flow.throw(outcome) if isinstance(outcome, HeadwaterError) else self._flow.send(outcome)
        except StopIteration as end:
            self.result = end.value
            return None
