"""Background work: packing, what nobody reads, damage, and what servers leave."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from typing import Any

import psycopg
import pytest

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.limits import PRODUCER_IDLE_S
from headwater.log.events import Trimmed
from headwater.log.moments import NEVER, Moment
from headwater.log.producers import ProducerTuple, hash_of
from headwater.log.state import StreamState, evolve
from headwater.store.contract import Commit
from headwater.store.postgres import packing
from headwater.store.postgres import upkeep as upkeep_module
from headwater.store.postgres.chunks import JoinedRows, pack_rows
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import Connection, PostgresDatabase
from headwater.store.postgres.execution import prepare
from headwater.store.postgres.opening import open_store
from headwater.store.postgres.packing import PACK_STATEMENTS, STREAM_LOCKS, PackedStreams, pack_streams
from headwater.store.postgres.rows import ByteRow
from headwater.store.postgres.store import PostgresStore
from headwater.store.postgres.upkeep import PostgresUpkeep
from tests.postgres import postgres
from tests.unit.store.postgres.servers import append, commit, creation, deletion, loaded, opened, text, writing
from tests.waiting import wait_until_async


def ask(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]


@contextlib.asynccontextmanager
async def packer(url: str) -> AsyncIterator[Connection]:
    """A connection that can pack."""
    connection = await PostgresDatabase(url, "test").connect()
    try:
        await prepare(connection, PACK_STATEMENTS)
        yield connection
    finally:
        await connection.close()


def trim(state: StreamState, position: int) -> Commit:
    expects = {state.id: state.version}
    event = Trimmed(state.id, position, 2000, state.last)
    return Commit((event,), (evolve(state, event),), expects)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def _closing(store: PostgresStore) -> AsyncIterator[PostgresStore]:
    """A store without background work."""
    try:
        yield store
    finally:
        await store.close()


async def _append_random(store: PostgresStore, state: StreamState, seed: int, count: int) -> bytes:
    source = random.Random(seed)
    whole = b""
    for _ in range(count):
        batch = [source.randbytes(source.choice((1, 100, 5_000))) for _ in range(source.randint(1, 20))]
        await commit(store, *[append(state, data) for data in batch])
        whole += b"".join(batch)
    return whole


def test_rows_become_chunks_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.POSTGRES_PACK_ROWS", 8)
    monkeypatch.setattr("headwater.limits.POSTGRES_MAINTAIN_S", 0.01)
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            whole = await _append_random(store, await loaded(store, "a"), 1, 16)
            await wait_until_async(lambda: ask(url, "SELECT count(*) FROM headwater.fresh") == 0)
            assert ask(url, "SELECT count(*) FROM headwater.chunks") < 16
            assert await text(store, 1) == whole

    asyncio.run(main())


def test_readers_and_two_packers_meet() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url, 2) as (one, other):
            await commit(one, creation(1, "a"))
            state = await loaded(one, "a")
            whole = b""
            for seed in range(6):
                whole += await _append_random(one, state, seed, 5)
                other._upkeep._packing[1] = None  # type: ignore[union-attr]
                _, _, content = await asyncio.gather(one.pack(), other.pack(), text(other, 1))
                assert content == whole
            ends = await one.records(1, 0, len(whole), 10**6)
            assert ends[-1].position == len(whole)
            assert ask(url, "SELECT count(*) FROM headwater.fresh") == 0

    asyncio.run(main())


def test_rows_that_other_servers_left_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.POSTGRES_MAINTAIN_S", 0.01)
    url = postgres().clean_database()

    async def main() -> None:
        store = await open_store(url)  # without background work
        await commit(store, creation(1, "a"))
        whole = await _append_random(store, await loaded(store, "a"), 1, 140)
        await store.close()
        async with opened(url) as (other,):
            await wait_until_async(lambda: ask(url, "SELECT count(*) FROM headwater.fresh") == 0)
            assert await text(other, 1) == whole

    asyncio.run(main())


def test_large_records_do_not_keep_the_rows_behind_them_from_being_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.POSTGRES_CHUNK_BYTES", 1_000)
    monkeypatch.setattr("headwater.limits.POSTGRES_PACK_AT_ONCE_BYTES", 3_000)
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            state = await loaded(store, "a")
            bodies = [*(bytes([number]) * 900 for number in range(6)), b"z" * 5_000, *[b"x" * 10] * 30]
            for body in bodies:
                await commit(store, append(state, body))
            await store.pack()
            assert await text(store, 1) == b"".join(bodies)
            assert ask(url, "SELECT count(*) FROM headwater.fresh") == 0
            assert ask(url, "SELECT count(*) FROM headwater.chunks") == 8
            assert [one.position for one in await store.records(1, 0, state.tail, 100)] == list(
                accumulate(map(len, bodies))
            )

    asyncio.run(main())


def test_one_transaction_packs_no_more_than_some_bytes_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.POSTGRES_CHUNK_BYTES", 100)
    monkeypatch.setattr("headwater.limits.POSTGRES_PACK_AT_ONCE_BYTES", 1_000)
    monkeypatch.setattr("headwater.limits.POSTGRES_PACK_AT_ONCE_ROWS", 20)
    url = postgres().clean_database()

    async def main() -> None:
        store = await open_store(url)  # without background work
        await commit(store, creation(1, "a"))
        state = await loaded(store, "a")
        for size in (*[30] * 40, *[1] * 30):
            await commit(store, append(state, b"x" * size))
        rows = "SELECT 70 - count(*) FROM headwater.fresh"
        async with packer(url) as connection:
            for packed, is_last in ((20, False), (40, False), (60, False), (70, True), (70, True)):
                outcome = await pack_streams(connection, [1])
                assert (ask(url, rows), not outcome.more) == (packed, is_last)
            await commit(store, *[append(state, b"y" * 400) for _ in range(5)])
            assert (await pack_streams(connection, [1])).more == [1]
            assert await text(store, 1) == b"x" * 1_230 + b"y" * 2_000
        await store.close()

    asyncio.run(main())


def test_a_stream_that_grows_fast_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        calls: list[Sequence[int]] = []

        async def pack(connection: Any, stream_ids: Sequence[int]) -> PackedStreams:
            calls.append(stream_ids)
            if len(calls) == 1:
                upkeep.note([(5, limits.POSTGRES_PACK_BYTES)])  # a batch that is stored meanwhile
            return PackedStreams([], [])

        monkeypatch.setattr(upkeep_module, "pack_streams", pack)
        async with opened(postgres().clean_database()) as (store,):
            assert store._upkeep is not None
            upkeep = store._upkeep
            for _ in range(3):
                upkeep.note([(5, limits.POSTGRES_PACK_BYTES), (6, 100)])
                upkeep.note([(7, 0)] * limits.POSTGRES_PACK_ROWS)
            await upkeep.step()
            assert calls == [[5, 7], [5]]

    asyncio.run(main())


def test_damage_of_one_stream_does_not_keep_others_from_being_packed() -> None:
    url = postgres().clean_database()
    damages = (
        "UPDATE headwater.fresh SET data = substr(data, 2) WHERE stream_id = 1 AND start = 8",
        "UPDATE headwater.fresh SET data = data || 'x' WHERE stream_id = 2 AND start = 8",
        "UPDATE headwater.fresh SET data = set_byte(data, 3, 0) WHERE stream_id = 3 AND start = 8",
        "UPDATE headwater.fresh SET size = 9 WHERE stream_id = 4 AND start = 8",
        "UPDATE headwater.fresh SET outline = substr(outline, 1, 12) WHERE stream_id = 5 AND start = 8",
    )

    async def main() -> None:
        store = await open_store(url)  # without background work
        for number in range(1, 7):
            await commit(store, creation(number, f"s{number}"))
        states = [await loaded(store, f"s{number}") for number in range(1, 7)]
        for _ in range(3):
            await commit(store, *[append(state, b"abcdefgh") for state in states])
        with psycopg.connect(url, autocommit=True) as connection:
            for damage in damages:
                connection.execute(damage.encode())
        async with packer(url) as connection:
            outcome = await pack_streams(connection, range(1, 7))
        assert sorted(map(str, outcome.damages)) == [
            f"the bytes of stream {number} at 8 are damaged in the database" for number in range(1, 6)
        ]
        assert ask(url, "SELECT array_agg(DISTINCT stream_id) FROM headwater.chunks") == [6]
        assert ask(url, "SELECT count(*) FROM headwater.fresh") == 15
        assert await text(store, 6) == b"abcdefgh" * 3
        await store.close()

    asyncio.run(main())


def test_a_stream_that_cannot_be_packed_does_not_keep_others_from_it() -> None:
    url = postgres().clean_database()
    locks = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {STREAM_LOCKS}"

    async def main() -> None:
        async with _closing(await open_store(url)) as store:
            upkeep = PostgresUpkeep(PostgresDatabase(url, "test"), store.server, lambda: NEVER, DatabaseClock())
            for number in range(1, 7):
                await commit(store, creation(number, f"s{number}"))
            states = [await loaded(store, f"s{number}") for number in range(1, 7)]
            for _ in range(3):
                await commit(store, *[append(state, b"abcdefgh") for state in states])
            with psycopg.connect(url, autocommit=True) as connection:  # a row that is in both tables
                connection.execute(
                    "INSERT INTO headwater.chunks SELECT * FROM headwater.fresh WHERE stream_id = 3 AND start = 0"
                )
            upkeep.note([(state.id, limits.POSTGRES_PACK_BYTES) for state in states])
            for _ in range(2):
                with pytest.raises(psycopg.errors.UniqueViolation):
                    await upkeep.step()
                await wait_until_async(lambda: ask(url, locks) == 0)  # PostgreSQL has noticed that the connection ended
            await upkeep.step()
            await upkeep.close()
            assert ask(url, "SELECT array_agg(DISTINCT stream_id) FROM headwater.fresh") == [3]

    asyncio.run(main())


def test_rows_that_appear_among_those_that_were_read_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot happen, because appends to a stream are serialized. If it did, nothing would be removed."""
    url = postgres().clean_database()
    every = "SELECT array_agg(start ORDER BY start) FROM headwater.fresh"

    def pack_meanwhile(rows: JoinedRows) -> list[ByteRow]:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO headwater.fresh SELECT 1, 3, size, last_ms, outline, data FROM headwater.fresh LIMIT 1"
            )
        return pack_rows(rows)

    async def main() -> None:
        store = await open_store(url)  # without background work
        await commit(store, creation(1, "a"))
        state = await loaded(store, "a")
        for _ in range(3):
            await commit(store, append(state, b"abcdefgh"))
        monkeypatch.setattr(packing, "pack_rows", pack_meanwhile)
        async with packer(url) as connection:
            with pytest.raises(psycopg.DataError, match="4 rows of bytes would be removed instead of the 3"):
                await pack_streams(connection, [1])
            assert connection.closed
        assert ask(url, every) == [0, 3, 8, 16]
        await store.close()

    asyncio.run(main())


