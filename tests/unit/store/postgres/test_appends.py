"""Batches that only append, which have a function of their own, and calls of it."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import psycopg
import pytest

from headwater import limits
from headwater.log.producers import ProducerTuple
from headwater.log.state import StreamState, evolve
from headwater.store.contract import Commit, OutdatedError
from headwater.store.postgres.appends import encode_appends
from headwater.store.postgres.arrays import decode_ints, ints
from headwater.store.postgres.batches import StoringFunction
from tests.postgres import postgres
from tests.unit.store.postgres.servers import (
    append,
    commit,
    comparing,
    created,
    creation,
    deletion,
    loaded,
    opened,
    text,
)


def state_of(stream_id: int = 1) -> StreamState:
    state = evolve(None, created(stream_id, f"s{stream_id}"))
    assert state is not None
    return state


def test_numbers_of_an_array_are_decoded() -> None:
    for numbers in ([], [0], [7, 2**31 - 1, -1, 0]):
        assert decode_ints(ints(numbers).data) == numbers
    assert decode_ints(struct.pack(">3i", 0, 0, 23)) == []


def test_only_appends_to_one_stream_each_are_encoded_as_appends() -> None:
    def is_simple(*batch: Commit) -> bool:
        return encode_appends(batch) is not None

    state = state_of()
    assert is_simple(append(state, b"x"), append(state_of(2), b"y"), append(state, b"z", ProducerTuple("p", 0, 0)))
    assert not is_simple(creation(1, "a"))
    assert not is_simple(append(state, b"x"), deletion(state_of(2)))
    assert not is_simple(append(state, b"x"), comparing({2: 1}))
    assert not is_simple(append(state, b"x"), append(state, b""))
    assert not is_simple(append(state, b"x" * limits.POSTGRES_CHUNK_BYTES), append(state, b"x"))
    reading = append(state, b"x")
    reading.expects = {1: 1, 2: 1}
    assert not is_simple(reading)
    reading.expects = {2: 1}
    assert not is_simple(append(state, b"x"), reading)


def _batch(first_id: int, states: dict[int, StreamState]) -> list[Commit]:
    """Appends to two streams, one of them with a deadline, by producers."""
    one, other = states[first_id], states[first_id + 1]
    producer = ProducerTuple("p", 1, 0)
    return [
        append(other, b"a"),
        append(one, b"b", producer),
        append(one, b"cc", ProducerTuple("q", 2, 5)),
        append(other, b"d", producer),
        append(one, b"e", ProducerTuple("p", 1, 1)),
    ]


def test_both_functions_write_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            for first_id in (1, 3):
                await commit(store, creation(first_id, f"s{first_id}"), _with_a_deadline(first_id + 1))
                states = {one: await loaded(store, f"s{one}") for one in (first_id, first_id + 1)}
                if first_id == 3:
                    monkeypatch.setattr("headwater.store.postgres.store.encode_appends", lambda batch: None)
                await commit(store, *_batch(first_id, states))

    asyncio.run(main())
    for columns in (
        "streams, id, version, due_ms",
        "fresh, stream_id, start, size, last_ms, data",
        "producers, stream_id, producer, epoch, seq, at_ms, turn, hash",
    ):
        table, key, names = columns.split(", ", 2)
        with psycopg.connect(url) as connection:
            rows = [
                connection.execute(
                    f"SELECT {key} - %s, {names} FROM headwater.{table} WHERE {key} IN (%s, %s) ORDER BY 1, 2, 3",
                    (first_id, first_id, first_id + 1),
                ).fetchall()
                for first_id in (1, 3)
            ]
        assert rows[0] == rows[1]
        assert {row[0] for row in rows[0]} == {0, 1}, table


def _with_a_deadline(stream_id: int) -> Commit:
    event = msgspec.structs.replace(created(stream_id, f"s{stream_id}"), ttl_s=60)
    return Commit((event,), (evolve(None, event),), {event.path: 0, stream_id: 0})


def test_a_stream_that_has_the_version_after_the_batch_already_is_outdated() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (one, other):
            await commit(one, creation(1, "a"), creation(2, "b"))
            its, free = await loaded(other, "a"), await loaded(other, "b")
            await commit(one, append(await loaded(one, "a"), b"mine"))
            batch = [append(free, b"free", ProducerTuple("p", 0, 0)), append(its, b"its", ProducerTuple("p", 0, 0))]
            assert (await loaded(one, "a")).version == its.version
            with pytest.raises(OutdatedError) as caught:
                await commit(other, *batch)
            assert caught.value.records == [1]
            assert (await text(one, 1), await text(one, 2)) == (b"mine", b"free")
            assert not (await loaded(one, "a")).producers
            assert (await loaded(one, "b")).producers

    asyncio.run(main())


@pytest.mark.parametrize("only_appends", [True, False])
def test_a_batch_of_a_former_epoch_is_refused(*, only_appends: bool) -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            state = await loaded(store, "a")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("UPDATE headwater.servers SET epoch = epoch + 1")  # as a new connection does
            before = store._parts.writer.reconnects
            await commit(store, append(state, b"x"), *([] if only_appends else [creation(2, "b")]))
            assert store._parts.writer.reconnects == before + 1, "the batch is sent again on a new connection"
            assert await text(store, 1) == b"x"

    asyncio.run(main())


def test_who_has_locks_does_not_wait_for_others() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"), creation(2, "b"))
            a, b = (await store.locked([1]))[1], await loaded(store, "b")
            assert isinstance(a, StreamState)
            with psycopg.connect(url) as connection:
                connection.execute("SELECT FROM headwater.streams WHERE id = 2 FOR UPDATE")
                with pytest.raises(OutdatedError) as caught:
                    await commit(store, append(b, b"x"), append(a, b"y"))
            assert caught.value.records == [0]
            assert (await text(store, 1), await text(store, 2)) == (b"y", b"")

    asyncio.run(main())


def test_a_batch_that_is_larger_than_what_a_socket_takes_is_stored() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database()) as (store,):
            await commit(store, *(creation(stream_id, f"s{stream_id}") for stream_id in range(1, 101)))
            data = b"x" * 200_000
            batch = [append(await loaded(store, f"s{stream_id}"), data) for stream_id in range(1, 101)]
            encoded = encode_appends(batch)
            assert encoded is not None
            assert encoded.function is StoringFunction.APPENDS
            await commit(store, *batch)
            assert await text(store, 100) == data

    asyncio.run(main())
