"""Packing: the first small rows of streams are replaced by chunks, in one transaction.

A lock for each stream keeps two servers, and packing and removal, apart. Appends need no lock. They are serialized by
the row of the stream, so a snapshot that has a row of bytes has all rows before it, and later rows are added only
behind those that were read. If it were otherwise, more rows would be removed than were read, which is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from array import array
from collections.abc import AsyncIterator, Sequence
from itertools import takewhile
from operator import add, eq
from typing import NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.store.postgres.arrays import bigints, byteas
from headwater.store.postgres.chunks import JoinedRows, bigint_array, first_merged, pack_rows
from headwater.store.postgres.connections import Connection, discard
from headwater.store.postgres.execution import Statement, execute
from headwater.store.postgres.rows import COLUMNS, ByteRow, damaged

STREAM_LOCKS = 1215459413  # the class of our advisory locks of streams; two streams may share one
_NUMBER = struct.Struct(">q")
# Everything is looked up in the indexes: plans are kept, and tables grow (see `schema.sql`).
BEGIN_PACKING = """
    BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;
    SET LOCAL plan_cache_mode = force_generic_plan
"""
_LOCK = Statement(
    b"lock_streams",
    f"SELECT s.id FROM unnest($1::bigint[]) AS s(id) WHERE pg_try_advisory_xact_lock({STREAM_LOCKS}, hashint8(s.id))",  # noqa: S608
)
_JOINED = """
    string_agg(int8send(r.start), '') AS starts, string_agg(int8send(r.size), '') AS sizes,
    string_agg(int8send(r.last_ms), '') AS times, string_agg(int8send(octet_length(r.outline)), '') AS outline_sizes,
    string_agg(r.outline, '') AS outlines, string_agg(r.data, '') AS data,
    min(r.start) FILTER (WHERE octet_length(r.data) <> r.size) AS torn
