"""Finding rows by SeqNo, compared with a list of all rows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from headwater.engine import Engine
from headwater.engine.messages import FindRow, Read, ReadMore
from headwater.errors import StreamNotFoundError
from headwater.limits import ROW_PROBE_BYTES
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.log.content import ContentKind
from headwater.log.row_framing import seqno_of
from headwater.store.memory import MemoryStore
from headwater.store.pieces import Piece
from tests.unit.engine.test_engine import SlowStore, turn, with_engine

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.read_bytes = 0

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        piece = await super().read(stream_id, start, end, bytes_max)
        self.reads += 1
        self.read_bytes += len(piece.data)
        return piece


async def filled(engine: Engine, kind: ContentKind, batches: list[list[bytes]]) -> None:
    await engine.execute(Create(path="t", now_ms=engine.now_ms(), content_type=TYPE, kind=kind))
    for batch in batches:
        await engine.execute(Append("t", engine.now_ms(), b"".join(batch), TYPE))


async def rows_after(engine: Engine, since_id: int, path: str = "t") -> list[bytes]:
    """The rows that a reader gets from the position that the engine found."""
    reply = await engine.find_row(FindRow(path, since_id))
    offset = reply.table.offset(reply.start.record)
    data = (await engine.read(Read(path, offset, bytes_max=1 << 30))).data
    return data[reply.start.skip :].splitlines(keepends=True)


def batches_of(rows: list[bytes], sizes: random.Random, most: int) -> list[list[bytes]]:
    batches = []
    while rows:
        count = sizes.randint(1, most)
        batches.append(rows[:count])
        rows = rows[count:]
    return batches


@pytest.mark.parametrize("most", [1, 7, 400])
@pytest.mark.parametrize("gaps", ["none", "even", "wild"])
def test_every_row_is_found(most: int, gaps: str) -> None:
    """`since_id=N` returns rows with SeqNo > N; `since_id=-N` returns the last N rows."""
    sizes = random.Random(f"{most}{gaps}")
    step: dict[str, Callable[[], int]] = {
        "none": lambda: 1,
        "even": lambda: sizes.randint(1, 9),
        "wild": lambda: int(2 ** sizes.uniform(0, 30)),
    }
    rows, seqno = [], 0
    for _ in range(1_500):
        seqno += step[gaps]()
        rows.append(b"%d\tt\t+\tk\t%b\n" % (seqno, b"r" * int(2 ** sizes.uniform(0, 11))))

    async def body(engine: Engine) -> None:
        await filled(engine, ContentKind.MIRROR, batches_of(rows, sizes, most))
        for number in sizes.sample(range(len(rows)), 60):
            at = seqno_of(rows[number])
            assert await rows_after(engine, at) == rows[number + 1 :]
            assert await rows_after(engine, at - 1) == rows[number:]
            assert await rows_after(engine, -number - 1) == rows[-number - 1 :]
        assert await rows_after(engine, 0) == await rows_after(engine, -len(rows) - 5) == rows
        assert await rows_after(engine, seqno) == await rows_after(engine, 2**63 - 1) == []
        assert (await engine.info("t")).last_seqno == seqno

    with_engine(body)


def test_a_table_that_counts_its_rows() -> None:
    async def body(engine: Engine) -> None:
        await filled(engine, ContentKind.ROWS, [[b"+\tk%d\tr\n" % n] for n in range(10)])
        for since_id, first in ((0, 1), (3, 4), (9, 10), (-1, 10), (-10, 1), (-99, 1)):
            assert seqno_of((await rows_after(engine, since_id))[0]) == first
        assert (await engine.find_row(FindRow("t", -3))).since_id == 7
        assert await rows_after(engine, 10) == []

    with_engine(body)


def test_a_row_costs_a_few_reads_in_a_long_table() -> None:
    store = CountingStore()

    async def body(engine: Engine) -> None:
        batch = b"".join([b"+\tkey\t%b\n" % (b"r" * (n % 50)) for n in range(100)])
        await filled(engine, ContentKind.ROWS, [[batch] for _ in range(2_000)])
        most = 0
        for since_id in range(1, 200_000, 1_999):
            before = store.reads
            await engine.find_row(FindRow("t", since_id))
            most = max(most, store.reads - before)
        assert most <= 4
        assert store.read_bytes <= store.reads * 2 * ROW_PROBE_BYTES

    with_engine(body, store)


@pytest.mark.parametrize("cut", [1, 3, 5, 7])
def test_rows_of_forks_that_leave_within_a_record(cut: int) -> None:
    """A fork has a part of a record of its source."""

    async def body(engine: Engine) -> None:
        batch = [b"+\tk%d\t%b\n" % (n, b"r" * 30) for n in range(4)]
        await filled(engine, ContentKind.ROWS, [batch, batch])
        position = await engine.find_row(FindRow("t", cut))
        fork = ForkRequest("t", position.table.offset(position.start.record), position.start.skip, last_seqno=cut)
        await engine.execute(Create(path="f", now_ms=engine.now_ms(), kind=ContentKind.ROWS, fork=fork))
        for _ in range(3):
            await engine.execute(Append("f", engine.now_ms(), b"".join(batch), TYPE))
        for since_id in range(cut + 12):
            rows = await rows_after(engine, since_id, "f")
            assert [seqno_of(row) for row in rows] == list(range(since_id + 1, cut + 13))

    with_engine(body)


class SlowReads(MemoryStore):
    """A store that runs a callback during a read."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        piece = await super().read(stream_id, start, end, bytes_max)
        if self.meanwhile is not None:
            await self.meanwhile()
        return piece


