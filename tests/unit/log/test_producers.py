from __future__ import annotations

import pytest

from headwater import limits
from headwater.errors import NewEpochSequenceError, StaleEpochError
from headwater.log.commands import Append, Create
from headwater.log.producers import ProducerTuple
from tests.unit.log.world import World

DAY_MS = 86_400_000


def append(world: World, now_ms: int, *producer: object) -> bool:
    command = Append("s", now_ms, b"x", "text/plain", ProducerTuple(*producer))  # type: ignore[arg-type]
    return world.run(command).duplicate


@pytest.mark.slow
def test_idle_producers_expire_and_never_write_twice() -> None:
    world = World()
    world.run(Create(path="s", stream_id=1, now_ms=0, content_type="text/plain"))
    append(world, 0, "once", 3, 0)
    append(world, 0, "many", 0, 0)
    append(world, 0, "many", 0, 1)
    later_ms = 31 * DAY_MS
    for number in range(limits.PRODUCERS_EXPIRED_EVERY):
        append(world, later_ms, f"new{number}", 0, 0)
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
    assert append(world, later_ms, "new5", 0, 0)


@pytest.mark.slow
def test_producers_in_use_do_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_EXPIRED_EVERY", 128)
    world = World()
    world.run(Create(path="s", stream_id=1, now_ms=0, content_type="text/plain"))
    for number in range(2 * limits.PRODUCERS_EXPIRED_EVERY):
        append(world, 29 * DAY_MS, f"p{number}", 0, 0)
    state = world.at("s")
    assert state is not None
    assert (len(state.producers), state.expired_producers) == (2 * limits.PRODUCERS_EXPIRED_EVERY, {})
