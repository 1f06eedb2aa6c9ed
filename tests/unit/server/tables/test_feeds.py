"""Row feeds: what a client gets that reads slowly, and what an answer does that cannot be completed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headwater.engine import Engine
from headwater.engine.messages import FindRow, ReadMore, ReadReply, RowPosition
from headwater.limits import BODY_PIECE_BYTES
from headwater.log.commands import Append, Create, Delete
from headwater.log.content import ContentKind
from headwater.server.compression import Encoders
from headwater.server.http import Feed, Frame, Request
from headwater.server.service import Service
from headwater.server.tables.feeds import RowFeed
from headwater.server.tables.reads import read
from tests.unit.engine.test_engine import with_engine

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"


class SlowSink:
    """A connection that is full after a few bytes, until it is emptied."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self.frames: list[Frame] = []
        self.ended = self.aborted = False

    @property
    def blocked(self) -> bool:
        return self._held >= self._bytes_max

    @property
    def body(self) -> bytes:
        return b"".join([frame.body for frame in self.frames])

    def write(self, frame: Frame) -> None:
        assert not self.blocked
        assert not self.ended
        self.frames.append(frame)
        self._held += len(frame.body)

    def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted = True

    def empty(self, feed: Feed) -> None:
        self._held = 0
        feed.drained()


def with_table(body: Callable[[Engine, Service], Awaitable[None]]) -> None:
    async def main(engine: Engine) -> None:
        await engine.execute(Create(path="t", now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.ROWS))
        await body(engine, Service(engine, engine.limits))

    with_engine(main, run=asyncio.run)  # large pieces are read in a thread


async def append(engine: Engine, count: int = 1, size: int = 50) -> None:
    await engine.execute(Append("t", engine.now_ms(), b"\n".join([b"+\tk\t" + b"x" * size] * count), TYPE))


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def seqnos(sink: SlowSink) -> list[int]:
    return [int(line.split(b"\t")[0]) for line in sink.body.splitlines()]


def test_a_slow_reader_gets_every_row_once_and_nothing_is_buffered_for_it() -> None:
    async def body(engine: Engine, service: Service) -> None:
        await append(engine, 20_000)
        table = (await engine.find_row(FindRow("t"))).table
        feed, sink = RowFeed(service, table, RowPosition(0), timeout_s=60, idle_s=60), SlowSink(1_000)
        feed.open(sink, 0.0)
        expected = 20_000
        for _ in range(30):
            await turns()
            assert len(sink.frames[-1].body) <= BODY_PIECE_BYTES
            await append(engine, 3)
            expected += 3
            sink.empty(feed)
        while len(seqnos(sink)) < expected:
            await turns()
            sink.empty(feed)
        assert seqnos(sink) == list(range(1, expected + 1))
        await engine.execute(Append("t", engine.now_ms(), b"", close=True))
        sink.empty(feed)
        await turns()
        assert sink.ended

    with_table(body)


def test_all_live_readers_get_the_same_frame() -> None:
    async def body(engine: Engine, service: Service) -> None:
        table = (await engine.find_row(FindRow("t"))).table
        sinks = [SlowSink(1 << 20) for _ in range(6)]
        for number, sink in enumerate(sinks):
            feed = RowFeed(service, table, RowPosition(0), timeout_s=60, idle_s=60, events=number % 2 == 1)
            feed.open(sink, 0.0)
        await append(engine, 3)
        assert len({id(sink.frames[0]) for sink in sinks}) == 2
        assert [len(sink.frames) for sink in sinks] == [1] * 6

    with_table(body)


def test_live_readers_of_a_large_update_share_its_frames() -> None:
    """Thousands that do not read would each hold a copy."""

    async def body(engine: Engine, service: Service) -> None:
        table = (await engine.find_row(FindRow("t"))).table
        sinks = [SlowSink(BODY_PIECE_BYTES) for _ in range(6)]
        for number, sink in enumerate(sinks):
            feed = RowFeed(service, table, RowPosition(0), timeout_s=60, idle_s=60, events=number % 2 == 1)
            feed.open(sink, 0.0)
        await append(engine, 20_000)
        await turns()
        assert all(sink.blocked for sink in sinks)
        for alike in (sinks[0::2], sinks[1::2]):
            assert alike[0].frames == alike[1].frames == alike[2].frames

    with_table(body)