def test_a_gap_is_not_closed() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        store = await open_store(url)  # without background work
        await commit(store, creation(1, "a"))
        state = await loaded(store, "a")
        for number in range(6):
            await commit(store, append(state, b"%08d" % number))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM headwater.fresh WHERE start IN (16, 24)")
        async with packer(url) as connection:
            assert await pack_streams(connection, [1]) == PackedStreams([], [])
        assert ask(url, "SELECT array_agg(start ORDER BY start) FROM headwater.chunks") == [0, 32]
        assert ask(url, "SELECT array_agg(size ORDER BY start) FROM headwater.chunks") == [16, 16]
        with pytest.raises(DamagedDataError, match="the bytes of stream 1 at 16 are missing"):
            await text(store, 1)
        await store.close()

    asyncio.run(main())


def test_a_cancelled_packing_leaves_no_statement_on_the_connection() -> None:
    url = postgres().clean_database()
    locks = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {STREAM_LOCKS}"

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            state = await loaded(store, "a")
            for turns in range(40):
                await commit(store, append(state, b"abcdefgh"))
                task = asyncio.create_task(store.pack())
                for _ in range(turns):
                    await asyncio.sleep(0.0002)
                task.cancel()
                await asyncio.wait((task,))
            await wait_until_async(lambda: ask(url, locks) == 0)  # PostgreSQL ends the transactions of lost connections
            await commit(store, append(state, b"abcdefgh"))
            await store.pack()
            assert ask(url, "SELECT count(*) FROM headwater.fresh") == 0
            assert await text(store, 1) == b"abcdefgh" * 41

    asyncio.run(main())