"""
# The first rows of streams, the positions and sizes of the last chunks, from the last one on, and whether there are
# more rows. The arguments are the streams, how many bytes and rows of each (at least one row), and how many chunks.
_FRESH = Statement(
    b"fresh_rows",
    f"""
    SELECT s.id, f.*, c.starts, c.sizes, e.start > f.high
    FROM unnest($1::bigint[]) AS s(id)
    CROSS JOIN LATERAL (SELECT min(start) AS start FROM headwater.fresh WHERE stream_id = s.id) AS b
    CROSS JOIN LATERAL (SELECT max(start) AS start FROM headwater.fresh WHERE stream_id = s.id) AS e
    CROSS JOIN LATERAL (
        SELECT {_JOINED}, max(r.start) AS high FROM (
            SELECT * FROM headwater.fresh WHERE stream_id = s.id AND start < b.start + $2::bigint
                AND (start = b.start OR start + size <= b.start + $2) ORDER BY start LIMIT $3::bigint
        ) AS r
    ) AS f
    CROSS JOIN LATERAL (
        SELECT string_agg(int8send(r.start), '') AS starts, string_agg(int8send(r.size), '') AS sizes FROM (
            SELECT start, size FROM headwater.chunks WHERE stream_id = s.id ORDER BY start DESC LIMIT $4::bigint
        ) AS r
    ) AS c
    WHERE b.start IS NOT NULL
    """,  # noqa: S608
)
_LAST_CHUNKS = Statement(
    b"last_chunks",
    f"""
    SELECT s.id, c.* FROM unnest($1::bigint[], $2::bigint[]) AS s(id, low)
    CROSS JOIN LATERAL (
        SELECT {_JOINED} FROM (
            SELECT * FROM headwater.chunks WHERE stream_id = s.id AND start >= s.low ORDER BY start
        ) AS r
    ) AS c
    """,  # noqa: S608
)
# Chunks are looked up in the order of their positions, so that PostgreSQL does not take the index of their times.
_REMOVE = Statement(
    b"remove_packed",
    """
    WITH fresh AS (
        DELETE FROM headwater.fresh f USING unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS r(id, low, high)
        WHERE f.stream_id = ANY (ARRAY[r.id]) AND f.start >= r.low AND f.start <= r.high RETURNING 1
    ), chunks AS (
        DELETE FROM headwater.chunks c USING unnest($4::bigint[], $5::bigint[]) AS r(id, low) CROSS JOIN LATERAL (
            SELECT ctid FROM headwater.chunks WHERE stream_id = r.id AND start >= r.low ORDER BY start OFFSET 0
        ) AS one
        WHERE c.ctid = one.ctid RETURNING 1
    )
    SELECT (SELECT count(*) FROM fresh) + (SELECT count(*) FROM chunks)
    """,
)
_ADD = Statement(
    b"add_chunks",
    f"""
    WITH added AS (
        INSERT INTO headwater.chunks ({COLUMNS})
        SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[])
        RETURNING 1
    )
    SELECT count(*) FROM added
    """,  # noqa: S608
)
PACK_STATEMENTS = (_LOCK, _FRESH, _LAST_CHUNKS, _REMOVE, _ADD)


class PackedStreams(NamedTuple):
    more: list[int]  # streams that have more small rows
    damages: list[DamagedDataError]  # why streams were not packed

    def check(self) -> None:
        if self.damages:
            raise self.damages[0]


async def pack_streams(connection: Connection, stream_ids: Sequence[int]) -> PackedStreams:
    """Pack the first small rows of some streams. If rows of one are damaged, the others are packed. The statements are
    prepared on the connection, which is closed after an error."""
    packs: list[_Pack] = []
    damages: list[DamagedDataError] = []
    async with _transaction(connection):
        for pack in await _read(connection, stream_ids):
            try:
                pack.make_chunks()
            except DamagedDataError as error:
                damages.append(error)
            else:
                packs.append(pack)
            await asyncio.sleep(0)  # other work gets its turn
        if packs:
            await _replace(connection, packs)
    return PackedStreams([pack.stream_id for pack in packs if pack.has_more], damages)


@contextlib.asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    """A transaction of prepared statements. After an error, or if it is cancelled, one may be in progress: the
    connection is closed."""
    try:
        await connection.execute(BEGIN_PACKING, prepare=False)
        yield
        await connection.execute("COMMIT")
    except BaseException:
        await discard(connection)
        raise


class _Pack:
    """The rows of a stream that are packed at once, and their chunks."""

    def __init__(
        self, stream_id: int, columns: Sequence[bytes | None], has_more: bool, last: Sequence[array[int]]
    ) -> None:
        self.stream_id = stream_id
        self.has_more = has_more
        self.columns = columns
        self.last_columns: Sequence[bytes | None] = ()  # of the chunks that are merged with them
        starts = bigint_array(columns[0] or b"")
        self.low, self.high, self.row_count = starts[0], starts[-1], len(starts)
        self.chunks_low, self.chunk_count = _merged_chunks(self.low, len(columns[5] or b""), *last)
        self.chunks: list[ByteRow] = []

    def make_chunks(self) -> None:
        rows = _joined(self.stream_id, self.columns)
        if self.chunk_count:
            rows = _joined(self.stream_id, self.last_columns).followed_by(rows)
        self.chunks = pack_rows(rows)


def _merged_chunks(position: int, size: int, starts: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """Where the chunks begin that are merged with new bytes at a position, and how many they are. Of `starts` and
    `sizes`, the first is the last chunk of the stream."""
    ends = map(add, starts, sizes)
    following = [position, *starts]
    adjacent = sum(1 for _ in takewhile(bool, map(eq, ends, following)))
    count = adjacent - first_merged(sizes[:adjacent][::-1], size)
    return following[count], count


def _joined(stream_id: int, columns: Sequence[bytes | None]) -> JoinedRows:
    *numbers, outlines, data, torn = columns
    if torn is not None:
        raise damaged(stream_id, _number(torn))
    starts, sizes, times, outline_sizes = (bigint_array(one or b"") for one in numbers)
    return JoinedRows(stream_id, starts, sizes, times, outline_sizes, outlines or b"", data or b"")


async def _read(connection: Connection, stream_ids: Sequence[int]) -> list[_Pack]:
    """The first small rows of the streams, but those that another server packs, and what they are merged with."""
    locked = await execute(connection, _LOCK, (bigints(stream_ids).data,))
    ids = [_number(locked.get_value(row, 0)) for row in range(locked.ntuples)]
    if not ids:
        return []
    at_once = max(limits.POSTGRES_CHUNK_BYTES, limits.POSTGRES_PACK_AT_ONCE_BYTES // len(ids))
    numbers = (at_once, limits.POSTGRES_PACK_AT_ONCE_ROWS, limits.POSTGRES_MERGED_CHUNKS)
    result = await execute(connection, _FRESH, (bigints(ids).data, *map(_NUMBER.pack, numbers)))
    packs = [_pack_of(result, row) for row in range(result.ntuples)]
    merging = {pack.stream_id: pack for pack in packs if pack.chunk_count}
    if merging:
        lows = [pack.chunks_low for pack in merging.values()]
        result = await execute(connection, _LAST_CHUNKS, (bigints(list(merging)).data, bigints(lows).data))
        for row in range(result.ntuples):
            stream_id, *columns = (result.get_value(row, column) for column in range(8))
            merging[_number(stream_id)].last_columns = columns
    return packs


def _pack_of(result: PGresult, row: int) -> _Pack:
    stream_id, *columns, _, starts, sizes, has_more = (result.get_value(row, column) for column in range(12))
    return _Pack(
        _number(stream_id), columns, has_more == b"\1", (bigint_array(starts or b""), bigint_array(sizes or b""))
    )


async def _replace(connection: Connection, packs: Sequence[_Pack]) -> None:
    """Put chunks into the place of the rows that were read. An append adds rows only behind them."""
    merging = [pack for pack in packs if pack.chunk_count]
    ranges = (
        *([pack.stream_id for pack in packs], [pack.low for pack in packs], [pack.high for pack in packs]),
        *([pack.stream_id for pack in merging], [pack.chunks_low for pack in merging]),
    )
    result = await execute(connection, _REMOVE, [bigints(one).data for one in ranges])
    removed = _number(result.get_value(0, 0))
    expected = sum(pack.row_count + pack.chunk_count for pack in packs)
    if removed != expected:
        raise psycopg.DataError(f"{removed} rows of bytes would be removed instead of the {expected} that were read")
    ids, starts, sizes, times, *texts = zip(*(row for pack in packs for row in pack.chunks), strict=True)
    columns = (*map(bigints, (ids, starts, sizes, times)), *map(byteas, texts))
    await execute(connection, _ADD, [column.data for column in columns])


def _number(value: bytes | None) -> int:
    number: int = _NUMBER.unpack(value or b"")[0]
    return number
