"""Background work: packing, what nobody reads, damage, and what servers leave."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest

from headwater.errors import DamagedDataError
from headwater.limits import PRODUCER_IDLE_S
from headwater.log.events import Trimmed
from headwater.log.moments import Moment
from headwater.log.producers import ProducerTuple, hash_of
from headwater.log.state import StreamState, evolve
from headwater.store.contract import Commit
from headwater.store.postgres.opening import open_store
from headwater.store.postgres.store import PostgresStore
from tests.postgres import postgres
from tests.unit.store.postgres.servers import append, commit, creation, deletion, loaded, opened, text, writing
from tests.waiting import wait_until_async


def ask(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]


def trim(state: StreamState, position: int) -> Commit:
    expects = {state.id: state.version}
    event = Trimmed(state.id, position, 2000, state.last)
    return Commit((event,), (evolve(state, event),), expects)  # type: ignore[arg-type]


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
                other._upkeep._packing.append(1)  # type: ignore[union-attr]
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