def test_what_is_trimmed_or_deleted_is_removed() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"), creation(2, "b"))
            state, other = await loaded(store, "a"), await loaded(store, "b")
            for number in range(40):
                await commit(store, append(state, b"%04d" % number * 5_000), append(other, b"x" * 20_000))
            await commit(store, append(other, b"x", ProducerTuple("p", 0, 0)))
            await store.pack()
            await commit(store, trim(state, 20_000 * 35), deletion(other))
            await store.pack()
            assert await text(store, 1) == b"".join(b"%04d" % number * 5_000 for number in range(35, 40))
            with pytest.raises(LookupError):
                await store.read(1, 0, 20_000, 20_000)
            with pytest.raises(LookupError):
                await store.read(2, 0, 20_000, 20_000)
            kept = "SELECT sum(size) FROM (SELECT * FROM headwater.chunks UNION ALL SELECT * FROM headwater.fresh) AS b"
            assert ask(url, kept) <= 2 * 100_000
            for table in ("garbage", "producers"):
                assert ask(url, f"SELECT count(*) FROM headwater.{table}") == 0
            await commit(store, append(state, b"more"))
            await store.pack()
            assert (await text(store, 1)).endswith(b"more")

    asyncio.run(main())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE headwater.chunks SET data = set_byte(data, 5, 0)",
        "UPDATE headwater.chunks SET outline = set_byte(outline, 30, 77)",
        "UPDATE headwater.chunks SET last_ms = 7",
        "DELETE FROM headwater.chunks",
        "UPDATE headwater.streams SET state = set_byte(state, 20, 1)",
        "UPDATE headwater.streams SET version = version + 1",
    ],
)
def test_damage_is_noticed(damage: str) -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            state = await loaded(store, "a")
            for _ in range(3):
                await commit(store, append(state, b"abcdefgh"), append(state, b"ijkl"))
            await store.pack()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(damage.encode())
            with pytest.raises(DamagedDataError):
                await text(store, 1)

    asyncio.run(main())


