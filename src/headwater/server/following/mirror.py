"""The local table of a followed SURL. Rows keep their SeqNos, so its last SeqNo is the follower's position.

Rows are appended while further rows are received. Rows that arrive during an append form the next one, so appends grow
with the load. At most about two batches are in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from headwater.engine import Engine
from headwater.engine.messages import FindRow, ReadMore, VisibleStream
from headwater.errors import ConfigurationError, StreamNotFoundError
from headwater.limits import FOLLOW_BATCH_BYTES
from headwater.log.commands import Append, Create, Reply
from headwater.log.content import ContentKind
from headwater.protocol.tables.content_type import TableType, format_table_type, parse_table_type
from headwater.protocol.tables.paths import log_path
from headwater.protocol.tables.repairing import live_keys
from headwater.protocol.tables.rows import Row, format_row, parse_row


class Mirror:
    """Made by `open_mirror`. `table` is None as long as the local table does not exist."""

    def __init__(self, engine: Engine, name: str, stream: VisibleStream | None, last_row: Row | None) -> None:
        self.name = name
        self.table = None if stream is None else parse_table_type(stream.content_type)
        self.closed = stream is not None and stream.closed
        self.last_row = last_row
        self.last_seqno = 0 if stream is None else stream.last_seqno
        self._engine = engine
        self._path = log_path(name)
        self.id = 0 if stream is None else stream.id
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._appending: asyncio.Task[None] | None = None
        self._failure: Exception | None = None  # rows after a failure are not appended
        self._tell_failure: Callable[[], None] | None = None

    async def create(self, table: TableType) -> None:
        reply = await self._engine.execute(
            Create(
                path=self._path,
                now_ms=self._engine.now_ms(),
                content_type=format_table_type(table),
                kind=ContentKind.MIRROR,
            )
        )
        if reply.tail is None:
            raise RuntimeError("a created table has a tail")
        self.id, self.table = reply.tail.id, table

    async def add(self, rows: list[Row]) -> None:
        """Queue rows for an append. A failure is passed to `on_failure`, and raised by every later call."""
        if self._appending is not None and self._appending.done():
            await self.flush()
        lines = [format_row(row) for row in rows]
        self._pending += lines
        self._pending_bytes += sum(map(len, lines))
        if self._appending is None:
            self._appending = asyncio.create_task(self._append_pending())
        if self._pending_bytes >= FOLLOW_BATCH_BYTES:
            await self.flush()

    async def live_keys(self) -> tuple[Row, set[str]]:
        """The last row, and the keys that are not deleted. It reads the whole table."""
        await self.flush()
        keys: set[str] = set()
        last: Row | None = None
        reply = await self._engine.find_row(FindRow(self._path, 0))
        position, tail = reply.start.record, reply.table.tail
        while position < tail:
            read = await self._engine.read_more(ReadMore(self.id, position, tail, FOLLOW_BATCH_BYTES))
            rows = [parse_row(line.decode()) for line in read.data[:-1].split(b"\n")]
            live_keys(keys, rows)
            last = rows[-1]
            position = read.next
        if last is None:
            raise RuntimeError("a mirror with a last SeqNo has a last row")
        return last, keys

    @contextlib.contextmanager
    def on_failure(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` if an append fails within the block."""
        self._tell_failure = tell
        try:
            yield
        finally:
            self._tell_failure = None

    async def flush(self) -> None:
        """Wait until all rows are durable."""
        if self._appending is not None:
            await asyncio.wait((self._appending,))
            self._appending = None
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        await self.flush()
        await self._append(b"", close=True)
        self.closed = True

    async def abandon(self) -> None:
        """Stop appending. Rows that are not stored are requested again later."""
        if self._appending is not None:
            self._appending.cancel()
            await asyncio.gather(self._appending, return_exceptions=True)

    async def _append_pending(self) -> None:
        try:
            await self._append_batches()
        except Exception as error:  # noqa: BLE001 - raised by the next call
            self._failure = error
            if self._tell_failure is not None:
                self._tell_failure()

    async def _append_batches(self) -> None:
        while self._pending:
            batch = b"".join(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            self.last_seqno = (await self._append(batch)).last_seqno

    async def _append(self, rows: bytes, *, close: bool = False) -> Reply:
        """Append to the table that was opened, not to another one that was created with its name."""
        if self.table is None:
            raise RuntimeError("a mirror is created before rows are appended to it")
        return await self._engine.execute(
            Append(
                self._path,
                self._engine.now_ms(),
                rows,
                format_table_type(self.table),
                close=close,
                stream_id=self.id,
            )
        )


async def open_mirror(engine: Engine, name: str) -> Mirror:
    """The mirror of this name, with its last row. A table of this name that is not a mirror is an error."""
    try:
        row = await engine.find_row(FindRow(log_path(name), -1))
    except StreamNotFoundError:
        return Mirror(engine, name, None, None)
    table, start = row.table, row.start
    if table.kind is not ContentKind.MIRROR:
        raise ConfigurationError(f"table {name!r} exists and is not a mirror; follow into another one, or delete it")
    if start.position == table.tail:
        return Mirror(engine, name, table, None)
    read = await engine.read_more(ReadMore(table.id, start.record, table.tail, table.tail - start.record))
    last = read.data[start.skip :].partition(b"\n")[0]
    return Mirror(engine, name, table, parse_row(last.decode()))
