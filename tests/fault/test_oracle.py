"""What the oracle of the simulations takes for a broken promise."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from headwater.engine.catalogue import loaded_stream
from headwater.engine.messages import VisibleStream
from headwater.log.content import ContentKind
from headwater.log.state import StreamState
from tests.fault.oracle import BrokenPromiseError, check_messages
from tests.fault.sim_disk import SimDisk
from tests.fault.world import World


def test_the_messages_of_a_writer_for_one_stream_are_in_order_and_stored_once() -> None:
    assert check_messages("a", b"<created:4><w1@4:1><w2@4:9..><w1@4:3>") == {1, 3, 9}
    with pytest.raises(BrokenPromiseError, match="out of order"):
        check_messages("a", b"<w1@4:3><w1@4:1>")
    with pytest.raises(BrokenPromiseError, match="stored twice"):
        check_messages("a", b"<w1@4:3><w2@4:4><w1@4:3>")


def test_an_append_that_waited_reaches_a_fork_after_later_messages_to_its_source() -> None:
    assert check_messages("fork/1", b"<w5@96:184><created:110><w5@80:169>") == {169, 184}


def stream(**more: Any) -> VisibleStream:
    state = StreamState(
        id=1,
        path="a",
        content_type="text/plain",
        kind=ContentKind.TEXT,
        accessed_ms=0,
        tail=0,
        **{"created_ms": 15} | more,
    )
    return loaded_stream(state, durable=True).info()


def test_a_stream_without_a_reply_that_has_expired_may_exist_again() -> None:
    """If the clock is set back before its deletion is durable. Any other is one that was deleted."""
    world = World(random.Random(0), SimDisk(random.Random(0)))
    world.uncertain["a"] = 10
    assert world.may_exist(stream())
    world.end_life(20)
    world.note_absent("a", 30)
    world.note_absent("b", 30)
    world.uncertain.clear()
    assert world.may_exist(stream(expires_ms=30))
    for other in (
        stream(),
        stream(expires_ms=31),
        stream(expires_ms=30, created_ms=9),
        stream(expires_ms=30, created_ms=21),
    ):
        assert not world.may_exist(other)
    assert not world.may_exist(msgspec.structs.replace(stream(expires_ms=30), path="b"))