def test_a_damaged_document_is_noticed() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, writing("k", b"data"))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("UPDATE headwater.documents SET data = 'other'")
            with pytest.raises(DamagedDataError, match="document 'k'"):
                await store.document("k")

    asyncio.run(main())


def test_idle_producers_expire_and_old_rows_go() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        store = await open_store(url)
        try:
            await commit(store, creation(1, "a"))
            state = await loaded(store, "a")
            await commit(store, append(state, b"1", ProducerTuple("p", 3, 0)))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("UPDATE headwater.moves SET at = now() - interval '1 day'")
                connection.execute("INSERT INTO headwater.servers VALUES (99, 1, 1, NULL, now() - interval '1 year')")
            later_ms = 2_001 + 1_000 * PRODUCER_IDLE_S
            await store.start(lambda error: None, lambda: Moment(later_ms, later_ms, 0, 0))
            await store.pack()
            again = await loaded(store, "a")
            assert (again.producers, again.expired_producers) == ({}, {hash_of("p"): 3})
            assert ask(url, "SELECT count(*) FROM headwater.moves") == 0
            assert ask(url, "SELECT horizon > '0'::xid8 FROM headwater.meta")
            assert ask(url, "SELECT array_agg(id) FROM headwater.servers") == [store.server]
        finally:
            await store.close()

    asyncio.run(main())
