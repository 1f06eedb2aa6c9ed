"""Background work: packing small rows into chunks, removing bytes that nobody reads, and tidying up.

Every server packs the streams that it has appended to. A lock for each stream keeps two servers, and packing and
removal, apart; a server that does not get it goes on to something else. Appends need no lock: packing touches only rows
that it has read, and an append adds a row behind them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from headwater import limits
from headwater.errors import DamagedDataError, UnavailableError
from headwater.log.moments import Moment
from headwater.store.postgres.arrays import bigints, byteas
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import Connection, PostgresDatabase, discard, log
from headwater.store.postgres.presence import keep_copies_away
from headwater.store.postgres.rows import COLUMNS, ByteRow, StoredRun, cut, decode_run

_STREAM_LOCKS = 1215459413  # the class of our advisory locks of streams; two streams may share one
_EVERYTHING = 2**63 - 1

_LOCK = "SELECT pg_try_advisory_xact_lock(%s, hashint8(%s))"
_SMALL = f"""
    WITH last AS (
        SELECT {COLUMNS} FROM headwater.chunks WHERE stream_id = %(id)s ORDER BY start DESC LIMIT 1
    )
    SELECT true, {COLUMNS} FROM last WHERE size < %(small)s
    UNION ALL
    (SELECT false, {COLUMNS} FROM headwater.fresh WHERE stream_id = %(id)s ORDER BY start LIMIT %(rows)s)
    ORDER BY start
"""  # noqa: S608
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
        self._unpacked: dict[int, list[int]] = {}  # stream → bytes and rows that this server has added
        self._packing: deque[int] = deque()
        self._stepping = asyncio.Lock()
        self._swept_s = self._tidied_s = float("-inf")
        self.failures = 0  # in a row

    def note(self, added: Sequence[tuple[int, int]]) -> None:
        """Note the streams that a batch has appended to."""
        unpacked = self._unpacked
        for stream_id, size in added:
            counts = unpacked.get(stream_id)
            if counts is None:
                counts = unpacked[stream_id] = [0, 0]
            counts[0] += size
            counts[1] += 1
            if counts[0] >= limits.POSTGRES_PACK_BYTES or counts[1] >= limits.POSTGRES_PACK_ROWS:
                del unpacked[stream_id]
                self._packing.append(stream_id)

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
        self._packing.extend(self._unpacked)
        self._unpacked.clear()
        await self.step()

    async def step(self) -> None:
        """Do what there is to do now."""
        async with self._stepping:
            await self._step()

    async def _step(self) -> None:
        connection = await self._connected()
        for _ in range(len(self._packing)):
            stream_id = self._packing.popleft()
            if await self.pack(stream_id):
                self._packing.append(stream_id)
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
            self._packing.extend([stream_id for (stream_id,) in await cursor.fetchall()])
            await self._expire(connection)

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
        """Pack the small rows of a stream. Returns whether there may be more."""
        connection = await self._connected()
        async with connection.transaction():
            if not await _lock(connection, stream_id):
                return False
            rows = await _fetch(
                connection,
                _SMALL,
                {"id": stream_id, "small": limits.POSTGRES_CHUNK_BYTES // 2, "rows": _rows_at_once()},
            )
            rows, more = _first(rows, limits.POSTGRES_PACK_AT_ONCE_BYTES)
            packed = _packed(stream_id, [ByteRow(*row[1:]) for row in rows])
            if not packed or len(packed) >= len(rows):
                return False
            for is_chunk, table in ((True, "chunks"), (False, "fresh")):
                starts = [row[2] for row in rows if row[0] is is_chunk]
                await connection.execute(
                    f"DELETE FROM headwater.{table} WHERE stream_id = %s AND start = ANY (%s)",  # noqa: S608
                    (stream_id, bigints(starts)),
                )
            await _insert(connection, packed)
        return more

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
    cursor = await connection.execute(_LOCK, (_STREAM_LOCKS, stream_id))
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


def _rows_at_once() -> int:
    return 16 * limits.POSTGRES_PACK_ROWS


def _first(rows: list[tuple[Any, ...]], bytes_max: int) -> tuple[list[tuple[Any, ...]], bool]:
    """The first rows, of so many bytes, and whether there are more."""
    size = 0
    for index, row in enumerate(rows):
        size += row[3]
        if size > bytes_max and index:
            return rows[:index], True
    return rows, len(rows) >= _rows_at_once()


def _packed(stream_id: int, rows: Sequence[ByteRow]) -> list[ByteRow]:
    """The chunks of some rows. There is a gap where bytes were removed that nobody reads."""
    packed: list[ByteRow] = []
    following: list[ByteRow] = []
    for row in rows:
        if following and row.start != following[-1].start + following[-1].size:
            packed += _joined(stream_id, following)
            following = []
        following.append(row)
    return packed + _joined(stream_id, following) if following else packed


def _joined(stream_id: int, rows: Sequence[ByteRow]) -> list[ByteRow]:
    """The chunks of rows that follow each other."""
    start = rows[0].start
    ends: list[int] = []
    times: list[int] = []
    for row in rows:
        run = decode_run(row)
        base = run.start - start
        ends += [base + end for end in run.ends]
        times += map(run.time, range(len(run.ends)))
    return list(cut(stream_id, start, ends, times, b"".join([row.data for row in rows])))


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
