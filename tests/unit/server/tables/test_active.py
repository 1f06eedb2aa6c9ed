"""Active views against the naive fold of all rows."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import weakref
from _collections_abc import dict_values
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.engine import Engine
from headwater.engine.messages import FindRow, Read, ReadMore, ReadReply
from headwater.errors import HeadwaterError, OverloadedError, StoppingError, StreamNotFoundError, ViewTooLargeError
from headwater.limits import ACTIVE_KEY_BYTES, Limits
from headwater.log.commands import Append, Create, Delete
from headwater.log.content import ContentKind
from headwater.log.row_framing import seqno_of
from headwater.server.tables import active, snapshots
from headwater.server.tables.active import ActiveViews, LiveRows
from headwater.store.memory import MemoryStore
from headwater.store.pieces import Piece
from tests.unit.engine.test_engine import with_engine
from tests.unit.engine.test_rows import CountingStore
from tests.waiting import wait_for_async

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"
ROW = b"1\t2026-01-08T00:00:00.000Z\t+\tk\t1\n"
CHANGES = st.lists(st.tuples(st.sampled_from("+-"), st.sampled_from("abcdefg"), st.integers(0, 9)), min_size=1)


def naive(rows: bytes) -> list[bytes]:
    live: dict[bytes, bytes] = {}
    for row in rows.splitlines(keepends=True):
        _, _, action, key, _ = row.split(b"\t", 4)
        live[key] = row
        if action == b"-":
            del live[key]
    return sorted(live.values(), key=seqno_of)


def numbered(changes: list[tuple[str, str, int]], first: int = 1) -> bytes:
    return b"".join(
        b"%d\tt\t%b\t%b\t%d\n" % (n, a.encode(), k.encode(), r) for n, (a, k, r) in enumerate(changes, first)
    )


@given(st.lists(CHANGES), st.integers(-5, 30))
def test_live_rows_are_those_of_the_naive_fold(batches: list[list[tuple[str, str, int]]], since_id: int) -> None:
    live, everything = LiveRows(), b""
    for batch in batches:
        rows = numbered(batch, live.last_seqno + 1)
        live.apply(rows)
        everything += rows
        expected = naive(everything)
        assert live.after(0) == expected
        assert len(live) == len(expected)
        cut = expected[since_id:] if since_id < 0 else [row for row in expected if seqno_of(row) > since_id]
        assert live.after(since_id) == cut
        for row in expected:
            assert live.get(row.split(b"\t")[3]) == row
    for key in "abcdefg":
        live.apply(b"%d\tt\t-\t%b\t\n" % (live.last_seqno + 1, key.encode()))
    assert (live.size_bytes, live.after(0)) == (0, [])


def with_table(body: Callable[[Engine], Awaitable[None]], store: MemoryStore | None = None) -> None:
    async def main(engine: Engine) -> None:
        await engine.execute(Create(path="t", now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.ROWS))
        await body(engine)

    with_engine(main, store)


async def append(engine: Engine, body: bytes) -> None:
    await engine.execute(Append("t", engine.now_ms(), body, TYPE))


async def live_rows(engine: Engine, views: ActiveViews, limits: Limits | None = None) -> list[bytes]:
    table = (await engine.find_row(FindRow("t"))).table
    return (await views.rows_of(engine, limits or Limits(), table)).after(0)


async def all_rows(engine: Engine) -> bytes:
    return (await engine.read(Read("t", bytes_max=1 << 30))).data


def test_a_view_is_built_once_and_follows_its_table() -> None:
    async def body(engine: Engine) -> None:
        views = ActiveViews()
        for size in (3, 20_000, 1, 5_000):
            await append(engine, b"".join(b"+\tk%d\t%d\n" % (n % 700, n) for n in range(size)))
            await append(engine, b"-\tk1\t\n")
            contents = await asyncio.gather(*[live_rows(engine, views) for _ in range(3)])
            assert contents[0] == contents[1] == contents[2] == naive(await all_rows(engine))
        assert len(views) == 1

    with_table(body)


def test_a_table_that_was_created_again_has_another_view() -> None:
    async def body(engine: Engine) -> None:
        views = ActiveViews()
        await append(engine, b"+\ta\tone\n")
        assert len(await live_rows(engine, views)) == 1
        await engine.execute(Delete("t", engine.now_ms()))
        await engine.execute(Create(path="t", now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.ROWS))
        assert await live_rows(engine, views) == []

    with_table(body)


def test_too_many_live_keys_are_refused() -> None:
    limits = Limits(active_keys_max=3)

    async def body(engine: Engine) -> None:
        views = ActiveViews()
        await append(engine, b"+\ta\t1\n+\tb\t1\n+\tc\t1\n")
        assert len(await live_rows(engine, views, limits)) == 3
        await append(engine, b"+\td\t1\n")
        for _ in range(2):
            with pytest.raises(ViewTooLargeError, match="more than 3 live keys"):
                await live_rows(engine, views, limits)
        with pytest.raises(ViewTooLargeError, match="bytes of memory"):
            await live_rows(engine, ActiveViews(), Limits(active_bytes_max=100))

    with_table(body)


def test_a_view_that_is_too_large_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked for: its keys may have been deleted meanwhile."""
    monkeypatch.setattr(active, "ACTIVE_IDLE_S", 0.2)
    limits = Limits(active_keys_max=1)

    async def body(engine: Engine) -> None:
        views = ActiveViews()
        await append(engine, b"+\ta\t1\n+\tb\t1\n")
        with pytest.raises(ViewTooLargeError):
            await live_rows(engine, views, limits)
        await append(engine, b"-\ta\t\n")

        async def rows() -> int:
            with contextlib.suppress(ViewTooLargeError):
                return len(await live_rows(engine, views, limits))
            return -1

        await wait_for_async(rows, 1)

    with_table(body)


