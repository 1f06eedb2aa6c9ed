from __future__ import annotations

import pytest

from headwater.errors import StreamFullError, TooManyStreamsError
from headwater.log.commands import Append, Command, Create, Delete, ForkRequest
from headwater.log.deciding import decide
from headwater.log.producers import ProducerTuple
from headwater.log.quotas import Quotas
from tests.unit.log.world import World


class Bounded(World):
    """A world with quotas."""

    def __init__(self, **quotas: int) -> None:
        super().__init__()
        self.quotas = Quotas(**quotas)

    @property
    def count(self) -> int:
        return len(self.states)

    def create(self, path: str, body: bytes = b"", **more: object) -> None:
        self.next_id += 1
        self.ask(
            Create(path=path, now_ms=1, stream_id=self.next_id, content_type="text/plain", body=body, **more)  # type: ignore[arg-type]
        )

    def append(self, path: str, body: bytes, **more: object) -> None:
        self.ask(Append(path, 2, body, "text/plain", **more))  # type: ignore[arg-type]

    def ask(self, command: Command) -> None:
        self.quotas.check(self, decide(self, command, 100).events)
        self.run(command)


def test_without_quotas_nothing_is_checked() -> None:
    assert not Quotas()
    assert Quotas(streams_max=1)
    assert Quotas(stream_bytes_max=1)


def test_a_create_beyond_the_quota_is_refused_until_a_stream_is_deleted() -> None:
    world = Bounded(streams_max=2)
    world.create("a")
    world.create("b")
    with pytest.raises(TooManyStreamsError, match="2 streams"):
        world.create("c")
    world.create("a")  # it exists
    world.ask(Delete("a", 3))
    world.create("c")


def test_an_expired_stream_does_not_count_when_it_is_replaced() -> None:
    world = Bounded(streams_max=1)
    world.create("a", expires_ms=1_000)
    again = Create(path="a", now_ms=2_000, stream_id=9, content_type="text/plain")
    world.ask(again)
    assert world.count == 1


def test_a_fork_counts_as_a_stream() -> None:
    world = Bounded(streams_max=1)
    world.create("a", b"one")
    with pytest.raises(TooManyStreamsError):
        world.create("b", fork=ForkRequest("a"))


def test_an_append_beyond_the_quota_is_refused_as_a_whole() -> None:
    world = Bounded(stream_bytes_max=10)
    world.create("a", b"12345")
    with pytest.raises(StreamFullError, match="has 5 bytes; 6 more"):
        world.append("a", b"123456")
    world.append("a", b"12345", producer=ProducerTuple("p", 0, 0))
    with pytest.raises(StreamFullError):
        world.append("a", b"1")
    world.append("a", b"12345", producer=ProducerTuple("p", 0, 0))  # a retry
    world.append("a", b"", close=True)


def test_a_create_with_a_body_beyond_the_quota_is_refused() -> None:
    with pytest.raises(StreamFullError):
        Bounded(stream_bytes_max=2).create("a", b"123")


def test_the_inherited_bytes_of_a_fork_do_not_count() -> None:
    world = Bounded(stream_bytes_max=4)
    world.create("a", b"1234")
    world.create("b", fork=ForkRequest("a"))
    world.append("b", b"1234")
    with pytest.raises(StreamFullError):
        world.append("b", b"5")
