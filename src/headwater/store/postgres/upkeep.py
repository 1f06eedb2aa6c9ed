"""Background work: packing small rows into chunks, removing bytes that nobody reads, and tidying up.

Every server packs the streams that it has appended to. A lock for each stream keeps two servers, and packing and
removal, apart; a server that does not get it goes on to something else. Appends need no lock: packing touches only rows
that it has read, and an append adds a row behind them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import psycopg

from headwater import limits
from headwater.errors import DamagedDataError, UnavailableError
from headwater.log.moments import Moment
from headwater.store.postgres.arrays import bigints, byteas
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import Connection, PostgresDatabase, discard, log
from headwater.store.postgres.execution import prepare
from headwater.store.postgres.packing import PACK_STATEMENTS, STREAM_LOCKS, pack_streams
from headwater.store.postgres.presence import keep_copies_away
from headwater.store.postgres.rows import COLUMNS, ByteRow, StoredRun, cut, decode_run

_EVERYTHING = 2**63 - 1
_ROW = 1 << 40  # rows and bytes of a stream are counted in one number
_SIZE = _ROW - 1

_LOCK = "SELECT pg_try_advisory_xact_lock(%s, hashint8(%s))"
_INSERT = f"INSERT INTO headwater.chunks ({COLUMNS}) SELECT * FROM unnest(%s, %s, %s, %s, %s, %s)"  # noqa: S608
_UNPACKED = """
    SELECT stream_id FROM headwater.fresh GROUP BY stream_id HAVING count(*) >= %s OR sum(size) >= %s LIMIT 1000
"""
_DELETE = """
    DELETE FROM headwater.{table} WHERE stream_id = %(id)s AND start IN (
        SELECT start FROM headwater.{table} WHERE stream_id = %(id)s AND start >= %(low)s AND start + size <= %(high)s
        ORDER BY start LIMIT %(rows)s
    )
"""
_PRODUCERS_OF = """
    DELETE FROM headwater.{table} WHERE stream_id = %(id)s AND {column} IN (
        SELECT {column} FROM headwater.{table} WHERE stream_id = %(id)s LIMIT %(rows)s
    )
"""
_STRADDLING = f"""
    SELECT {COLUMNS} FROM headwater.chunks WHERE stream_id = %(id)s AND start < %(high)s AND start >= %(low)s
        AND start + size > %(high)s
"""  # noqa: S608
_EXPIRE = """
    WITH gone AS (
        DELETE FROM headwater.producers WHERE (stream_id, producer) IN (
            SELECT stream_id, producer FROM headwater.producers WHERE at_ms < %s LIMIT %s
        ) AND at_ms < %s RETURNING stream_id, hash, epoch
    )
    INSERT INTO headwater.expired_producers SELECT stream_id, hash, max(epoch) FROM gone GROUP BY stream_id, hash
    ON CONFLICT (stream_id, hash) DO UPDATE SET epoch = greatest(headwater.expired_producers.epoch, excluded.epoch)
"""
_FORGET_MOVES = """
    WITH gone AS (DELETE FROM headwater.moves WHERE at < now() - make_interval(secs => %s) RETURNING xid)
    UPDATE headwater.meta SET horizon = greatest(horizon, (SELECT xid FROM gone ORDER BY xid DESC LIMIT 1))
    WHERE EXISTS (SELECT FROM gone)