async def several_tables(engine: Engine, count: int, keys: int) -> list[str]:
    paths = [f"t{number}" for number in range(count)]
    for path in paths:
        await engine.execute(Create(path=path, now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.ROWS))
        await engine.execute(
            Append(path, engine.now_ms(), b"".join(b"+\tk%06d\t%d\n" % (n, n) for n in range(keys)), TYPE)
        )
    return paths


def test_views_that_are_asked_for_at_the_same_time_share_their_memory() -> None:
    limits = Limits(active_bytes_max=3_000_000)  # of one of these tables and a half
    most = 0

    async def body(engine: Engine) -> None:
        nonlocal most
        views = ActiveViews()
        counted = views._check

        def check(view: active.ActiveView, limits: Limits) -> None:
            nonlocal most
            counted(view, limits)
            most = max(most, sum(other.rows.size_bytes for other in views._views.values()))

        views._check = check  # type: ignore[method-assign]
        paths = await several_tables(engine, 8, 8_000)

        async def keys(path: str) -> int:
            table = (await engine.find_row(FindRow(path))).table
            return len(await views.rows_of(engine, limits, table))

        assert await asyncio.gather(*map(keys, paths)) == [8_000] * 8

    with_table(body)
    assert 1_500_000 < most <= limits.active_bytes_max


def test_a_view_that_nobody_waits_for_is_not_built() -> None:
    async def body(engine: Engine) -> None:
        views = ActiveViews()
        paths = await several_tables(engine, 3, 8_000)
        tables = [(await engine.find_row(FindRow(path))).table for path in paths]
        gone = [asyncio.create_task(views.rows_of(engine, Limits(), table)) for table in tables]
        for _ in range(3):
            await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        while any(view.is_busy for view in views._views.values()):
            await asyncio.sleep(0)
        assert sum(len(view.rows) for view in views._views.values()) <= 8_000  # one record is applied whole
        for table in tables:
            assert len(await views.rows_of(engine, Limits(), table)) == 8_000

    with_table(body)


class FailingStore(MemoryStore):
    """Reads fail as often as it is told."""

    failures = 0

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        if self.failures:
            self.failures -= 1
            raise OverloadedError("too many open files")
        return await super().read(stream_id, start, end, bytes_max)


class LookedAt(dict[int, active.ActiveView]):
    looks = 0

    def values(self) -> dict_values[int, active.ActiveView]:
        self.looks += 1
        return super().values()


