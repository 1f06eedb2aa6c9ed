"""Plans of PostgreSQL are kept: one that was made for a table of one row is used when there are many."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from headwater import limits
from headwater.log.events import DocumentDeleted
from headwater.log.state import Document, StreamState
from headwater.store.contract import Commit, DocumentKey, version_of
from headwater.store.postgres.appends import encode_appends
from headwater.store.postgres.arrays import bigints, byteas, decode_ints
from headwater.store.postgres.batches import EncodedBatch, encode_batch
from headwater.store.postgres.connections import _PLANS as READ_PLANS
from headwater.store.postgres.connections import Connection, Pool, PostgresDatabase
from headwater.store.postgres.execution import execute, prepare
from headwater.store.postgres.packing import BEGIN_PACKING, PACK_STATEMENTS, PackedStreams, pack_streams
from headwater.store.postgres.reading import _STREAM_VERSIONS, _VERSIONS, READ_STATEMENTS, PostgresReader
from headwater.store.postgres.watching import _MOVED
from headwater.store.postgres.writing import _CALLS, _LOCK_STREAMS
from headwater.store.postgres.writing import _PLANS as WRITE_PLANS
from tests.postgres import postgres
from tests.unit.store.postgres.servers import append, commit, creation, deletion, loaded, opened, writing

ROWS = 1_000
SERVER = 999  # whose batches these are
ROWS_READ = """
    SELECT sum(idx_tup_fetch + seq_tup_read)::bigint FROM pg_stat_xact_user_tables
    WHERE schemaname = 'headwater' AND relname <> 'moves'
