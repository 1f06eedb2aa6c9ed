from __future__ import annotations

import pytest

from headwater import limits
from headwater.errors import NewEpochSequenceError, SequenceGapError, StaleEpochError, TooManyProducersError
from headwater.log.commands import Append, Create
from headwater.log.producers import ProducerTuple
from tests.unit.log.world import World

DAY_MS = 86_400_000


def with_stream() -> World:
    world = World()
    world.run(Create(path="s", stream_id=1, now_ms=0, content_type="text/plain"))
    return world


def append(world: World, now_ms: int, *producer: object) -> bool:
    command = Append("s", now_ms, b"x", "text/plain", ProducerTuple(*producer))  # type: ignore[arg-type]
    return world.run(command).duplicate


def test_idle_producers_expire_and_never_write_twice() -> None:
    world = with_stream()
    append(world, 0, "once", 3, 0)
    append(world, 0, "many", 0, 0)
    append(world, 0, "many", 0, 1)
    later_ms = 31 * DAY_MS
    append(world, later_ms, "new", 0, 0)
    state = world.at("s")
    assert state is not None
    assert not {"once", "many"} & set(state.producers)
    for retry in (("once", 3, 0), ("once", 2, 0), ("many", 0, 1), ("many", 0, 0), ("many", 0, 2)):
        with pytest.raises(StaleEpochError, match="expired") as error:
            append(world, later_ms, *retry)
        assert error.value.epoch == (3 if retry[0] == "once" else 0)
    with pytest.raises(NewEpochSequenceError):
        append(world, later_ms, "once", 4, 1)
    assert not append(world, later_ms, "once", 4, 0)
    assert append(world, later_ms, "once", 4, 0)
    assert append(world, later_ms, "new", 0, 0)


def test_producers_in_use_do_not_expire() -> None:
    world = with_stream()
    for number in range(20):
        append(world, 0, f"p{number}", 0, 0)
    for number in range(10):
        append(world, 20 * DAY_MS, f"p{number}", 0, 1)
    for number in range(20):
        append(world, 31 * DAY_MS, f"new{number}", 0, 0)
    state = world.at("s")
    assert state is not None
    assert list(state.producers) == [f"p{number}" for number in range(10)] + [f"new{number}" for number in range(20)]
    assert len(state.expired_producers) == 10


def test_a_new_producer_expires_a_bounded_number() -> None:
    world = with_stream()
    for number in range(50):
        append(world, 0, f"p{number}", 0, 0)
    append(world, 31 * DAY_MS, "new", 0, 0)
    state = world.at("s")
    assert state is not None
    assert len(state.expired_producers) == limits.PRODUCERS_EXPIRED_AT_ONCE


def test_a_producer_beyond_the_limit_is_refused_until_one_is_idle() -> None:
    world = with_stream()
    world.producers_max = 3
    for number in range(3):
        append(world, number * DAY_MS, f"p{number}", 0, 0)
    append(world, 25 * DAY_MS, "p0", 0, 1)  # now p1 is the one that was idle longest
    for now_ms in (25 * DAY_MS, 30 * DAY_MS):
        with pytest.raises(TooManyProducersError, match="the limit is 3"):
            append(world, now_ms, "new", 0, 0)
    assert append(world, 30 * DAY_MS, "p1", 0, 0)  # a retry is recognised
    assert not append(world, 30 * DAY_MS, "p2", 0, 1)  # known producers go on
    with pytest.raises(SequenceGapError):
        append(world, 30 * DAY_MS, "new", 0, 5)
    assert not append(world, 32 * DAY_MS, "new", 0, 0)
    with pytest.raises(StaleEpochError, match="expired"):
        append(world, 32 * DAY_MS, "p1", 0, 1)


def test_long_ids_are_kept_as_digests() -> None:
    world = with_stream()
    first, second = "p" * 1000 + "1", "p" * 1000 + "2"
    append(world, 0, first, 0, 0)
    append(world, 0, second, 0, 0)
    append(world, 0, second, 0, 1)
    assert append(world, 0, first, 0, 0)
    assert append(world, 0, second, 0, 1)
    with pytest.raises(SequenceGapError):
        append(world, 0, first, 0, 2)
    state = world.at("s")
    assert state is not None
    assert [len(key) <= limits.PRODUCER_KEY_LENGTH_MAX for key in state.producers] == [True, True]
    append(world, 31 * DAY_MS, "new", 0, 0)
    with pytest.raises(StaleEpochError, match="expired"):
        append(world, 31 * DAY_MS, first, 0, 0)
