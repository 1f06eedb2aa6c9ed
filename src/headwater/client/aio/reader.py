"""A read of one stream, asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headwater.client.aio.transport import AsyncTransport
from headwater.client.cursor import Cursor
from headwater.client.effects import (
    Batch,
    RunningFlow,
)
from headwater.client.forking import Unpicklable
from headwater.client.reading import Reading
from headwater.positions import Position

if TYPE_CHECKING:
    from headwater.client.aio.client import AsyncClient

T = TypeVar("T")


class AsyncReader(Unpicklable, Generic[T]):
    """A read of one stream. Iterate over it for messages, or over `batches()`; both continue from the same position.

    Everything before `position` was delivered. Save it to continue there later.

    ```python
    async with AsyncClient("http://127.0.0.1:4437") as client:
        log = client.stream("log")
        await log.create(messages=[{"line": 1}, {"line": 2}])
        reader = log.read()
        async for message in reader:
            print(message)
        kept = str(reader.position)
        later = log.read(offset=Position.parse(kept))
        assert await later.all() == []
    ```
    """

    def __init__(self, client: AsyncClient, reading_from: Callable[[Position], Reading], position: Position) -> None:
        self._client = client
        self._reading_from = reading_from
        self._cursor = Cursor[T](position)
        self._transport = AsyncTransport(client._pools, client._session)
        self._arrived: AsyncGenerator[Batch[Any], None] | None = None
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

    async def __aiter__(self) -> AsyncIterator[T]:
        cursor = self._cursor
        while True:
            for item in cursor.items():
                yield item
            if cursor.has_items:
                continue  # another iterator over the same reader has advanced it
            batch = await self._next()
            if batch is None:
                return
            cursor.hold(batch)

    async def batches(self) -> AsyncIterator[Batch[T]]:
        """Iterate over batches of messages that arrived together, each with the offset after it."""
        cursor = self._cursor
        while True:
            if (remainder := cursor.remainder()) is not None:
                yield remainder
            batch = await self._next()
            if batch is None:
                return
            yield cursor.batch(batch)

    async def all(self) -> list[T]:
        """Return all messages up to the end of the read as a list."""
        return [item async for batch in self.batches() for item in batch.items]

    async def close(self) -> None:
        """Stop reading and close the connection, even while another task waits for the next message.

        It also ends the wait for the response to a long-poll.
        """
        self._ended = True
        await self._transport.interrupt()
        if self._arrived is not None:
            with contextlib.suppress(RuntimeError):  # it is running and will see the interruption
                await self._arrived.aclose()

    def _begin(self) -> None:
        reading = self._reading_from(self._cursor.position)
        self._arrived = self._client._drive(RunningFlow(reading.flow()), self._transport)

    async def _next(self) -> Batch[T] | None:
        """Return the next batch. After an error, continue from the reader's position."""
        if self._ended:
            return None
        if self._arrived is None:
            self._begin()
        try:
            batch = await anext(self._arrived, None) if self._arrived is not None else None
        except BaseException:
            self._arrived = None
            raise
        self._ended = self._ended or batch is None
        return batch

    async def __aenter__(self) -> AsyncReader[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
