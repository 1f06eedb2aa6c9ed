"""Decisions that the random model does not cover."""

from __future__ import annotations

import pytest

from headwater.errors import ConfigurationError, ReadOnlyError, StreamGoneError
from headwater.log.commands import Append, Create, Delete, ForkRequest, WriteDocument
from headwater.log.content import ContentKind
from headwater.log.events import Keeper
from headwater.log.producers import ProducerTuple
from tests.unit.log.world import World

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"
ROW = b"7\t2026-11-15T08:00:00.000Z\t+\tk\tr\n"


def create(world: World, kind: ContentKind, *, closed: bool = False) -> int:
    tail = world.run(
        Create(path="t", now_ms=0, stream_id=world.next_id, content_type=TYPE, kind=kind, closed=closed)
    ).tail
    assert tail is not None
    world.next_id += 1
    return tail.id


@pytest.mark.parametrize("kind", [ContentKind.ROWS, ContentKind.MIRROR])
@pytest.mark.parametrize("closed", [False, True])
def test_an_append_to_an_incarnation_is_refused_by_the_next_one(kind: ContentKind, closed: bool) -> None:
    world = World()
    first = create(world, ContentKind.MIRROR)
    assert world.run(Append("t", 0, ROW, TYPE, stream_id=first)).last_seqno == 7
    world.run(Delete("t", 0))
    second = create(world, kind, closed=closed)
    assert second != first
    before = len(world.history)
    for command in (
        Append("t", 0, ROW, TYPE, stream_id=first),
        Append("t", 0, b"", close=True, stream_id=first),
        Append("t", 0, ROW, TYPE, ProducerTuple("p", 0, 0), stream_id=first),
        Append("t", 0, ROW, TYPE, documents=(WriteDocument("d", b"1"),), stream_id=first),
    ):
        with pytest.raises(StreamGoneError):
            world.run(command)
    assert len(world.history) == before
    if not closed:
        assert world.run(Append("t", 0, b"", close=True, stream_id=second)).closed


def test_only_the_keeper_of_a_view_appends_to_it() -> None:
    world = World()
    world.run(Create(path="v", now_ms=0, stream_id=1, keeper=Keeper("view/1", "/v1/stream/s")))
    own = WriteDocument("view/1", b"1")
    for command in (
        Append("v", 0, b"x", "application/octet-stream"),
        Append("v", 0, b"", close=True),
        Append("v", 0, b"x", "application/octet-stream", documents=(WriteDocument("view/2", b"1"),)),
    ):
        with pytest.raises(ReadOnlyError, match="a view of /v1/stream/s"):
            world.run(command)
    assert world.bytes_of(world.get(1)) == b""
    world.run(Append("v", 0, b"x", "application/octet-stream", documents=(own,)))
    assert world.bytes_of(world.get(1)) == b"x"
    assert world.run(Append("v", 0, b"", close=True, documents=(own,))).closed


@pytest.mark.parametrize("is_view", [False, True])
def test_a_view_and_a_stream_are_different_configurations(is_view: bool) -> None:
    world = World()
    keeper = Keeper("view/1", "/v1/stream/s")
    world.run(Create(path="v", now_ms=0, stream_id=1, keeper=keeper if is_view else None))
    with pytest.raises(ConfigurationError, match="is a view of /v1/stream/s" if is_view else "is no view"):
        world.run(Create(path="v", now_ms=0, stream_id=2, keeper=None if is_view else keeper))


def test_a_create_that_differs_in_its_source_says_what_is_there() -> None:
    """A fork names no content type: that of the stream that is there would be compared with the default."""
    world = World()
    world.run(Create(path="a", now_ms=0, stream_id=1, content_type="application/json"))
    world.run(Create(path="b", now_ms=0, stream_id=2, content_type="application/json"))
    with pytest.raises(ConfigurationError, match="different source: it is no fork"):
        world.run(Create(path="b", now_ms=0, stream_id=3, fork=ForkRequest("a")))
    world.run(Create(path="c", now_ms=0, stream_id=3, fork=ForkRequest("a")))
    with pytest.raises(ConfigurationError, match="different source: it is a fork of a\n"):
        world.run(Create(path="c", now_ms=0, stream_id=4, fork=ForkRequest("b")))
    with pytest.raises(ConfigurationError, match="different source: it is a fork of a at another offset"):
        world.run(Create(path="c", now_ms=0, stream_id=4, fork=ForkRequest("a", sub_offset=1)))