@pytest.mark.parametrize(("stops", "error"), [(True, StoppingError), (False, StreamNotFoundError)])
def test_a_request_for_a_view_that_is_built_while_the_server_stops_or_the_table_is_deleted(
    stops: bool, error: type[HeadwaterError]
) -> None:
    """A table must not seem to be deleted because its server stops."""

    async def body(engine: Engine) -> None:
        views = ActiveViews()
        await append(engine, b"".join(b"+\tk%d\t1\n" % number for number in range(20_000)))
        begun, read_more = asyncio.Event(), engine.read_more

        async def held(message: ReadMore) -> ReadReply:
            begun.set()
            await asyncio.Event().wait()
            return await read_more(message)

        engine.read_more = held  # type: ignore[method-assign]
        task = asyncio.ensure_future(live_rows(engine, views))
        await begun.wait()
        if stops:
            engine.end_live_reads()
        else:
            await engine.execute(Delete("t", engine.now_ms()))
        with pytest.raises(error):
            await task

    with_table(body)


def test_rows_of_one_view_do_not_cost_the_others() -> None:
    async def body(engine: Engine) -> None:
        views = ActiveViews()
        views._views = looked_at = LookedAt()
        for number in range(3):
            path = f"other{number}"
            await engine.execute(
                Create(path=path, now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.ROWS, body=b"+\ta\t1")
            )
            table = (await engine.find_row(FindRow(path))).table
            assert len(await views.rows_of(engine, Limits(), table)) == 1
        for number in range(5):
            await append(engine, b"+\tk%d\t1\n" % number)
            assert len(await live_rows(engine, views)) == number + 1
        assert looked_at.looks == 0

    with_table(body)


def test_views_make_room_for_others_and_those_of_deleted_tables_take_none() -> None:
    async def body(engine: Engine) -> None:
        views, tables = ActiveViews(), {}
        limits = Limits(active_bytes_max=4 * (len(ROW) + ACTIVE_KEY_BYTES))
        for name in ("a", "b", "c"):
            command = Create(
                path=name, now_ms=engine.now_ms(), content_type=TYPE, kind=ContentKind.ROWS, body=b"+\tk\t1"
            )
            await engine.execute(command)
            tables[name] = (await engine.find_row(FindRow(name))).table
            await views.rows_of(engine, limits, tables[name])
        await engine.execute(Delete("a", engine.now_ms()))
        await append(engine, b"+\tk\t1\n+\tl\t1\n")
        assert len(await live_rows(engine, views, limits)) == 2
        assert [tables[name].id in views._views for name in ("b", "c")] == [True, True]
        await append(engine, b"+\tm\t1\n")
        assert len(await live_rows(engine, views, limits)) == 3
        assert [tables[name].id in views._views for name in ("b", "c")] == [False, True]

    with_table(body)


def test_a_view_that_could_not_be_read_is_built_again() -> None:
    store = FailingStore()

    async def body(engine: Engine) -> None:
        views = ActiveViews()
        await append(engine, b"+\ta\t1\n")
        store.failures = 1
        with pytest.raises(OverloadedError):
            await live_rows(engine, views)
        assert len(await live_rows(engine, views)) == 1

    with_table(body, store=store)


async def snapshot_paths(engine: Engine) -> list[str]:
    return [stream.path for stream in (await engine.page("\x02", "", 100)).streams]


async def settled(engine: Engine, count: int) -> list[str]:
    """The snapshots, once there are so many and all are closed."""
    for _ in range(2_000):
        streams = (await engine.page("\x02", "", 100)).streams
        if len(streams) == count and all(stream.closed for stream in streams):
            break
        await asyncio.sleep(0)
    return [stream.path for stream in streams]


def test_a_view_that_is_built_again_costs_the_live_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "ACTIVE_SNAPSHOT_BYTES_MIN", 10_000)
    store = CountingStore()

    async def body(engine: Engine) -> None:
        views = ActiveViews()
        await live_rows(engine, views)
        assert await snapshot_paths(engine) == []
        for number in range(50):
            await append(engine, b"".join(b"+\tk%d\t%d\n" % (n % 40, n) for n in range(500)))
            await append(engine, b"-\tk%d\t\n" % (number % 40))
            await live_rows(engine, views)
        assert len(await settled(engine, 1)) == 1
        expected = naive(await all_rows(engine))
        before = store.read_bytes
        again = ActiveViews()
        assert await live_rows(engine, again) == expected
        tail = (await engine.info("t")).tail
        assert store.read_bytes - before < tail / 20
        table = (await engine.find_row(FindRow("t"))).table
        assert (await again.rows_of(engine, Limits(), table)).last_seqno == table.last_seqno
        await append(engine, b"+\tnew\t1\n")
        assert await live_rows(engine, again) == await live_rows(engine, views) == naive(await all_rows(engine))
        await engine.execute(Delete("t", engine.now_ms()))
        assert await settled(engine, 0) == []

    with_table(body, store=store)


