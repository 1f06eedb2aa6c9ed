from __future__ import annotations

import pytest

from headwater.errors import QuotaExceededError, StreamFullError, TooManyStreamsError
from headwater.log.commands import Append, Command, Create, Delete, ForkRequest
from headwater.log.deciding import decide
from headwater.log.events import Deleted
from headwater.log.producers import ProducerTuple
from headwater.log.quotas import Prefixes, PrefixQuota, Quota, Quotas, TokenQuota, TokenQuotas, Usage
from tests.unit.log.world import World


class Bounded(World):
    """A world with quotas."""

    def __init__(self, streams_max: int = 0, stream_bytes_max: int = 0, *quotas: Quota) -> None:
        super().__init__()
        self.tokens = TokenQuotas(quota for quota in quotas if isinstance(quota, TokenQuota))
        prefixes = Prefixes(quota for quota in quotas if isinstance(quota, PrefixQuota))
        self.usage = Usage(prefixes, self.tokens)
        self.quotas = Quotas(streams_max, stream_bytes_max, self.usage)

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
        events = decide(self, command, 100, 100).events
        self.quotas.check(self, events)
        before = {event.id: self.get(event.id) for event in events if isinstance(event, Deleted)}
        self.run(command)
        self.usage.note(events, lambda stream_id: before.get(stream_id) or self.get(stream_id))


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


# Prefixes


def test_a_prefix_covers_its_path_and_what_is_below() -> None:
    a, ab = PrefixQuota("a", streams_max=1), PrefixQuota("a/b", streams_max=1)
    prefixes = Prefixes([a, ab, PrefixQuota("c", bytes_max=1)])
    for path, covering in (
        ("a", (a,)),
        ("a/x", (a,)),
        ("a/b", (a, ab)),
        ("a/b/c/d", (a, ab)),
        ("a/bc", (a,)),
        ("ab", ()),
        ("x/a", ()),
        ("\x01a/b/t", (a, ab)),
        ("\x02a", ()),
    ):
        assert prefixes.of(path) == covering, path
        assert prefixes.of(path) == covering, path  # cached
    assert prefixes.outermost == ["a", "c"]


def test_streams_below_a_prefix() -> None:
    world = Bounded(0, 0, PrefixQuota("a", streams_max=2), PrefixQuota("a/b", streams_max=1))
    world.create("a/b/1")
    with pytest.raises(TooManyStreamsError, match="below 'a/b'; the limit is 1"):
        world.create("a/b/2")
    world.create("a/2")
    with pytest.raises(TooManyStreamsError, match="below 'a'; the limit is 2"):
        world.create("a/3")
    world.create("b")
    world.create("a/2")  # exists
    world.ask(Delete("a/b/1", 3))
    world.create("a/3")
    assert (world.usage.of(PrefixQuota("a")).streams, world.usage.of(PrefixQuota("a/b")).streams) == (2, 0)


def test_bytes_below_a_prefix() -> None:
    world = Bounded(0, 0, PrefixQuota("a", bytes_max=10))
    world.create("a/1", b"123456")
    world.create("a/2")
    world.append("a/2", b"1234")
    with pytest.raises(QuotaExceededError, match="have 10 bytes; 1 more exceed the limit of 10"):
        world.append("a/2", b"5")
    with pytest.raises(QuotaExceededError):
        world.create("a/3", b"5")
    world.create("a/3")
    world.create("b", b"5")
    world.ask(Append("a/2", 3, b"", close=True))  # adds nothing
    world.ask(Delete("a/1", 4))
    assert world.usage.of(PrefixQuota("a")).bytes == 4
    world.append("a/3", b"123456")


def test_a_withdrawn_record_is_not_counted() -> None:
    world = Bounded(0, 0, PrefixQuota("a", bytes_max=10))
    world.create("a/1", b"123")
    events = decide(world, Append("a/1", 2, b"4567", "text/plain"), 100, 100).events
    world.usage.note(events, world.get)
    assert world.usage.of(PrefixQuota("a")).bytes == 7
    world.usage.note(events, world.get, -1)
    assert (world.usage.of(PrefixQuota("a")).streams, world.usage.of(PrefixQuota("a")).bytes) == (1, 3)


# Tokens


def used(world: Bounded, owner: str) -> tuple[int, int]:
    use = world.usage.of(TokenQuota(owner))
    return use.streams, use.bytes


def test_streams_and_bytes_of_a_token() -> None:
    world = Bounded(0, 0, TokenQuota("ci", streams_max=2, bytes_max=10), PrefixQuota("a", streams_max=3))
    world.create("a/1", b"123456", owner="ci")
    world.create("b", owner="ci")
    with pytest.raises(TooManyStreamsError, match="of the token 'ci'; the limit is 2"):
        world.create("c", owner="ci")
    world.create("a/1", b"123456", owner="ci")  # exists
    world.create("a/2", b"1" * 20, owner="other")
    world.create("a/3", b"1" * 20)
    world.append("b", b"1234")  # counts for the owner, whoever appends
    with pytest.raises(QuotaExceededError, match="of the token 'ci' have 10 bytes; 1 more exceed the limit of 10"):
        world.append("b", b"5")
    with pytest.raises(TooManyStreamsError, match="below 'a'"):
        world.create("a/4", owner="other")
    assert (used(world, "ci"), used(world, "other")) == ((2, 10), (1, 20))
    world.ask(Delete("a/1", 4))
    assert used(world, "ci") == (1, 4)
    world.create("c", b"123456", owner="ci")


def test_the_quotas_of_tokens_change() -> None:
    world = Bounded(0, 0, TokenQuota("ci", streams_max=1))
    for path in ("1", "2"):
        world.create(path, owner="other")  # counted from the start, although it has no quota
    world.create("3", owner="ci")
    world.tokens.use([TokenQuota("other", streams_max=2)])
    with pytest.raises(TooManyStreamsError, match="of the token 'other'; the limit is 2"):
        world.create("4", owner="other")
    world.create("4", owner="ci")
    world.tokens.use([])
    world.create("5", owner="other")
    world.tokens.use([TokenQuota("other", streams_max=2)])
    assert used(world, "other") == (3, 0)  # more than it may have
    world.append("5", b"x")
    assert not world.usage.is_incomplete


def test_the_first_quota_of_streams_needs_a_count_at_the_start() -> None:
    world = Bounded(0, 0, TokenQuota("ci", appends_per_s=1, live_readers_max=1))
    assert not world.usage
    world.tokens.use([TokenQuota("ci", bytes_max=1)])
    assert world.usage.is_incomplete
    world.create("1", b"12", owner="ci")  # is not refused by a count that is not known
