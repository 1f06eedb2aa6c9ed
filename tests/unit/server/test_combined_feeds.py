"""Combined feeds: many streams over one connection that drains when the test says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from headwater.engine import Engine
from headwater.engine.messages import ReadMore, ReadReply
from headwater.errors import DamagedDataError, OffsetTrimmedError, OverloadedError, StreamNotFoundError, UrlTooLongError
from headwater.limits import COMBINED_READS_AT_ONCE, COMBINED_URL_BYTES_MAX, FRAME_BYTES_MAX, SSE_PIECE_BYTES, Limits
from headwater.log.commands import Append, Create, Delete
from headwater.protocol.streams.combined import CombinedQuery, EventIds, StreamStart, parse_id
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.streams.paths import LIVE_PATH
from headwater.protocol.subscriptions.config import Delivery, SubscriptionConfig
from headwater.server.auth.callers import Caller
from headwater.server.auth.grants import Grant, GrantedCallers
from headwater.server.auth.scopes import parse_scopes
from headwater.server.http import Frame, Request, url_fault
from headwater.server.service import Service
from headwater.server.streams.combined import follow
from headwater.server.streams.combined_feeds import CombinedFeed
from headwater.server.subscriptions import Subscriptions
from headwater.server.subscriptions.records import SubscriptionRecord
from headwater.store.memory import MemoryStore
from tests import virtual_time
from tests.combined import CombinedEvents
from tests.unit.server.subscriptions.rig import Receiver
from tests.waiting import LIMIT_S

JSON = "application/json"


class Sink(CombinedEvents):
    """A connection that takes `room_bytes` before it is full."""

    def __init__(self, room_bytes: int = 1 << 30) -> None:
        super().__init__()
        self.room_bytes = room_bytes
        self.frames: list[Frame] = []
        self.ended = False
        self._unread_bytes = 0

    @property
    def blocked(self) -> bool:
        return self._unread_bytes >= self.room_bytes

    def write(self, frame: Frame) -> None:
        assert not self.ended
        self.receive(frame.body)
        self.frames.append(frame)
        self._unread_bytes += len(frame.body)

    def drain(self, feed: CombinedFeed) -> None:
        blocked, self._unread_bytes = self.blocked, 0
        if blocked:
            feed.drained()

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        raise AssertionError("the feed was aborted")


class World:
    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine = engine
        self.service = Service(engine, limits)

    async def create(self, *paths: str) -> None:
        for path in paths:
            await self.engine.execute(Create(path=path, now_ms=self.engine.now_ms(), content_type=JSON))

    async def append(self, path: str, *messages: object, close: bool = False) -> None:
        body = json.dumps(messages).encode() if messages else b""
        await self.engine.execute(Append(path, self.engine.now_ms(), body, JSON, close=close))

    async def delete(self, path: str) -> None:
        await self.engine.execute(Delete(path, self.engine.now_ms()))

    async def subscribe(self, pattern: str) -> Subscriptions:
        """A subscription `s`, with its service."""
        service = Subscriptions(self.engine, Receiver(), GrantedCallers(None))  # type: ignore[arg-type]
        self.service = msgspec.structs.replace(self.service, subscriptions=service)
        await service.start()
        service.begin()
        config = SubscriptionConfig(Delivery.PULL_WAKE, pattern, wake_stream="wake")
        await service.create(SubscriptionRecord("s", "", config, 0, Grant(""), "http://server.example"))
        return service

    async def open(
        self, sink: Sink, *starts: str, last: str = "", caller: Caller | None = None, query: str = ""
    ) -> CombinedFeed | None:
        request = Request("GET", "/", "&".join([*(f"stream={start}" for start in starts), query]), {}, b"")
        if last:
            request.headers["last-event-id"] = last
        if caller is not None:
            request.caller = caller
        response = await follow(self.service, request, "")
        if response.feed is None:
            assert response.status == 204
            return None
        assert isinstance(response.feed, CombinedFeed)
        response.feed.open(sink, 0.0)
        return response.feed


def run(test: Callable[[World], Awaitable[None]], **limits: float) -> None:
    async def main() -> None:
        bounds = Limits(**limits)  # type: ignore[arg-type]
        engine = Engine(MemoryStore(), bounds)
        await engine.start()
        await test(World(engine, bounds))
        await engine.stop()

    virtual_time.run(main())


async def until(condition: Callable[[], bool], then: Callable[[], None] = lambda: None) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            then()
            await asyncio.sleep(0.001)


def test_each_stream_catches_up_and_is_live() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b", "c")
        await world.append("a", 1, 2)
        await world.append("b", "old")
        sink = Sink()
        feed = await world.open(sink, "a", "b@now", "c")
        await until(lambda: len(sink.events) == 4)
        assert sink.messages("a") == [1, 2]
        assert [sink.controls(path) for path in "abc"] == [[{"upToDate"}]] * 3
        await world.append("b", "new")
        await world.append("c", 5)
        assert (sink.messages("b"), sink.messages("c")) == (["new"], [5])
        assert len(sink.events) == 6  # a stream that stays at its tail is not said to be there with every event
        assert feed is not None
        assert len(world.service.combined) == 1
        feed.cancel()
        assert not world.service.combined
        assert world.engine.report().subscribers["combined"] == 0

    run(test)


@pytest.mark.parametrize("place", [0, 25, 50])
def test_a_stream_with_a_long_history_does_not_delay_the_others(place: int) -> None:
    async def test(world: World) -> None:
        await world.create("long", *[f"short{n}" for n in range(50)])
        for n in range(200):
            await world.append("long", "x" * 2_000, n)
        for n in range(50):
            await world.append(f"short{n}", n)
        sink = Sink(room_bytes=10_000)
        starts = [f"short{n}" for n in range(50)]
        starts.insert(place, "long")
        feed = await world.open(sink, *starts)
        assert feed is not None
        await until(lambda: all(sink.messages(f"short{n}") for n in range(50)), lambda: sink.drain(feed))
        assert len(sink.messages("long")) < 20
        await world.append("short3", "live")
        await until(lambda: sink.messages("short3") == [3, "live"], lambda: sink.drain(feed))
        assert len(sink.messages("long")) < 40
        await until(lambda: len(sink.messages("long")) == 400, lambda: sink.drain(feed))
        assert sink.messages("long")[1::2] == list(range(200))
        feed.cancel()

    run(test, sse_chunk_bytes=2_000)


def test_a_connection_that_does_not_drain_reads_nothing_and_keeps_nothing() -> None:
    async def test(world: World) -> None:
        paths = [f"s{n}" for n in range(30)]
        await world.create(*paths)
        sink = Sink(room_bytes=3_000)
        feed = await world.open(sink, *paths)
        assert feed is not None
        await until(lambda: sink.blocked)
        size, reads = len(sink.received), 0
        read_more = world.engine.read_more

        async def counted(message: ReadMore) -> ReadReply:
            nonlocal reads
            reads += 1
            return await read_more(message)

        world.engine.read_more = counted  # type: ignore[method-assign]
        for n in range(20):
            for path in paths:
                await world.append(path, n)
        await asyncio.sleep(1)
        assert (len(sink.received), reads) == (size, 0)
        await until(lambda: all(len(sink.messages(path)) == 20 for path in paths), lambda: sink.drain(feed))
        assert all(sink.messages(path) == list(range(20)) for path in paths)
        await until(lambda: all(sink.controls(path)[-1:] == [{"upToDate"}] for path in paths), lambda: sink.drain(feed))
        feed.cancel()

    run(test)


def test_few_streams_are_read_at_the_same_time() -> None:
    async def test(world: World) -> None:
        paths = [f"s{n}" for n in range(20)]
        await world.create(*paths)
        for path in paths:
            await world.append(path, path)
        read_more, reading, most = world.engine.read_more, 0, 0

        async def slow(message: ReadMore) -> ReadReply:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0.01)
            reading -= 1
            return await read_more(message)

        world.engine.read_more = slow  # type: ignore[method-assign]
        sink = Sink()
        feed = await world.open(sink, *paths)
        await until(lambda: all(sink.messages(path) for path in paths))
        assert most == COMBINED_READS_AT_ONCE
        assert feed is not None
        feed.cancel()

    run(test)


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, 5 * SSE_PIECE_BYTES])
def test_nothing_is_written_inside_a_large_event(size: int) -> None:
    async def test(world: World) -> None:
        await world.create("large", "a", "b")
        sink = Sink(room_bytes=SSE_PIECE_BYTES)
        feed = await world.open(sink, "large", "a", "b")
        assert feed is not None
        await until(lambda: len(sink.events) == 3)
        await world.append("large", "x" * size)
        for n in range(50):
            await world.append("a", n)
        await world.append("b", "last", close=True)
        await world.append("large", "y" * size, close=True)
        await world.delete("a")
        await until(lambda: sink.ended, lambda: sink.drain(feed))
        assert sink.messages("large") == ["x" * size, "y" * size]
        assert sink.controls("large")[-1] == {"upToDate", "streamClosed"}
        assert sink.messages("a") == list(range(len(sink.messages("a"))))
        assert sink.controls("a")[-1] == {"deleted"}
        assert sink.messages("b") == ["last"]
        assert sink.controls("b")[-1] == {"upToDate", "streamClosed"}
        assert b"\n\n" not in sink.received.replace(b"\n\nevent: ", b"").removesuffix(b"\n\n")

    run(test)


def test_a_connection_resumes_where_its_last_event_was() -> None:
    async def test(world: World) -> None:
        starts = ("a", "b@now", "c@now", "d")
        await world.create("a", "b", "c", "d")
        await world.append("a", 1)
        await world.append("b", "before")
        sink = Sink()
        feed = await world.open(sink, *starts)
        assert feed is not None
        await until(lambda: len(sink.events) == 5)
        await world.append("b", 2)
        feed.cancel()
        await world.append("b", 3)
        await world.append("c", 4)
        await world.append("d", 5, close=True)
        again = Sink()
        feed = await world.open(again, *starts, last=sink.last_id)
        assert feed is not None
        await until(lambda: len(again.events) >= 6)
        assert again.controls("a") == []  # that it is up to date was told before
        assert [again.messages(path) for path in "abcd"] == [[], [3], [4], [5]]
        feed.cancel()
        await world.append("a", 6)
        third = Sink()
        feed = await world.open(third, *starts, last=again.last_id)
        assert feed is not None
        await until(lambda: len(third.events) >= 2)
        assert [third.messages(path) for path in "abcd"] == [[6], [], [], []]
        assert third.controls("d") == []  # that it was closed was told before
        feed.cancel()

    run(test)


def test_a_reader_that_left_before_it_was_told_that_it_is_up_to_date_is_told_when_it_resumes() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b")
        await world.append("a", 1)
        sink = Sink()
        feed = await world.open(sink, "a", "b")
        assert feed is not None
        await until(lambda: len(sink.events) == 3)
        feed.cancel()
        data = next(block for block in sink.received.decode().split("\n\n") if block.startswith("event: data"))
        again = Sink()
        feed = await world.open(again, "a", "b", last=data.rpartition("\nid:")[2])
        await until(lambda: {"upToDate"} in again.controls("a"))
        assert again.messages("a") == []
        assert feed is not None
        feed.cancel()

    run(test)


def test_a_deletion_and_a_closing_end_one_stream_and_the_last_one_the_response() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b", "c")
        sink = Sink()
        await world.open(sink, "a", "b", "c")
        await until(lambda: len(sink.events) == 3)
        await world.delete("a")
        await until(lambda: sink.controls("a")[-1] == {"deleted"})
        await world.append("b", close=True)
        await until(lambda: sink.controls("b")[-1] == {"upToDate", "streamClosed"})
        await world.append("c", 1)
        assert sink.messages("c") == [1]
        assert not sink.ended
        await world.create("a")  # another stream: its reader was told that the first was deleted
        await world.append("a", "other")
        assert sink.messages("a") == []
        await world.append("c", close=True)
        await until(lambda: sink.ended)
        assert await world.open(Sink(), "a", "b", "c", last=sink.last_id) is None

    run(test)


def test_a_deletion_between_two_connections_is_told_like_one_during_a_connection() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b", "c")
        await world.append("b", 1)
        sink = Sink()
        feed = await world.open(sink, "a", "b", "c")
        assert feed is not None
        await until(lambda: len(sink.events) == 4)
        feed.cancel()
        await world.delete("a")
        await world.delete("b")
        await world.create("b")
        await world.append("b", "of another stream")
        await world.append("c", 2)
        again = Sink()
        await world.open(again, "a", "b", "c", last=sink.last_id)
        await until(lambda: len(again.events) >= 4)
        assert (again.controls("a"), again.controls("b")) == ([{"deleted"}], [{"deleted"}])
        assert (again.messages("b"), again.messages("c")) == ([], [2])
        with pytest.raises(StreamNotFoundError) as caught:
            await world.open(Sink(), "b", "a")
        assert (caught.value.stream, "'a'" in str(caught.value)) == ("a", True)

    run(test)


def test_streams_that_may_not_be_read_any_more_end_and_the_others_go_on() -> None:
    async def test(world: World) -> None:
        await world.create("mine/a", "mine/b", "theirs")
        sink, caller = Sink(), Caller("one", parse_scopes(["read:**"]))
        feed = await world.open(sink, "mine/a", "theirs", "mine/b", caller=caller)
        assert feed is not None
        await until(lambda: len(sink.events) == 3)
        assert feed.keep_readable(Caller("one", parse_scopes(["read:mine/*"])))
        await world.append("theirs", "secret")
        await world.append("mine/a", 1)
        await until(lambda: sink.controls("theirs")[-1] == {"forbidden"})
        assert (sink.messages("theirs"), sink.messages("mine/a")) == ([], [1])
        feed.cancel()
        again = Sink()  # without an access check of a stream that is over
        lesser = Caller("one", parse_scopes(["read:mine/*"]))
        feed = await world.open(again, "mine/a", "theirs", "mine/b", caller=lesser, last=sink.last_id)
        await world.append("mine/b", 2)
        await until(lambda: again.messages("mine/b") == [2])
        assert feed is not None
        assert feed.keep_readable(Caller("one", parse_scopes(["read:other"])))
        await until(lambda: again.ended)
        assert again.controls("mine/b")[-1] == {"forbidden"}

    run(test)


def test_a_stream_that_cannot_be_read_ends_with_its_error_and_a_temporary_one_ends_the_response() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b")
        await world.append("a", 1)
        await world.append("b", 2)
        read_more, failures = world.engine.read_more, [DamagedDataError("the chunk"), OverloadedError("later")]
        info = await world.engine.info("b")

        async def failing(message: ReadMore) -> ReadReply:
            if message.stream_id == info.id and failures:
                raise failures.pop(0)
            return await read_more(message)

        world.engine.read_more = failing  # type: ignore[method-assign]
        sink = Sink()
        feed = await world.open(sink, "a", "b")
        assert feed is not None
        await until(lambda: bool(sink.controls("b")))
        error = sink.events[[event["stream"] for _, event in sink.events].index("b")][1]["error"]
        assert (error["type"], error["status"], error["detail"]) == ("urn:headwater:damaged-data", 500, "the chunk")
        await world.append("a", 3)
        assert sink.messages("a") == [1, 3]
        feed.cancel()
        again = Sink()  # it is tried again
        await world.open(again, "a", "b", last=sink.last_id)
        await until(lambda: again.ended)
        assert again.controls("b") == []
        third = Sink()
        feed = await world.open(third, "a", "b", last=again.last_id if again.events else sink.last_id)
        await until(lambda: third.messages("b") == [2])
        assert feed is not None
        feed.cancel()

    run(test)


def test_a_position_that_was_trimmed_while_the_reader_was_away_is_an_error_of_its_stream() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b")
        sink = Sink()
        feed = await world.open(sink, "a", "b")
        assert feed is not None
        await world.append("a", 1)
        await until(lambda: sink.messages("a") == [1])
        feed.cancel()
        await world.append("a", 2)
        info = await world.engine.info("a")
        await world.engine.trim("a", before=info.offset(info.tail))
        again = Sink()
        await world.open(again, "a", "b", last=sink.last_id)
        await until(lambda: bool(again.controls("a")))
        assert again.controls("a") == [{"error"}]
        error = next(event["error"] for _, event in again.events if event["stream"] == "a")
        assert (error["type"], error["status"]) == ("urn:headwater:offset-trimmed", 410)
        await world.append("b", 3)  # which goes on
        await until(lambda: again.messages("b") == [3])

    run(test)


def test_a_stream_of_a_subscription_that_cannot_be_read_is_told_once() -> None:
    """Reading it again at once would fail again, for ever."""

    async def test(world: World) -> None:
        await world.create("wake")
        subscriptions = await world.subscribe("a/*")
        await world.create("a/1", "a/2")
        await world.append("a/1", 1)
        read_more = world.engine.read_more

        async def failing(message: ReadMore) -> ReadReply:
            if message.stream_id == (await world.engine.info("a/1")).id:
                raise DamagedDataError("the chunk")
            return await read_more(message)

        world.engine.read_more = failing  # type: ignore[method-assign]
        sink = Sink()
        feed = await world.open(sink, query="subscription=s")
        assert feed is not None
        await until(lambda: bool(sink.controls("a/1")))
        await asyncio.sleep(10)  # in virtual time
        await world.append("a/2", 2)
        await until(lambda: sink.messages("a/2") == [2])
        assert sink.controls("a/1") == [{"error"}]
        feed.cancel()
        await subscriptions.stop()

    run(test)


def test_a_subscription_is_read_from_what_is_left_of_its_streams() -> None:
    async def test(world: World) -> None:
        await world.create("wake")
        subscriptions = await world.subscribe("a/*")
        await world.create("a/1")
        await world.append("a/1", 1)
        await world.append("a/1", 2)
        names = (await world.engine.info("a/1")).names
        await world.engine.trim("a/1", before=names.at(2))
        sink = Sink()
        feed = await world.open(sink, query="subscription=s")
        assert feed is not None
        await until(lambda: sink.messages("a/1") == [2])
        feed.cancel()
        await subscriptions.stop()

    run(test)


def test_a_stop_of_the_server_ends_the_response() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b")
        sink = Sink()
        await world.open(sink, "a", "b")
        await until(lambda: len(sink.events) == 2)
        world.engine.drain()
        await until(lambda: sink.ended)
        assert [len(sink.controls(path)) for path in "ab"] == [1, 1]

    run(test)


def test_the_lines_of_an_event_are_encoded_once_and_whole_events_are_shared_without_ids() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b")
        sinks = [Sink() for _ in range(6)]
        for n, sink in enumerate(sinks):
            await world.open(sink, "a", "b", query="ids=false" if n < 3 else "")
        await until(lambda: all(len(sink.events) == 2 for sink in sinks))
        await world.append("a", 1)
        assert len({id(sink.frames[-1]) for sink in sinks[:3]}) == 1
        assert all(sink.messages("a") == [1] for sink in sinks)
        assert b"id:" not in sinks[0].received
        assert sinks[3].received.count(b"\nid:") == len(sinks[3].events)

    run(test)


def test_every_id_resumes_after_its_event() -> None:
    async def test(world: World) -> None:
        paths = [f"s{n}" for n in range(5)]
        await world.create(*paths)
        sink = Sink()
        feed = await world.open(sink, *paths)
        assert feed is not None
        for n in range(20):
            await world.append(paths[n % 5], n, close=n == 19)
        await until(lambda: sum(len(sink.messages(path)) for path in paths) == 20)
        query = CombinedQuery(tuple(StreamStart(path) for path in paths))
        got: dict[str, str] = {}
        for block in sink.received.decode().split("\n\n")[:-1]:
            lines = block.split("\n")
            event = json.loads(lines[1].removeprefix("data:"))
            got[event["stream"]] = event["nextOffset"]
            reached = parse_id(query, lines[2].removeprefix("id:"))
            assert {paths[key]: f"{at.offset.id:016d}_{at.offset.position:016d}" for key, at in reached.items()} == got
        assert EventIds(query) is not None
        feed.cancel()

    run(test)


def test_a_feed_ends_after_its_lifetime_and_writes_keep_alives_before() -> None:
    async def test(world: World) -> None:
        await world.create("a")
        sink = Sink()
        feed = await world.open(sink, "a")
        assert feed is not None
        await until(lambda: len(sink.events) == 1)
        feed.tick(2.5)
        assert sink.received.endswith(b": keep-alive\n\n")
        feed.tick(10.0)
        assert sink.ended

    run(test, sse_lifetime_s=10, sse_keep_alive_s=2)


def test_the_url_of_a_combined_feed_may_be_longer_than_others() -> None:
    limits = Limits()
    assert url_fault(LIVE_PATH, COMBINED_URL_BYTES_MAX, limits) is None
    assert url_fault("/v1/stream/a", limits.url_bytes_max, limits) is None
    for path, length in ((LIVE_PATH, COMBINED_URL_BYTES_MAX + 1), ("/v1/stream/a", limits.url_bytes_max + 1)):
        assert isinstance(url_fault(path, length, limits), UrlTooLongError)


def test_a_reader_whose_position_is_trimmed_is_told_and_the_others_go_on() -> None:
    async def test(world: World) -> None:
        await world.create("a", "b")
        sink = Sink(room_bytes=1)
        opened = await world.open(sink, "a", "b")
        assert opened is not None
        for n in range(20):
            await world.append("a", n)
        await world.engine.trim("a")
        first = format_offset((await world.engine.info("a")).first_offset)
        await until(lambda: sink.controls("a")[-1:] == [{"error"}], lambda: sink.drain(opened))
        error = sink.events[-1][1]["error"]
        assert (error["type"], error["first_offset"]) == ("urn:headwater:offset-trimmed", first)
        assert sink.messages("a") == list(range(len(sink.messages("a"))))  # it is not moved
        await world.append("b", 1)
        await until(lambda: sink.messages("b") == [1], lambda: sink.drain(opened))
        opened.cancel()
        again = Sink()
        feed = await world.open(again, "a", "b", last=sink.last_id)
        assert feed is not None
        await world.append("b", 2)
        await until(lambda: again.messages("b") == [2] and again.controls("a") == [{"error"}])
        feed.cancel()
        with pytest.raises(OffsetTrimmedError, match="stream 'a'"):
            await world.open(Sink(), f"a@{sink.offset('a')}", "b")

    run(test, sse_chunk_bytes=1)


def test_a_feed_of_a_subscription_ends_when_another_server_gets_the_role() -> None:
    """Nothing would tell it of the streams that join from then on."""

    async def test(world: World) -> None:
        await world.create("events/1", "wake")
        subscriptions = await world.subscribe("events/*")
        sink = Sink()
        feed = await world.open(sink, query="subscription=s")
        assert feed is not None
        await world.append("events/1", 1)
        await until(lambda: sink.messages("events/1") == [1])
        await subscriptions.stop()
        feed.tick(1.0)
        assert sink.ended

    run(test)


def test_a_subscription_is_followed_where_the_role_is() -> None:
    async def test(world: World) -> None:
        response = await follow(world.service, Request("GET", "/", "subscription=s", {}, b""), "")
        assert (response.status, response.close) == (503, True)
        assert "repeat the request on a new connection" in bytes(response.body[0]).decode()

    run(test)