def test_a_snapshot_that_is_not_complete_is_not_used() -> None:
    async def body(engine: Engine) -> None:
        await append(engine, b"+\ta\t1\n+\tb\t1\n")
        table = (await engine.find_row(FindRow("t"))).table
        path = f"\x02active/{table.id}/{table.tail}-2"
        await engine.execute(
            Create(path=path, now_ms=engine.now_ms(), content_type="text/sequence", kind=ContentKind.MIRROR)
        )
        assert await live_rows(engine, ActiveViews()) == naive(await all_rows(engine))
        assert await snapshot_paths(engine) == []

    with_table(body)


def test_the_snapshots_of_a_deleted_table_are_deleted_although_one_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active, "ACTIVE_SNAPSHOT_BYTES_MIN", 1)
    order: list[str] = []
    waiting: list[weakref.ref[asyncio.Future[None]]] = []

    async def write(*_: object) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append("written no more")

    async def delete_all(*_: object) -> None:
        order.append("deletes")
        future = asyncio.get_running_loop().create_future()
        waiting.append(weakref.ref(future))
        await future
        order.append("deleted")

    async def body(engine: Engine) -> None:
        views = ActiveViews()
        await live_rows(engine, views)
        monkeypatch.setattr(snapshots, "write", write)
        monkeypatch.setattr(snapshots, "delete_all", delete_all)
        await append(engine, b"+\ta\t2\n" * 10)
        await asyncio.sleep(1)
        await engine.execute(Delete("t", engine.now_ms()))
        await asyncio.sleep(1)
        gc.collect()  # takes a task that nobody keeps
        future = waiting[0]()
        assert future is not None
        future.set_result(None)
        await asyncio.sleep(1)
        assert order == ["written no more", "deletes", "deleted"]

    with_table(body)


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_trimmed_are_not_live(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is that of the rows that are there, also if it is built again, from a snapshot or not."""
    monkeypatch.setattr(active, "ACTIVE_SNAPSHOT_BYTES_MIN", 2_000)
    chance = random.Random(seed)

    async def body(engine: Engine) -> None:
        views, restored = ActiveViews(), ActiveViews()
        for _ in range(60):
            changes = [(chance.choice("+-"), chance.randrange(30)) for _ in range(chance.randrange(1, 20))]
            await append(engine, b"".join(b"%b\tk%d\tv\n" % (action.encode(), key) for action, key in changes))
            table = await engine.info("t")
            if chance.random() < 0.4:
                await engine.trim("t", seqno=chance.randint(table.first_seqno, table.last_seqno + 1))
            if chance.random() < 0.2:
                restored = ActiveViews()
            expected = naive(await all_rows(engine))
            for kept in (views, restored):
                assert await live_rows(engine, kept) == expected
                assert (await kept.rows_of(engine, Limits(), await engine.info("t"))).last_seqno == table.last_seqno
        await engine.trim("t")
        assert await live_rows(engine, views) == await live_rows(engine, ActiveViews()) == []
        table = await engine.info("t")
        assert (await ActiveViews().rows_of(engine, Limits(), table)).last_seqno == table.last_seqno

    with_table(body)


def test_a_view_whose_rows_are_trimmed_before_it_has_read_them_is_built_again() -> None:
    async def body(engine: Engine) -> None:
        await append(engine, b"+\ta\t1\n")
        await append(engine, b"+\tb\t1\n")
        table = await engine.info("t")
        await engine.trim("t", seqno=2)
        assert (await ActiveViews().rows_of(engine, Limits(), table)).get(b"a") is None
        views = ActiveViews()
        rows = await views.rows_of(engine, Limits(), table)
        assert [seqno_of(row) for row in rows.after(0)] == [2]

    with_table(body)