def test_nothing_is_read_for_a_client_that_takes_nothing() -> None:
    async def body(engine: Engine, service: Service) -> None:
        table = (await engine.find_row(FindRow("t"))).table
        sink = SlowSink(1)
        feed = RowFeed(service, table, RowPosition(0), timeout_s=60, idle_s=60)
        feed.open(sink, 0.0)
        await append(engine)
        assert sink.blocked
        reads = 0
        read_more = engine.read_more

        async def counted(message: ReadMore) -> ReadReply:
            nonlocal reads
            reads += 1
            return await read_more(message)

        engine.read_more = counted  # type: ignore[method-assign]
        for _ in range(3):
            await append(engine, 10_000)
            await turns()
        assert reads == 0
        while not reads or len(seqnos(sink)) < 30_001:
            sink.empty(feed)
            await turns(20)
        assert seqnos(sink) == list(range(1, 30_002))

    with_table(body)


async def finite(service: Service) -> Feed:
    feed = (await read(service, Request("GET", "/v1/table/t", "timeout=0", {}, b""), "t")).feed
    assert feed is not None
    return feed


def test_a_finite_answer_is_completed_or_aborted() -> None:
    async def body(engine: Engine, service: Service) -> None:
        for _ in range(10):
            await append(engine, 10_000)
        complete, broken = SlowSink(1_000), SlowSink(1_000)
        feeds = [await finite(service), await finite(service)]
        feeds[0].open(complete, 0.0)
        feeds[1].open(broken, 0.0)
        await append(engine, 5)  # not part of the answer
        feeds[0].finish()  # a client that closed its sending side gets all the same
        while not complete.ended:
            await turns(20)
            complete.empty(feeds[0])
        assert seqnos(complete) == list(range(1, 100_001))
        await engine.execute(Delete("t", engine.now_ms()))
        for _ in range(100):
            await turns(20)
            broken.empty(feeds[1])
        assert (broken.ended, broken.aborted) == (False, True)

    with_table(body)


def test_a_live_reader_beyond_the_end_waits_for_the_rows_after_its_seqno() -> None:
    async def body(engine: Engine, service: Service) -> None:
        await append(engine, 2)
        row = await engine.find_row(FindRow("t", 7))
        sinks = [SlowSink(1 << 20) for _ in range(2)]
        for number, sink in enumerate(sinks):
            more = {"since_id": 7, "timeout_s": 60, "idle_s": 60}
            RowFeed(service, row.table, row.start, **more, events=number == 1).open(sink, 0.0)
        for count in (1, 3):
            await append(engine, count)
            await turns(20)
            assert [sink.body for sink in sinks] == [b"", b""]
        for count in (3, 1):
            await append(engine, count)
            await turns(20)
        assert seqnos(sinks[0]) == [8, 9, 10]
        assert sinks[1].body.startswith(b"id: 8\n")
        assert sinks[1].body.count(b"id: ") == 3

    with_table(body)


def test_slow_readers_have_a_bounded_number_of_encoders() -> None:
    async def body(engine: Engine, service: Service) -> None:
        for _ in range(5):
            await append(engine, 10_000)
        service = Service(engine, engine.limits, encoders=Encoders(2))
        for query in ("timeout=0", "view=active"):
            if query == "view=active":
                rows = b"\n".join([b"+\tk%d\tx" % number for number in range(5_000)])
                await engine.execute(Append("t", engine.now_ms(), rows, TYPE))
            request = Request("GET", "/v1/table/t", query, {"accept-encoding": "br"}, b"")
            answers = [await read(service, request, "t") for _ in range(3)]
            assert [dict(answer.headers).get("content-encoding") for answer in answers] == ["br", "br", None]
            assert len({dict(answer.headers)["etag"] for answer in answers}) == 2
            for answer in answers:
                assert answer.feed is not None
                answer.feed.cancel()
            last = await read(service, request, "t")
            assert dict(last.headers)["content-encoding"] == "br"
            assert last.feed is not None
            last.feed.cancel()
            del answers, answer, last

    with_table(body)
