"""What a flow asks of the world.

A flow is a generator that holds the client's logic. It yields one of these, and the shell that drives it, synchronous
or not, sends back what came of it, or throws a NetworkError into it.
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
    """A request. One that is `guarded` goes to an address that others may have named: redirects are not followed, and
    nothing else is asked of another server.
    """

    method: str
    url: str
    headers: dict[str, str] = {}
    body: bytes = b""
    read_timeout_s: float = limits.ANSWER_TIMEOUT_S
    guarded: bool = False


class HttpReply(msgspec.Struct, frozen=True):
    """An answer; the names of its headers are in lower case. The body is empty where it is yet to be received."""

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
    """Tell the `on_error` hook of an error that will be retried; what the hook raises ends the flow."""

    error: HeadwaterError
    attempt: int
    delay_s: float


class Call(msgspec.Struct, frozen=True):
    """Call a hook of the user's, which may be a coroutine function for the asyncio client, and get what it returns."""

    hook: Callable[[], Any]


class Batch(msgspec.Struct, Generic[T], frozen=True):
    """Messages that arrived together, and where to read on after them.

    `skip` is more than 0 only when a server answers with more than fits in memory at once. A batch without messages
    says that the reader is up to date.
    """

    items: list[T]
    position: Position
    up_to_date: bool = False
    closed: bool = False

    @property
    def offset(self) -> str:
        """The offset of the position."""
        return self.position.offset

    @property
    def skip(self) -> int:
        """The number of messages after that offset that were delivered too."""
        return self.position.skip


class Emit(msgspec.Struct, frozen=True):
    """Hand a batch to the reader."""

    batch: Batch[Any]


Effect: TypeAlias = Send | Open | Receive | CloseReply | Sleep | Report | Call | Emit
Flow: TypeAlias = Generator[Effect, Any, T]


class Progress(Generic[T]):
    """A flow on its way: `go` takes what came of one effect and gives the next, None at the end."""

    result: T

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow

    def go(self, outcome: Any = None) -> Effect | None:
        try:
            return self._flow.throw(outcome) if isinstance(outcome, HeadwaterError) else self._flow.send(outcome)
        except StopIteration as end:
            self.result = end.value
            return None
