"""Feeds that catch up while something is appended."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from headwater.engine import Engine
from headwater.engine.messages import FindRow, Read, ReadMore, ReadReply
from headwater.errors import OffsetTrimmedError
from headwater.limits import FRAMES_SHARED_MAX, Limits
from headwater.log.commands import Append, Create
from headwater.log.content import ContentKind
from headwater.protocol.tables.paths import log_path
from headwater.server.http import Feed, Frame
from headwater.server.service import Service
from headwater.server.streams.feeds import EventFeed
from headwater.server.tables.feeds import RowFeed
from headwater.store.memory import MemoryStore
from tests import virtual_time


class Sink:
    blocked = False

    def __init__(self) -> None:
        self.written = b""

    def write(self, frame: Frame) -> None:
        self.written += frame.body

    def end(self) -> None:
        raise AssertionError("the feed ended")

    def abort(self) -> None:
        raise AssertionError("the feed was aborted")


class EndingSink(Sink):
    ended = False

    def end(self) -> None:
        self.ended = True


def test_a_feed_that_was_told_to_finish_before_it_was_opened_ends_and_writes_nothing() -> None:
    async def main() -> None:
        engine = Engine(MemoryStore(), Limits())
        await engine.start()
        service = Service(engine, Limits())
        await engine.execute(Create(path="a", now_ms=engine.now_ms(), content_type="text/plain", body=b"one"))
        rows = Create(
            path=log_path("t"),
            now_ms=engine.now_ms(),
            content_type="text/sequence",
            kind=ContentKind.ROWS,
            body=b"k\tv",
        )
        await engine.execute(rows)
        row = await engine.find_row(FindRow(log_path("t"), 0))
        feeds: list[Feed] = [
            EventFeed(service, await engine.read(Read("a")), 0),
            RowFeed(service, row.table, row.start, timeout_s=60, idle_s=60),
        ]
        for feed in feeds:
            sink = EndingSink()
            feed.finish()
            feed.open(sink, 0.0)
            await asyncio.sleep(0.01)
            assert sink.ended
            assert not sink.written
        await engine.stop()

    virtual_time.run(main())


def test_a_reader_that_reads_further_than_it_was_told_is_told_that_it_is_up_to_date() -> None:
    async def main() -> None:
        engine = Engine(MemoryStore(), Limits())
        await engine.start()
        await engine.execute(Create(path="a", now_ms=engine.now_ms(), content_type="text/plain", body=b"one"))
        await engine.execute(Append("a", engine.now_ms(), b"two", "text/plain"))
        appended, read_more = asyncio.Event(), engine.read_more

        async def late(message: ReadMore) -> ReadReply:
            await appended.wait()
            return await read_more(message)

        engine.read_more = late  # type: ignore[method-assign]
        reply = await engine.read(Read("a", bytes_max=1))
        session, sink = EventFeed(Service(engine, Limits()), reply, 0), Sink()
        session.open(sink, 0.0)
        engine.unfollow(reply.stream.id, session._follower)  # as if its turn to be told had yet to come
        await engine.execute(Append("a", engine.now_ms(), b"three", "text/plain"))
        appended.set()
        await asyncio.sleep(0.01)
        assert b"three" in sink.written
        assert b'"upToDate":true' in sink.written.rpartition(b"event: control")[2]
        session.cancel()
        await engine.stop()

    virtual_time.run(main())


def test_feeds_that_began_together_end_one_by_one_after_half_of_their_lifetime_or_later() -> None:
    async def main() -> None:
        limits = Limits(sse_lifetime_s=100, sse_keep_alive_s=1000)
        engine = Engine(MemoryStore(), limits)
        await engine.start()
        await engine.execute(Create(path="a", now_ms=engine.now_ms(), content_type="text/plain"))
        service, sinks = Service(engine, limits), [EndingSink() for _ in range(200)]
        feeds = [EventFeed(service, await engine.read(Read("a")), 0) for _ in sinks]
        for feed, sink in zip(feeds, sinks, strict=True):
            feed.open(sink, 0.0)
        ended = []
        for now_s in range(0, 101, 10):
            for feed in feeds:
                feed.tick(float(now_s))
            ended.append(sum(sink.ended for sink in sinks))
        assert ended[:5] == [0] * 5  # before 50 s
        assert ended[-1] == len(sinks)
        assert all(later - earlier < len(sinks) / 2 for earlier, later in itertools.pairwise(ended))
        await engine.stop()

    virtual_time.run(main())


def test_a_feed_writes_keep_alives_until_its_lifetime_ends() -> None:
    async def main() -> None:
        limits = Limits(sse_lifetime_s=10, sse_keep_alive_s=2)
        engine = Engine(MemoryStore(), limits)
        await engine.start()
        await engine.execute(Create(path="a", now_ms=engine.now_ms(), content_type="text/plain"))
        for chance, end_s in ((0.0, 10.0), (0.5, 7.5), (1.0, 5.0)):
            service, sink = Service(engine, limits, entropy=itertools.repeat(chance).__next__), EndingSink()
            feed = EventFeed(service, await engine.read(Read("a")), 0)
            feed.open(sink, 0.0)
            spoken_s, ended_s = [], 0.0
            for now_s in (number / 2 for number in range(30)):
                sink.written = b""
                feed.tick(now_s)
                if sink.written:
                    assert sink.written == b": keep-alive\n\n"
                    spoken_s.append(now_s)
                if sink.ended:
                    ended_s = now_s
                    break
            assert (spoken_s, ended_s) == ([second for second in (2.0, 4.0, 6.0, 8.0) if second < end_s], end_s)
        await engine.stop()

    virtual_time.run(main())


def test_cursors_that_clients_choose_do_not_fill_a_slice_that_is_kept() -> None:
    async def main() -> None:
        engine = Engine(MemoryStore(), Limits())
        await engine.start()
        await engine.execute(Create(path="a", now_ms=engine.now_ms(), content_type="text/plain", body=b"one"))
        service, reply = Service(engine, Limits()), await engine.read(Read("a"))
        for cursor in range(10**12, 10**12 + 2 * FRAMES_SHARED_MAX):
            feed, sink = EventFeed(service, reply, cursor), Sink()
            feed.open(sink, 0.0)
            assert b'"streamCursor":"%d"' % cursor in sink.written
            feed.cancel()
        assert len(engine.slices.of(reply).encoded) <= FRAMES_SHARED_MAX
        await engine.stop()

    virtual_time.run(main())


class FullSink(EndingSink):
    """A connection that takes one frame after the other."""

    def write(self, frame: Frame) -> None:
        super().write(frame)
        self.blocked = True


@pytest.mark.parametrize("kind", ["sse", "rows"])
def test_a_live_reader_whose_position_is_trimmed_is_not_moved(kind: str) -> None:
    """Its response ends, and the read from where it was is refused."""

    async def main() -> None:
        limits = Limits(sse_chunk_bytes=1)
        engine = Engine(MemoryStore(), limits)
        await engine.start()
        path, content_type = ("a", "text/plain") if kind == "sse" else (log_path("a"), "text/sequence")
        rows = ContentKind.ROWS if kind == "rows" else None
        await engine.execute(Create(path=path, now_ms=engine.now_ms(), content_type=content_type, kind=rows))
        service, sink = Service(engine, limits), FullSink()
        feed: EventFeed | RowFeed = EventFeed(service, await engine.read(Read(path)), 0)
        if kind == "rows":
            row = await engine.find_row(FindRow(path))
            feed = RowFeed(service, row.table, row.start, timeout_s=60, idle_s=60)
        feed.open(sink, 0.0)
        for n in range(5):
            await engine.execute(Append(path, engine.now_ms(), b"+\tk\t%d\n" % n, content_type))
        await engine.trim(path)
        tail = (await engine.info(path)).tail
        reached = feed._follower.position
        assert reached < tail
        sink.blocked = False
        feed.drained()
        await asyncio.sleep(0.01)
        assert sink.ended
        assert feed._follower.position == reached
        with pytest.raises(OffsetTrimmedError):
            await engine.read(Read(path, feed._follower.offset))

        live, sink = EventFeed(service, await engine.read(Read(path, None)), 0), FullSink()
        live.open(sink, 0.0)
        sink.blocked = False
        await engine.trim(path)  # a reader at the tail is not affected
        await engine.execute(Append(path, engine.now_ms(), b"+\tk\tlast\n", content_type))
        assert b"last" in sink.written
        live.cancel()
        await engine.stop()

    virtual_time.run(main())


def test_a_long_poll_whose_position_is_trimmed_while_it_waits_is_refused() -> None:
    async def main() -> None:
        engine = Engine(MemoryStore(), Limits())
        await engine.start()
        await engine.execute(Create(path="a", now_ms=engine.now_ms(), content_type="text/plain", body=b"one"))
        tail = (await engine.info("a")).offset(3)
        waiting = asyncio.ensure_future(engine.read(Read("a", tail, bytes_max=10, wait_s=60)))
        await asyncio.sleep(0.01)
        await asyncio.gather(
            engine.execute(Append("a", engine.now_ms(), b"two", "text/plain")), engine.trim("a", at_ms=10**15)
        )
        await engine.trim("a")
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        assert isinstance(outcome, OffsetTrimmedError) or (isinstance(outcome, ReadReply) and outcome.data == b"two")
        with pytest.raises(OffsetTrimmedError):
            await engine.read(Read("a", tail, wait_s=60))
        await engine.stop()

    virtual_time.run(main())