"""
_number = struct.Struct(">q").pack


async def _store(connection: Connection, batch: EncodedBatch | None, turn: int) -> list[int]:
    """Store a batch. Returns the groups of it that are outdated."""
    assert batch is not None
    arguments = [_number(SERVER), _number(0), _number(turn), b"\0", b"\1", *(one.data for one in batch.arguments)]
    groups = (await execute(connection, _CALLS[batch.function], arguments)).get_value(0, 0)
    return [] if groups is None else decode_ints(groups)


async def _append(connection: Connection, stream: StreamState, turn: int) -> None:
    assert not await _store(connection, encode_appends([append(stream, b"x")]), turn)


async def _append_too_late(connection: Connection, stream: StreamState, turn: int) -> None:
    stream = stream.copy()
    stream.version += 1
    assert await _store(connection, encode_appends([append(stream, b"x")]), turn) == [0]


async def _change(connection: Connection, stream: StreamState, turn: int) -> None:
    """What `store_batch` does to streams and documents that it finds by their keys."""
    path, document = f"new{turn}", Document(f"new{turn}", b"x", 1)
    new = creation(10_000 + turn, path)
    removal = Commit((DocumentDeleted(path),), (None,), {DocumentKey(path): version_of(document)})
    for batch in ([append(stream, b"x"), new, writing(path, b"x")], [deletion(_created(new)), removal]):
        assert not await _store(connection, encode_batch(batch), turn)


def _created(commit: Commit) -> StreamState:
    (state,) = commit.after
    assert isinstance(state, StreamState)
    return state


async def _lock(connection: Connection, stream: StreamState, turn: int) -> None:
    await connection.execute(_LOCK_STREAMS, (bigints([stream.id]), byteas([stream.path.encode()])))


async def _compare_streams(connection: Connection, stream: StreamState, turn: int) -> None:
    result = await execute(connection, _STREAM_VERSIONS, (bigints([stream.id]).data, bigints([0]).data))
    assert result.ntuples == 1


async def _compare(connection: Connection, stream: StreamState, turn: int) -> None:
    name, zero = byteas([stream.path.encode()]), bigints([0])
    cursor = await connection.execute(_VERSIONS, (bigints([stream.id]), zero, name, zero, name, zero))
    assert len(await cursor.fetchall()) == 3


async def _look_for_moves(connection: Connection, stream: StreamState, turn: int) -> None:
    await connection.execute("DELETE FROM headwater.moves")
    await connection.execute(
        "INSERT INTO headwater.moves VALUES (pg_current_xact_id(), 0, now(), %s, %s, %s)",
        (bigints([stream.id]), bigints([7]), byteas([b"gone"])),
    )
    cursor = await connection.execute(_MOVED, {"cursor": "3:3:", "server": SERVER})
    assert {row[0] for row in await cursor.fetchall()} == {stream.id, 7, -1}


Run = Callable[[Connection, StreamState, int], Awaitable[None]]
WRITES: tuple[Run, ...] = (_append, _append_too_late, _change, _lock)
READS: tuple[Run, ...] = (_compare_streams, _compare, _look_for_moves)


@pytest.mark.parametrize("run", [*WRITES, *READS])
def test_a_plan_for_one_row_does_not_read_all_rows_when_there_are_more(run: Run) -> None:
    async def main() -> None:
        url = postgres().clean_database()
        settings, statements = (WRITE_PLANS, _CALLS.values()) if run in WRITES else (READ_PLANS, READ_STATEMENTS)
        async with opened(url) as (store,), await PostgresDatabase(url, "test").connect(**settings) as connection:
            await commit(store, creation(1, "a"), writing("a", b"x"))
            await connection.execute("ANALYZE headwater.streams, headwater.documents")
            await connection.execute("INSERT INTO headwater.servers VALUES (%s, 0, 0, NULL)", (SERVER,))
            await prepare(connection, statements)
            stream = await loaded(store, "a")
            for turn in (1, 2):  # a statement of psycopg gets its plan with the second one
                await run(connection, stream, turn)

            await commit(store, *(creation(20_000 + number, f"s{number}") for number in range(ROWS)))
            await commit(store, *(writing(f"s{number}", b"") for number in range(ROWS)))
            async with connection.transaction():
                before = await _rows_read(connection)
                await run(connection, stream, 3)
                assert await _rows_read(connection) - before < ROWS / 10

    asyncio.run(main())


def test_a_read_of_the_first_records_does_not_look_at_those_up_to_the_tail() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (store,), await PostgresDatabase(url, "test").connect(**READ_PLANS) as connection:
            await commit(store, creation(1, "a"))
            stream = await loaded(store, "a")
            for _ in range(100):
                await commit(store, append(stream, b"x" * 10))
            await prepare(connection, READ_STATEMENTS)
            reader = PostgresReader(cast("Pool", SimpleNamespace(execute=partial(execute, connection))))
            async with connection.transaction():
                before = await _rows_read(connection)
                assert (await reader.read(1, 0, stream.tail, 25)).data == b"x" * 20
                assert await _rows_read(connection) - before < 10

    asyncio.run(main())


def test_packing_does_not_read_the_rows_of_other_streams() -> None:
    """Plans that were made when there were a few rows."""

    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (store,), await PostgresDatabase(url, "test").connect() as connection:
            await commit(store, creation(1, "a"))
            stream = await loaded(store, "a")
            await connection.execute("VACUUM ANALYZE headwater.fresh, headwater.chunks")
            await prepare(connection, PACK_STATEMENTS)

            async def pack_some() -> None:
                for _ in range(3):
                    await commit(store, append(stream, b"x" * 10))
                assert await pack_streams(connection, [1]) == PackedStreams([], [])

            for _ in range(2 * limits.POSTGRES_MERGE_FACTOR):  # sometimes chunks are merged
                await pack_some()
            for table in ("fresh", "chunks"):
                await connection.execute(
                    f"INSERT INTO headwater.{table} SELECT id, 0, 1, 0, '', '' FROM generate_series(2, {ROWS}) AS id"
                )
            before = await _rows_read_by_all(connection)
            for _ in range(limits.POSTGRES_MERGE_FACTOR):
                await pack_some()
            assert await _rows_read_by_all(connection) - before < ROWS / 2

    asyncio.run(main())


def test_packing_does_not_look_at_all_chunks_of_a_stream() -> None:
    """The index of their times has no use for a range of positions but to look at all that the stream has."""

    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url), await PostgresDatabase(url, "test").connect() as connection:
            await connection.execute("VACUUM ANALYZE headwater.fresh, headwater.chunks")
            await prepare(connection, PACK_STATEMENTS)
            await connection.execute(BEGIN_PACKING, prepare=False)
            for statement in PACK_STATEMENTS:
                count = len(set(re.findall(r"\$\d", statement.text)))
                call = f"EXPLAIN EXECUTE {statement.name.decode()} ({', '.join(['NULL'] * count)})"
                plan = "\n".join([line for (line,) in await (await connection.execute(call.encode())).fetchall()])
                assert "chunks_times" not in plan
                assert "Seq Scan" not in plan
                assert plan.count("Index Cond") == len(re.findall("Index.* Scan", plan))

    asyncio.run(main())


async def _rows_read_by_all(connection: Connection) -> int:
    """Rows of bytes that were read, also by transactions that have ended."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    cursor = await connection.execute(
        "SELECT sum(idx_tup_fetch + seq_tup_read)::bigint FROM pg_stat_user_tables WHERE relname IN ('fresh', 'chunks')"
    )
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])


async def _rows_read(connection: Connection) -> int:
    cursor = await connection.execute(ROWS_READ)
    row = await cursor.fetchone()
    assert row is not None
    return int(row[0])
