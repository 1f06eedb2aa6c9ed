"""Many streams over one connection, asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headwater.client.aio.transport import AsyncTransport
from headwater.client.effects import Batch, RunningFlow
from headwater.client.following import StreamBatch, StreamFollowing
from headwater.client.forking import Unpicklable
from headwater.positions import BEGINNING, Position

if TYPE_CHECKING:
    from headwater.client.aio.client import AsyncClient

T = TypeVar("T")


class AsyncFollow(Unpicklable, Generic[T]):
    """Many streams over one connection. Iterate over it for batches, each of which names its stream.

    Every message of a stream arrives once and in order, across lost connections; there is no order between streams.
    Streams can be added and dropped at any time, also from another thread or task. The iteration ends when no stream
    is left.

    An error that concerns one stream names it as `error.stream`. Iterating again continues with all streams; drop that
    one to continue without it.

    ```python
    async with AsyncClient("http://127.0.0.1:4437") as client:
        for room in ("rooms/1", "rooms/2"):
            await client.stream(room).create(messages=[{"text": "hello"}])
        async with client.follow({"rooms/1": "-1"}) as follow:
            async for batch in follow:
                print(batch.stream, batch.items, batch.offset, batch.up_to_date)
                if batch.stream == "rooms/2":
                    break
                if batch.up_to_date:
                    await follow.add("rooms/2")
                    await follow.drop("rooms/1")
    ```
    """

    def __init__(self, client: AsyncClient, following: StreamFollowing) -> None:
        self._client = client
        self._following = following
        self._transport = AsyncTransport(client._pools, client._session)
        self._arrived: AsyncGenerator[Batch[Any], None] | None = None
        self._ended = False

    @property
    def positions(self) -> dict[str, Position]:
        """The position of each stream that is followed: everything before it was delivered. Save them to continue."""
        return self._following.positions

    async def add(self, path: str, offset: str | Position = BEGINNING) -> None:
        """Follow another stream as well. The next request has the new list; the positions of the others are kept."""
        self._following.add(path, offset)
        await self._reconnect()

    async def drop(self, path: str) -> None:
        """Follow a stream no more. Nothing of it is delivered afterwards."""
        self._following.drop(path)
        await self._reconnect()

    async def _reconnect(self) -> None:
        if self._following.has_arrived:
            await self._transport.hang_up()

    async def __aiter__(self) -> AsyncIterator[StreamBatch[T]]:
        while (batch := await self._next()) is not None:
            yield batch

    async def close(self) -> None:
        """Stop reading and close the connection, even while another task waits for the next batch."""
        self._ended = True
        await self._transport.interrupt()
        if self._arrived is not None:
            with contextlib.suppress(RuntimeError):  # it is running and will see the interruption
                await self._arrived.aclose()

    async def _next(self) -> StreamBatch[T] | None:
        """Return the next batch. After an error, or when streams were added after the last one ended, it continues."""
        if self._ended:
            return None
        if self._arrived is None:
            self._arrived = self._client._drive(RunningFlow(self._following.flow()), self._transport)
        try:
            batch = await anext(self._arrived, None)
        except BaseException:
            self._arrived = None
            raise
        if batch is None:
            self._arrived = None
        return batch if isinstance(batch, StreamBatch) else None

    async def __aenter__(self) -> AsyncFollow[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