def test_a_table_that_is_evicted_during_a_search_is_loaded_again() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        await filled(engine, ContentKind.ROWS, [[b"+\tk\tr\n"] * 5])

        async def evict() -> None:
            for _ in range(2):  # the first call finds that it was used
                await engine._catalogue.evict(0, 0)

        store.meanwhile = evict
        row = await engine.find_row(FindRow("t", 3))
        store.meanwhile = None
        read = await engine.read_more(ReadMore(row.table.id, row.start.record, bytes_max=1 << 20))
        assert read.data[row.start.skip :].startswith(b"4\t")

    with_engine(body, store)


def test_the_last_rows_of_a_mirror_end_where_they_were_counted_from() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        rows = [b"%d\tt\t+\tk\tr\n" % (3 * number) for number in range(1, 10)]
        await filled(engine, ContentKind.MIRROR, [rows[:8]])

        async def grow() -> None:
            store.meanwhile = None
            await engine.execute(Append("t", engine.now_ms(), rows[8], TYPE))

        store.meanwhile = grow
        reply = await engine.find_row(FindRow("t", -2))
        assert (reply.since_id, reply.table.last_seqno) == (20, 24)

    with_engine(body, store)


def test_a_table_that_is_evicted_between_pieces_is_loaded_again() -> None:
    async def body(engine: Engine) -> None:
        await filled(engine, ContentKind.ROWS, [[b"+\tk\tr\n"]] * 5)
        table = await engine.info("t")
        position, data = 0, b""
        while position < table.tail:
            for _ in range(2):  # the first call finds that it was used
                await engine._catalogue.evict(0, 0)
            read = await engine.read_more(ReadMore(table.id, position, bytes_max=1))
            position, data = read.next, data + read.data
        assert [seqno_of(row) for row in data.splitlines()] == [1, 2, 3, 4, 5]
        await engine.execute(Delete("t", engine.now_ms()))
        with pytest.raises(StreamNotFoundError):
            await engine.read_more(ReadMore(table.id, 0))

    with_engine(body)


def test_a_table_that_is_created_again_during_a_search_is_searched_again() -> None:
    store = SlowReads()

    async def body(engine: Engine) -> None:
        await filled(engine, ContentKind.ROWS, [[b"+\tk\tr\n"] * 5])

        async def make_again() -> None:
            store.meanwhile = None
            await engine.execute(Delete("t", engine.now_ms()))
            await filled(engine, ContentKind.ROWS, [[b"+\tkey\trecord\n"] * 4])

        store.meanwhile = make_again
        assert [seqno_of(row) for row in await rows_after(engine, 3)] == [4]

    with_engine(body, store)


def test_the_last_seqno_is_that_of_durable_rows() -> None:
    store = SlowStore()

    async def body(engine: Engine) -> None:
        creating = asyncio.ensure_future(filled(engine, ContentKind.ROWS, []))
        await turn()
        store.release()
        await creating
        appending = asyncio.ensure_future(engine.execute(Append("t", engine.now_ms(), b"+\ta\tb\n+\tc\td", TYPE)))
        await turn()
        assert (await engine.info("t")).last_seqno == 0
        store.release()
        assert (await appending).last_seqno == 2
        assert (await engine.info("t")).last_seqno == 2

    with_engine(body, store)
