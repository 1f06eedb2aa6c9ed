"""A read of one table, asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headwater.client.aio.transport import AsyncTransport
from headwater.client.effects import Batch, RunningFlow
from headwater.client.forking import Unpicklable
from headwater.client.table_reading import TableReading
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.rows import Row

if TYPE_CHECKING:
    from headwater.client.aio.client import AsyncClient


class AsyncTableReader(Unpicklable):
    """A read of one table. Iterate over it for rows, or over `batches()`; both continue from the same row.

    `seqno` is the SeqNo of the last delivered row: pass it as `since_id` to continue later. The rows before an error
    were delivered, and iterating again continues after them. Errors that later rows would hide are final and raised
    again: HistoryChangedError (but not RowsGoneError), RowOrderError, SchemaChangedError, and a row that cannot be
    unescaped.

    A read with `on_gone` may begin again. Then `restarted` is true for one empty batch: discard what was read before.

    ```python
    async with AsyncClient("http://127.0.0.1:4437") as client:
        stock = client.table("stock")
        await stock.create()
        await stock.append([Put("tea", "12"), Put("oil", "3")])
        async with stock.follow(since_id=1) as reader:
            async for rows in reader.batches():
                print(reader.seqno, [row.key for row in rows])
                if reader.seqno == reader.last_seqno:
                    break
    ```
    """

    def __init__(self, client: AsyncClient, reading: TableReading) -> None:
        self._client = client
        self._reading = reading
        self._following = reading.following
        self._transport = AsyncTransport(client._pools, client._session)
        self._arrived: AsyncGenerator[Batch[Any], None] | None = None
        self._ended = False
        self._rest: Iterator[Row] = iter(())
        self.seqno = reading.following.position
        self.restarted = False

    @property
    def table_type(self) -> TableType | None:
        """The table's type, once the server has responded."""
        return self._following.table

    @property
    def last_seqno(self) -> int | None:
        """The SeqNo of the table's last row, from the last response; None if unknown."""
        return self._following.last_seqno

    @property
    def closed(self) -> bool:
        """Whether the table is closed and every row was delivered."""
        return self._following.closed and self._following.ended

    @property
    def gapless(self) -> bool:
        """Whether SeqNos have no gaps, according to the last response."""
        return self._following.gapless

    async def __aiter__(self) -> AsyncIterator[Row]:
        while True:
            for row in self._rest:
                self.seqno = row.seqno
                yield row
            batch = await self._next()
            if batch is None:
                return
            self._rest = iter(batch.items)

    async def batches(self) -> AsyncIterator[list[Row]]:
        """Iterate over lists of rows that arrived together. An empty list means that the reader is up to date, or has
        `restarted`."""
        if rest := list(self._rest):
            self.seqno = rest[-1].seqno
            yield rest
        while (batch := await self._next()) is not None:
            if batch.items or batch.restarted:
                self.seqno = batch.items[-1].seqno if batch.items else 0
            yield batch.items

    async def all(self) -> list[Row]:
        """Return all remaining rows as a list."""
        return [row async for rows in self.batches() for row in rows]

    async def close(self) -> None:
        """Stop reading and close the connection, even while another task waits for the next row.

        The iteration then ends. Closing it again has no effect.
        """
        self._ended = True
        await self._transport.interrupt()
        if self._arrived is not None:
            with contextlib.suppress(RuntimeError):  # it is running and will see the interruption
                await self._arrived.aclose()
        self._rest = iter(())

    async def _next(self) -> Batch[Row] | None:
        """Return the next batch. After an error, continue after the last row."""
        if self._ended:
            return None
        if self._arrived is None:
            self._arrived = self._client._drive(RunningFlow(self._reading.flow()), self._transport)
        try:
            batch = await anext(self._arrived, None)
        except BaseException:
            self._arrived = None
            raise
        self._ended = self._ended or batch is None
        self.restarted = batch is not None and batch.restarted
        return batch

    async def __aenter__(self) -> AsyncTableReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
