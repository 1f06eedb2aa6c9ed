"""What a store in PostgreSQL does that one server alone does not need."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from headwater.log.producers import ProducerTuple
from headwater.log.state import Document, StreamState
from headwater.store.contract import Commit, DocumentKey, Expects, Moved, OutdatedError, version_of
from headwater.store.postgres.store import PostgresStore
from tests.postgres import postgres
from tests.unit.store.postgres.servers import (
    append,
    commit,
    comparing,
    creation,
    deletion,
    loaded,
    opened,
    text,
    writing,
)
from tests.waiting import wait_until_async


def test_a_record_that_was_decided_on_an_outdated_state_is_not_stored() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"), creation(2, "b"))
            mine, its, free = await loaded(one, "a"), await loaded(other, "a"), await loaded(other, "b")
            await commit(one, append(mine, b"mine"))
            with pytest.raises(OutdatedError) as caught:
                await commit(other, append(its, b"its"), append(free, b"free"), append(its, b"also its"))
            assert caught.value.records == [0, 2]
            assert (await text(one, 1), await text(one, 2)) == (b"mine", b"free")

    asyncio.run(main())


def test_records_that_share_a_key_are_stored_together_or_not_at_all() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"), creation(2, "b"), creation(3, "c"))
            a, b, c = [await loaded(other, path) for path in "abc"]
            both = append(b, b"b0")
            both.expects = {1: a.version, 2: b.version - 1}  # it has read a
            await commit(one, append(await loaded(one, "a"), b"x"))
            with pytest.raises(OutdatedError) as caught:
                await commit(other, append(c, b"c0"), both, append(b, b"b1"), append(c, b"c1"))
            assert caught.value.records == [1, 2]
            assert [await text(one, stream_id) for stream_id in (1, 2, 3)] == [b"x", b"", b"c0c1"]

    asyncio.run(main())


def test_one_path_and_one_document_are_created_once() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as stores:
            for number in range(10):
                outcomes = await asyncio.gather(
                    *(
                        commit(store, creation(10 * number + own + 1, f"p{number}"), writing(f"d{number}", b"%d" % own))
                        for own, store in enumerate(stores)
                    ),
                    return_exceptions=True,
                )
                lost = [outcome for outcome in outcomes if outcome is not None]
                assert all(isinstance(outcome, OutdatedError) for outcome in lost)
                records = [one.records for one in lost if isinstance(one, OutdatedError)]
                assert sorted(record for some in records for record in some) == [0, 1]
                assert await stores[0].load(f"p{number}") is not None
                assert await stores[0].document(f"d{number}") is not None

    asyncio.run(main())


def test_a_document_that_was_deleted_and_written_again_is_another_one() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database()) as (store,):
            await commit(store, writing("k", b"one"))
            with pytest.raises(OutdatedError):
                await commit(store, writing("k", b"three", Document("k", b"two")))
            await commit(store, writing("k", b"three", Document("k", b"one")))
            assert await store.document("k") == Document("k", b"three", 2)

    asyncio.run(main())


def test_answers_without_events_are_compared() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database()) as (store,):
            await commit(store, creation(1, "a"), writing("k", b"x"))
            key, version = DocumentKey("k"), version_of(Document("k", b"x"))
            await commit(store, comparing({1: 1, "a": 1, "free": 0, key: version, DocumentKey("none"): 0}))
            with pytest.raises(OutdatedError) as caught:
                await commit(
                    store,
                    comparing({1: 1}),
                    comparing({"a": 0}),
                    comparing({"b": 1}),
                    comparing({key: 0}),
                    comparing({1: 1}),
                )
            assert caught.value.records == [1, 2, 3]
            state = await loaded(store, "a")
            with pytest.raises(OutdatedError) as caught:  # with a record that changes something
                await commit(store, comparing({"a": 0, "c": 0}), append(state, b"x"), comparing({"b": 0}))
            assert caught.value.records == [0]
            assert await text(store, 1) == b"x"

    asyncio.run(main())


def test_a_path_is_free_after_a_deletion_in_the_same_batch() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database()) as (store,):
            await commit(store, creation(1, "a", b"old"))
            state = await loaded(store, "a")
            await commit(store, append(state, b"x"), deletion(state), creation(2, "a", b"new"))
            assert (await loaded(store, "a")).id == 2
            assert await store.load_id(1) is None
            assert await text(store, 2) == b"new"

    asyncio.run(main())


def test_a_stream_that_is_created_and_deleted_in_one_batch_leaves_nothing() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (store,):
            new = creation(1, "a", b"data")
            state = new.after[0]
            assert state is not None
            await commit(store, new, deletion(state))  # type: ignore[arg-type]
            assert await store.load("a") is None
            assert store.streams == 0
        with psycopg.connect(url) as connection:
            for table in ("streams", "fresh", "garbage"):
                assert connection.execute(f"SELECT count(*) FROM headwater.{table}").fetchone() == (0,)

    asyncio.run(main())


@pytest.mark.parametrize("in_one_batch", [False, True])
def test_ids_at_a_path_rise(in_one_batch: bool) -> None:
    """A server has an id, and others create and delete a stream with a larger one at the path before it uses that."""

    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (slow, other):
            early, late, last = [await store.reserve_id() for store in (slow, other, slow)]
            begin = creation(late, "a")
            end = deletion(creation(late, "a").after[0])  # type: ignore[arg-type]
            batches: list[tuple[Commit, ...]] = [(begin, end)] if in_one_batch else [(begin,), (end,)]
            for batch in batches:
                await commit(other, *batch)
            begin, end = creation(early, "a"), deletion(creation(early, "a").after[0])  # type: ignore[arg-type]
            batches = [(begin,), (begin, end)]
            for batch in batches:
                with pytest.raises(OutdatedError):
                    await commit(slow, *batch)
            assert await slow.load("a") is None
            await commit(slow, creation(last, "a"))
            assert (await loaded(other, "a")).id == last

    asyncio.run(main())


def test_changed_names_what_has_another_version() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"), creation(2, "b"), writing("k", b"x"))
            key, version = DocumentKey("k"), version_of(Document("k", b"x"))
            known: Expects = {1: 1, 2: 1, "a": 1, "b": 0, "c": 0, key: version, 9: 4}
            assert await other.changed(known) == {"b": 2, 9: 0}
            await commit(one, append(await loaded(one, "a"), b"x"))
            answers = await asyncio.gather(other.changed({1: 1}), other.changed({1: 2}), other.changed({1: 2, 2: 7}))
            assert list(answers) == [{1: 2}, {}, {2: 1}]

    asyncio.run(main())


def test_who_has_locked_a_stream_does_not_lose() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"))
            stale = await loaded(other, "a")
            state = (await one.locked([1, "a", "none", DocumentKey("k")]))[1]
            assert state is not None
            losing = asyncio.create_task(commit(other, append(stale, b"other")))
            await commit(one, append(state, b"one"), writing("k", b"x"))  # type: ignore[arg-type]
            with pytest.raises(OutdatedError):
                await losing
            assert await text(one, 1) == b"one"

    asyncio.run(main())


def test_the_connection_for_locks_is_used_again_and_replaced_if_it_is_lost() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            pids: list[int] = []
            for turn in range(3):
                state = (await store.locked([1]))[1]
                held = store._parts.writer._held
                assert held is not None
                assert isinstance(state, StreamState)
                pids.append(held.connection.info.backend_pid)
                await commit(store, append(state, b"x"))
                if turn == 1:
                    with psycopg.connect(url, autocommit=True) as connection:
                        connection.execute("SELECT pg_terminate_backend(%s, 60000)", (pids[-1],))
            assert pids[0] == pids[1] != pids[2]
            assert await text(store, 1) == b"xxx"

    asyncio.run(main())


def test_locks_that_are_not_used_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.POSTGRES_LOCKED_S", 0.05)

    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"))
            await one.locked([1])
            await commit(other, append(await loaded(other, "a"), b"other"))
            with pytest.raises(OutdatedError):
                await commit(one, comparing({1: 1}))

    asyncio.run(main())


async def _contend(store: PostgresStore, count: int) -> int:
    """Append to one stream, and lock it after a loss. Returns the most losses of one append."""
    most = 0
    for _ in range(count):
        losses = 0
        state = await loaded(store, "a")
        while True:
            try:
                await commit(store, append(state, b"x"))
                break
            except OutdatedError:
                losses += 1
                locked = (await store.locked([state.id]))[state.id]
                assert locked is not None
                state = locked  # type: ignore[assignment]
        most = max(most, losses)
    return most


def test_writers_of_one_stream_lose_once_at_most() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 3) as stores:
            await commit(stores[0], creation(1, "a"))
            losses = await asyncio.gather(*(_contend(store, 10) for store in stores))
            assert max(losses) <= 1
            assert await text(stores[0], 1) == b"x" * 30

    asyncio.run(main())


def test_ids_grow_over_all_servers() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as stores:
            last = 0
            for _ in range(3):
                for store in stores:
                    some = await asyncio.gather(*(store.reserve_id() for _ in range(3)))
                    assert len(set(some)) == 3
                    assert min(some) > last
                    last = max(some)
            async with opened(postgres().clean_database()) as (later,):
                assert await later.reserve_id() > 10**15

    asyncio.run(main())


def test_servers_hear_of_what_others_have_changed() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            heard: list[Moved] = []
            await other.watch(heard.extend)
            await commit(one, creation(1, "a"), creation(2, "b" * 900))
            state = await loaded(one, "a")
            await wait_until_async(lambda: len(heard) >= 2)
            assert set(heard) == {Moved(1, "a", 1), Moved(2, "b" * 900, 1)}
            await commit(other, append(await loaded(other, "b" * 900), b"x"))  # its own are not announced to it
            await commit(one, append(state, b"x"))
            await wait_until_async(lambda: Moved(1, "a", 2) in heard)
            await commit(one, deletion(state))
            await wait_until_async(lambda: Moved(1, "a", 0) in heard)
            assert len(heard) == 4

    asyncio.run(main())


def test_the_last_batch_of_a_server_that_stops_is_announced() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (other,):
            heard: list[Moved] = []
            await other.watch(heard.extend)
            async with opened(url) as (one,):
                await commit(one, creation(1, "a"))
            await wait_until_async(lambda: heard == [Moved(1, "a", 1)])

    asyncio.run(main())


def test_moved_since_leaves_nothing_out() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url, 2) as (one, other):
            await commit(one, creation(1, "a"), creation(2, "b"))
            moved, cursor = await other.moved_since("")
            assert moved == []
            a = await loaded(one, "a")
            await commit(one, append(a, b"x"))
            await commit(one, append(a, b"y"))
            await commit(other, append(await loaded(other, "b"), b"own"))
            moved, next_cursor = await other.moved_since(cursor)
            assert moved == [Moved(1, "a", 3)]
            await commit(one, deletion(await loaded(one, "b")))
            assert (await other.moved_since(next_cursor))[0] == [Moved(2, "b", 0)]
            assert sorted((await other.moved_since(cursor))[0]) == [Moved(1, "a", 3), Moved(2, "b", 0)]

    asyncio.run(main())


def test_moved_since_finds_a_transaction_that_was_open_at_the_moment_of_the_cursor() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"), creation(2, "b"))
            late = await loaded(one, "a")
            await one.locked([1])  # a transaction that has begun
            _, cursor = await other.moved_since("")
            await commit(one, append(late, b"late"))
            assert (await other.moved_since(cursor))[0] == [Moved(1, "a", 2)]

    asyncio.run(main())


def test_a_cursor_that_is_older_than_the_list_of_moves() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url, 2) as (one, other):
            await commit(one, creation(1, "a"), creation(2, "b"))
            _, cursor = await other.moved_since("")
            await commit(one, append(await loaded(one, "a"), b"x"))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "UPDATE headwater.meta SET horizon = (SELECT xid FROM headwater.moves ORDER BY xid DESC LIMIT 1)"
                )
                connection.execute("DELETE FROM headwater.moves")
            assert (await other.moved_since(cursor))[0] == [Moved(1, "a", 2)]

    asyncio.run(main())


def test_a_role_is_held_by_one_server_at_a_time() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            first = await one.hold("views", 60)
            assert first is not None
            assert 0 < first.left_s <= 60
            assert await other.hold("views", 60) is None
            assert await other.hold("webhooks", 60) is not None
            again = await one.hold("views", 60)
            assert again is not None
            assert again.token == first.token
            await one.release(again)
            second = await other.hold("views", 0)
            assert second is not None
            assert second.token == first.token + 1
            await one.release(first)  # too late: it changes nothing
            third = await one.hold("views", 60)  # the other one had it for no time
            assert third is not None
            assert third.token == first.token + 2

    asyncio.run(main())


def test_producers_are_written_with_the_batch() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"))
            state = await loaded(one, "a")
            await commit(
                one,
                append(state, b"1", ProducerTuple("p", 0, 0)),
                append(state, b"2", ProducerTuple("q", 1, 0)),
                append(state, b"3", ProducerTuple("p", 0, 1)),
            )
            assert await loaded(other, "a") == state
            assert list((await loaded(other, "a")).producers) == ["q", "p"]

    asyncio.run(main())
