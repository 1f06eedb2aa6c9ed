# Made by `python -m tools.twins` from aio/reader.py: change that one.
"""A read of one stream, blocking."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headwater.client.cursor import Cursor
from headwater.client.effects import (
    Batch,
    RunningFlow,
)
from headwater.client.forking import Unpicklable
from headwater.client.reading import Reading
from headwater.client.sync.transport import Transport
from headwater.positions import Position

if TYPE_CHECKING:
    from headwater.client.sync.client import Client

T = TypeVar("T")


class Reader(Unpicklable, Generic[T]):
    """A read of one stream. Iterate over it for messages, or over `batches()`; both continue from the same position.

    Everything before `position` was delivered. Save it to continue there later.

    ```python
    with Client("http://127.0.0.1:4437") as client:
        log = client.stream("log")
        log.create(messages=[{"line": 1}, {"line": 2}])
        reader = log.read()
        for message in reader:
            print(message)
        kept = str(reader.position)
        later = log.read(offset=Position.parse(kept))
        assert later.all() == []
    ```
    """

    def __init__(self, client: Client, reading_from: Callable[[Position], Reading], position: Position) -> None:
        self._client = client
        self._reading_from = reading_from
        self._cursor = Cursor[T](position)
        self._transport = Transport(client._pools, client._session)
        self._arrived: Generator[Batch[Any], None, None] | None = None
        self._ended = False
        self._begin()

    @property
    def position(self) -> Position:
        """The position to continue from: everything before it was delivered."""
        return self._cursor.position

    @property
    def offset(self) -> str:
        """The offset of the position."""
        return self.position.offset

    @property
    def skip(self) -> int:
        """The number of messages after that offset that were delivered; bytes for streams that are not JSON."""
        return self.position.skip

    @property
    def up_to_date(self) -> bool:
        """Whether everything up to the tail, as of the last response, was delivered."""
        return self._cursor.up_to_date

    @property
    def closed(self) -> bool:
        """Whether the stream is closed and all of it was delivered."""
        return self._cursor.closed

    def __iter__(self) -> Iterator[T]:
        cursor = self._cursor
        while True:
            yield from cursor.items()
            if cursor.has_items:
                continue  # another iterator over the same reader has advanced it
            batch = self._next()
            if batch is None:
                return
            cursor.hold(batch)

    def batches(self) -> Iterator[Batch[T]]:
        """Iterate over batches of messages that arrived together, each with the offset after it."""
        cursor = self._cursor
        while True:
            if (remainder := cursor.remainder()) is not None:
                yield remainder
            batch = self._next()
            if batch is None:
                return
            yield cursor.batch(batch)

    def all(self) -> list[T]:
        """Return all messages up to the end of the read as a list."""
        return [item for batch in self.batches() for item in batch.items]

    def close(self) -> None:
        """Stop reading and close the connection, even while another thread waits for the next message.

        It also ends the wait for the response to a long-poll.
        """
        self._ended = True
        self._transport.interrupt()
        if self._arrived is not None:
            with contextlib.suppress(ValueError):  # it is running and will see the interruption
                self._arrived.close()

    def _begin(self) -> None:
        reading = self._reading_from(self._cursor.position)
        self._arrived = self._client._drive(RunningFlow(reading.flow()), self._transport)

    def _next(self) -> Batch[T] | None:
        """Return the next batch. After an error, continue from the reader's position."""
        if self._ended:
            return None
        if self._arrived is None:
            self._begin()
        try:
            batch = next(self._arrived, None) if self._arrived is not None else None
        except BaseException:
            self._arrived = None
            raise
        self._ended = self._ended or batch is None
        return batch

    def __enter__(self) -> Reader[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