"""


class PostgresUpkeep:
    """The background work of one server, on a connection of its own."""

    def __init__(
        self,
        database: PostgresDatabase,
        server: int,
        moment: Callable[[], Moment],
        clock: DatabaseClock,
        connection: Connection | None = None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._server = server
        self._moment = moment
        self._connection = connection
        self._unpacked: dict[int, int] = {}  # stream → _ROW for each row that this server has added, and its bytes
        self._packing: dict[int, None] = {}  # streams, in the order in which they are packed
        self._at_once = limits.POSTGRES_PACK_STREAMS  # streams in one transaction
        self._prepared_on: Connection | None = None
        self._stepping = asyncio.Lock()
        self._swept_s = self._tidied_s = float("-inf")
        self.failures = 0  # in a row

    def note(self, added: Sequence[tuple[int, int]]) -> None:
        """Note the streams that a batch has appended to."""
        unpacked = self._unpacked
        bytes_enough, enough = limits.POSTGRES_PACK_BYTES, limits.POSTGRES_PACK_ROWS * _ROW
        for stream_id, size in added:
            total = unpacked.get(stream_id, 0) + _ROW + size
            if total < enough and total & _SIZE < bytes_enough:
                unpacked[stream_id] = total
            else:
                unpacked.pop(stream_id, None)
                self._packing[stream_id] = None

    async def run(self) -> None:
        while True:
            await asyncio.sleep(limits.POSTGRES_MAINTAIN_S)
            try:
                await self.step()
                self.failures = 0
            except UnavailableError:
                self.failures += 1
            except (psycopg.Error, OSError, TimeoutError, DamagedDataError) as error:
                if not self.failures:
                    log.warning("background work in PostgreSQL is tried again: %s", error)
                self.failures += 1
                await self.close()

    async def finish(self) -> None:
        """Pack everything that this server has appended, however little it is, and remove what nobody reads."""
        self._packing.update(dict.fromkeys(self._unpacked))
        self._unpacked.clear()
        await self.step()

    async def step(self) -> None:
        """Do what there is to do now."""
        async with self._stepping:
            await self._step()

    async def _step(self) -> None:
        await self._pack_noted()
        connection = await self._connected()
        while await self._reclaim(connection):
            pass
        now_s = time.monotonic()
        if now_s - self._tidied_s >= limits.POSTGRES_TIDY_S:
            self._tidied_s = now_s
            await self._clock.compare(connection)
            await self.tidy(connection)
        if now_s - self._swept_s >= limits.POSTGRES_SWEEP_S:
            self._swept_s = now_s
            cursor = await connection.execute(_UNPACKED, (limits.POSTGRES_PACK_ROWS, limits.POSTGRES_PACK_BYTES))
            self._packing.update((stream_id, None) for (stream_id,) in await cursor.fetchall())
            await self._expire(connection)

    async def _pack_noted(self) -> None:
        """Pack the streams that have reached a threshold. After POSTGRES_PACK_S other work gets its turn."""
        until_s = time.monotonic() + limits.POSTGRES_PACK_S
        while self._packing and time.monotonic() < until_s:
            stream_ids = list(islice(self._packing, self._at_once))
            for stream_id in stream_ids:
                del self._packing[stream_id]
                self._unpacked.pop(stream_id, None)
            try:
                outcome = await pack_streams(await self._prepared(), stream_ids)
            except BaseException as error:
                if len(stream_ids) > 1 or not isinstance(error, psycopg.Error):
                    self._packing.update(dict.fromkeys(stream_ids))
                self._at_once = 1  # one of the streams may be the reason, and the next attempt passes over it
                raise
            self._packing.update(dict.fromkeys(outcome.more))
            outcome.check()
        self._at_once = limits.POSTGRES_PACK_STREAMS

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            connection = await self._database.connect()
            try:
                await keep_copies_away(connection)
            except BaseException:
                await discard(connection)
                raise
            self._connection = connection
        return self._connection

    # Packing

    async def pack(self, stream_id: int) -> bool:
        """Pack the small rows of a stream. Returns whether there are more."""
        outcome = await pack_streams(await self._prepared(), [stream_id])
        outcome.check()
        return bool(outcome.more)

    async def _prepared(self) -> Connection:
        connection = await self._connected()
        if connection is not self._prepared_on:
            try:
                await prepare(connection, PACK_STATEMENTS)
            except BaseException:  # some of them may be prepared
                await self.close()
                raise
            self._prepared_on = connection
        return connection

    # What nobody reads

    async def _reclaim(self, connection: Connection) -> bool:
        """Remove some bytes that nobody reads. Returns whether there may be more."""
        async with connection.transaction():
            ranges = await _fetch(
                connection,
                "SELECT stream_id, low, high FROM headwater.garbage LIMIT 1 FOR UPDATE SKIP LOCKED",
                {},
            )
            if not ranges:
                return False
            stream_id, low, high = ranges[0]
            if not await _lock(connection, stream_id):
                return False
            if await self._remove(connection, stream_id, low, high):
                await connection.execute(
                    "DELETE FROM headwater.garbage WHERE stream_id = %s AND low = %s AND high = %s",
                    (stream_id, low, high),
                )
        return True

    async def _remove(self, connection: Connection, stream_id: int, low: int, high: int) -> bool:
        """Remove some rows of a range. Returns whether nothing is left."""
        arguments = {"id": stream_id, "low": low, "high": high, "rows": limits.POSTGRES_RECLAIM_ROWS}
        queries = [_DELETE.format(table=table) for table in ("chunks", "fresh")]
        if high == _EVERYTHING:
            queries.append(_PRODUCERS_OF.format(table="producers", column="producer"))
            queries.append(_PRODUCERS_OF.format(table="expired_producers", column="hash"))
        for query in queries:
            cursor = await connection.execute(query, arguments)
            if cursor.rowcount >= limits.POSTGRES_RECLAIM_ROWS:
                return False
        if high != _EVERYTHING:
            for row in await _fetch(connection, _STRADDLING, arguments):
                await _shorten(connection, ByteRow(*row), high)
        return True

    # Tidying up

    async def _expire(self, connection: Connection) -> None:
        """Keep only the epochs of producers that were idle for long. `log/producers.py` decides by the time of a
        command who has expired, so it does not matter when this is done."""
        idle_ms = self._moment().at_ms - 1000 * limits.PRODUCER_IDLE_S
        at_once = limits.POSTGRES_EXPIRED_AT_ONCE
        while (await connection.execute(_EXPIRE, (idle_ms, at_once, idle_ms))).rowcount:
            pass

    async def tidy(self, connection: Connection) -> None:
        """Forget what nobody needs any more: old moves, and servers that are gone. Say that this server is there."""
        await connection.execute("UPDATE headwater.servers SET seen = now() WHERE id = %s", (self._server,))
        await connection.execute(_FORGET_MOVES, (limits.POSTGRES_MOVES_S,))
        await connection.execute(
            "DELETE FROM headwater.servers WHERE seen < now() - make_interval(secs => %s)", (limits.POSTGRES_SERVER_S,)
        )

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await discard(connection)


async def _lock(connection: Connection, stream_id: int) -> bool:
    cursor = await connection.execute(_LOCK, (STREAM_LOCKS, stream_id))
    row = await cursor.fetchone()
    return row is not None and bool(row[0])


async def _fetch(connection: Connection, query: str, arguments: dict[str, Any]) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(query, arguments, binary=True)
    return await cursor.fetchall()


async def _insert(connection: Connection, rows: Sequence[ByteRow]) -> None:
    ids, starts, sizes, times, outlines, data = zip(*rows, strict=True)
    await connection.execute(
        _INSERT, (bigints(ids), bigints(starts), bigints(sizes), bigints(times), byteas(outlines), byteas(data))
    )


async def _shorten(connection: Connection, row: ByteRow, position: int) -> None:
    """Write a chunk again without its records before a position, if these are more than half of it."""
    run: StoredRun = decode_run(row)
    kept = [index for index, end in enumerate(run.ends) if row.start + end > position]
    first = run.ends[kept[0] - 1] if kept and kept[0] else 0
    if first <= row.size // 2:
        return
    await connection.execute(
        "DELETE FROM headwater.chunks WHERE stream_id = %s AND start = %s", (row.stream_id, row.start)
    )
    ends = [run.ends[index] - first for index in kept]
    times = [run.time(index) for index in kept]
    await _insert(connection, list(cut(row.stream_id, row.start + first, ends, times, run.data[first:])))
