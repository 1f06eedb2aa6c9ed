"""The store contract, over every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headwater.log.content import ContentKind
from headwater.log.events import (
    Appended,
    Created,
    Deleted,
    DocumentDeleted,
    DocumentWritten,
    Event,
    ForkAdded,
    ForkReleased,
    SoftDeleted,
    Trimmed,
)
from headwater.log.moments import NEVER
from headwater.log.offsets import Span
from headwater.log.producers import ProducerState, ProducerTuple, hash_of, key_of
from headwater.log.retention import Retention
from headwater.log.state import Document, StreamState, evolve, evolve_document
from headwater.store.contract import Commit, DocumentKey, Key, Store, version_of
from headwater.store.deadlines import MAX_ID, Deadline
from headwater.store.embedded.disk import File
from headwater.store.embedded.syncing import Synced
from headwater.store.pieces import RecordEnd, UnalignedReadError
from tests.contract.stores import STORES, embedded, nothing
from tests.waiting import wait_until_async

T = TypeVar("T")


class Bench:
    """A store and the engine's part of the contract: evolve states and commit them with the records."""

    def __init__(self, store: Store, rest: Callable[[Store], Awaitable[None]]) -> None:
        self.store = store
        self._rest = rest
        self.states: dict[int, StreamState] = {}
        self.documents: dict[str, Document | None] = {}
        self._tails: dict[int, int] = {}

    async def commit(self, *records: tuple[Event, ...]) -> None:
        await self.begin(*records)
        await self._rest(self.store)

    def begin(self, *records: tuple[Event, ...]) -> asyncio.Future[None]:
        batch = [self._committed(record) for record in records]
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            durable.set_exception(error) if error else durable.set_result(None)

        self.store.commit(batch, done)
        return durable

    def decide(self, event: Event) -> None:
        """Change the newest states, as the engine does when it has decided a command that is not committed yet."""
        self._evolve(event)

    def _committed(self, record: tuple[Event, ...]) -> Commit:
        expects = self._expects(record) if self.store.shared else None
        return Commit(record, tuple([self._evolve(event) for event in record]), expects)

    def _expects(self, record: tuple[Event, ...]) -> dict[Key, int]:
        """What the record changes, as it is before."""
        expects: dict[Key, int] = {}
        for event in record:
            if isinstance(event, DocumentWritten | DocumentDeleted):
                expects.setdefault(DocumentKey(event.key), version_of(self.documents.get(event.key)))
            elif isinstance(event, Created):
                expects.setdefault(event.path, 0)
                expects[event.id] = 0
            elif event.id not in expects:
                state = self.states[event.id]
                expects[event.id] = state.version
                if isinstance(event, Deleted):
                    expects.setdefault(state.path, state.id)
        return expects

    def _evolve(self, event: Event) -> StreamState | Document | None:
        if isinstance(event, DocumentWritten | DocumentDeleted):
            document = self.documents[event.key] = evolve_document(self.documents.get(event.key), event)
            return document
        state = self.states[event.id] = evolve(self.states.get(event.id), event) or self.states[event.id]
        return state

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> bytes:
        piece = await self.store.read(stream_id, start, end, bytes_max)
        assert (piece.start, piece.next) == (start, start + len(piece.data))
        assert [record.position for record in piece.records()][-1:] == ([piece.next] if piece.data else [])
        return piece.data

    async def paths(self, prefix: str, limit: int) -> list[str]:
        """All paths with a prefix, page by page."""
        paths: list[str] = []
        after: str | None = ""
        while after is not None:
            states, after = await self.store.page(prefix, after, limit)
            assert len(states) <= limit
            paths += [state.path for state in states]
        return paths

    async def due(self, since_ms: int, now_ms: int, limit: int = 10) -> list[str]:
        """All streams that expired in a period, step by step."""
        paths: list[str] = []
        after: Deadline | None = (since_ms, MAX_ID)
        while after is not None:
            some, after = await self.store.due(after, now_ms, limit)
            assert len(some) <= limit
            paths += some
        return paths

    def append(self, stream_id: int, at_ms: int, data: bytes) -> tuple[Event, ...]:
        """An append at the tail at the time of the commit."""
        tail = self._tails.setdefault(stream_id, self.states[stream_id].tail if stream_id in self.states else 0)
        self._tails[stream_id] = tail + len(data)
        return (Appended(stream_id, tail, at_ms, data),)


def created(stream_id: int, path: str, data: bytes = b"", **more: Any) -> Created:
    return Created(
        id=stream_id, path=path, content_type="text/plain", kind=ContentKind.TEXT, at_ms=1000, data=data, **more
    )


def fail(error: BaseException) -> None:
    pytest.fail(str(error))


@pytest.fixture(params=list(STORES))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[Bench], Awaitable[T]]], T]:
    make, rest = STORES[request.param]

    def runner(body: Callable[[Bench], Awaitable[T]]) -> T:
        async def main() -> T:
            store = await make(tmp_path / "data")
            await store.start(lambda error: None, lambda: NEVER)
            try:
                return await body(Bench(store, rest))
            finally:
                await store.close()

        return asyncio.run(main())

    return runner


Run = Callable[[Callable[[Bench], Awaitable[None]]], None]


def test_an_empty_store(run: Run) -> None:
    async def body(bench: Bench) -> None:
        assert bench.store.next_id == 1
        assert await bench.store.load("a") is None
        assert await bench.store.load_id(1) is None
        assert await bench.store.page("", "", 10) == ([], None)
        assert await bench.due(0, 10**15) == []

    run(body)


def test_a_loaded_state_equals_the_committed_one(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit(
            (created(1, "a", b"one"),),
            (Appended(1, 3, 2000, b"two", ProducerTuple("p", 3, 0), "s1", False),),
            (Appended(1, 6, 3000, b"", ProducerTuple("p", 3, 1), None, True),),
        )
        loaded = await bench.store.load("a")
        assert loaded is not None
        assert loaded == await bench.store.load_id(1)
        assert (loaded.tail, loaded.closed, loaded.seq, loaded.accessed_ms) == (6, True, "s1", 3000)
        assert loaded.producers == {"p": ProducerState(3, 1, 3000)}
        assert loaded.closed_by == ProducerTuple("p", 3, 1)
        assert loaded.version == 3

    run(body)


def test_what_is_decided_during_a_commit_is_not_part_of_it(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"one"),))
        committed = bench.begin(bench.append(1, 2000, b"two"))
        bench.decide(Appended(1, 6, 3000, b"three"))
        await committed
        loaded = await bench.store.load("a")
        assert loaded is not None
        assert (loaded.tail, loaded.version) == (6, 2)

    run(body)


def test_reads_are_whole_records(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"aaaa"),), (Appended(1, 4, 2, b"bbbb"),), (Appended(1, 8, 2, b"cccc"),))
        read = bench.read
        assert await read(1, 0, 12, 100) == b"aaaabbbbcccc"
        assert await read(1, 0, 12, 11) == b"aaaabbbb"
        assert await read(1, 0, 12, 8) == b"aaaabbbb"
        assert await read(1, 4, 12, 1) == b"bbbb"
        assert await read(1, 4, 6, 100) == b"bb"
        assert await read(1, 0, 6, 100) == b"aaaabb"
        assert await read(1, 12, 12, 100) == b""
        for start in (1, 5, 11):
            with pytest.raises(UnalignedReadError):
                await read(1, start, 12, 100)

    run(body)


def test_large_and_many_records(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),), (created(2, "b"),))
        whole = b""
        for number in range(300):
            data = bytes([number % 251]) * (number * 37 % 5000 + 1)
            whole += data
            await bench.commit(bench.append(1, 2000, data), bench.append(2, 2000, b"x"))
        position, got = 0, b""
        while position < len(whole):
            piece = await bench.read(1, position, len(whole), 10_000)
            assert 0 < len(piece) <= 10_000
            got += piece
            position += len(piece)
        assert got == whole
        assert await bench.read(2, 0, 300, 1000) == b"x" * 300

    run(body)


def test_a_fork_stores_only_its_own_bytes(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"source"),))
        await bench.commit((ForkAdded(1), created(2, "f", b"own", lineage=(Span(1, 0, 4),))))
        assert await bench.read(2, 4, 7, 100) == b"own"
        fork, source = await bench.store.load("f"), await bench.store.load("a")
        assert fork is not None
        assert source is not None
        assert (fork.tail, fork.lineage, source.forks) == (7, (Span(1, 0, 4),), 1)

    run(body)


def test_deleted_streams_are_removed_and_soft_deleted_ones_stay(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"x"),), (created(2, "b", b"y"),))
        await bench.commit((SoftDeleted(1),), (Deleted(2),))
        soft = await bench.store.load("a")
        assert soft is not None
        assert soft.soft_deleted
        assert await bench.read(1, 0, 1, 10) == b"x"
        assert await bench.store.load("b") is None
        assert await bench.store.load_id(2) is None
        with pytest.raises(LookupError):
            await bench.read(2, 0, 1, 10)

    run(body)


def test_a_path_can_be_used_again(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"old"),))
        await bench.commit((Deleted(1), created(2, "a", b"new!")))
        again = await bench.store.load("a")
        assert again is not None
        assert (again.id, again.tail) == (2, 4)
        assert await bench.read(2, 0, 4, 10) == b"new!"

    run(body)


def test_pages_are_in_path_order(run: Run) -> None:
    async def body(bench: Bench) -> None:
        names = ["b/2", "a", "b/1", "b", "c", "b/10", "é"]
        await bench.commit(*[(created(number, name),) for number, name in enumerate(names, 1)])
        await bench.commit((Deleted(1),))

        async def paths(prefix: str, after: str, limit: int) -> list[str]:
            return [state.path for state in (await bench.store.page(prefix, after, limit)).states]

        assert await paths("", "", 10) == ["a", "b", "b/1", "b/10", "c", "é"]
        assert await paths("b", "", 2) == ["b", "b/1"]
        assert await paths("b", "b/1", 2) == ["b/10"]
        assert await paths("b/", "", 10) == ["b/1", "b/10"]
        assert await paths("x", "", 10) == []
        assert await paths("%", "", 10) == []

    run(body)


def test_expired_streams_are_due(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "ttl", ttl_s=2),), (created(2, "at", expires_ms=2500),), (created(3, "never"),))
        assert await bench.due(0, 2000) == []
        assert await bench.due(0, 2600) == ["at"]
        assert sorted(await bench.due(0, 3000)) == ["at", "ttl"]
        await bench.commit((Appended(1, 0, 2900, b"x"),), (Deleted(2),))
        assert await bench.due(0, 4000) == []
        assert await bench.due(0, 4900) == ["ttl"]
        assert await bench.due(4899, 4900) == ["ttl"]
        assert await bench.due(4900, 9000) == []
        assert await bench.due(0, 9000) == ["ttl"]

    run(body)


def test_pages_skip_deleted_streams_only(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit(*[(created(number + 1, f"a{number}"),) for number in range(6)])
        await bench.commit((Deleted(1),), (Deleted(2),), (created(7, "z0"),), (created(8, "z1"),))
        for limit in (1, 2, 3, 100):
            assert await bench.paths("", limit) == ["a2", "a3", "a4", "a5", "z0", "z1"]

    run(body)


def test_pages_are_complete_whatever_their_size(run: Run) -> None:
    async def body(bench: Bench) -> None:
        names = [f"{kind}/{number}" for number in range(20) for kind in ("a", "b")]
        await bench.commit(*[(created(number, name),) for number, name in enumerate(names, 1)])
        await bench.commit(*[(Deleted(number),) for number in range(2, 30, 3)])
        left = sorted(name for number, name in enumerate(names, 1) if not (number < 30 and number % 3 == 2))
        for limit in (1, 2, 7, 100):
            assert await bench.paths("", limit) == left
            assert await bench.paths("b/", limit) == [path for path in left if path.startswith("b/")]

    run(body)


def test_a_page_examines_no_more_streams_than_it_may_have(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit(*[(created(number, f"a{number:02}"),) for number in range(1, 21)], (created(99, "z"),))
        await bench.commit(*[(Deleted(number),) for number in range(1, 21)])
        after: str | None = ""
        sizes = []
        while after is not None:
            states, after = await bench.store.page("", after, 4)
            sizes.append(len(states))
        assert sum(sizes) == 1
        assert await bench.paths("", 4) == ["z"]

    run(body)


def test_expired_streams_with_one_deadline_are_due_in_steps(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit(*[(created(number, f"s{number:02}", expires_ms=2500),) for number in range(1, 21)])
        await bench.commit((Deleted(7),), (created(21, "later", ttl_s=60),))
        assert await bench.due(0, 3000, limit=3) == [f"s{number:02}" for number in range(1, 21) if number != 7]
        assert await bench.due(2500, 3000, limit=3) == []

    run(body)


def test_the_boundary_before_a_position(run: Callable[[Callable[[Bench], Awaitable[None]]], None]) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"12345"),))
        for data in (b"678", b"9", b"0123456789"):
            await bench.commit(bench.append(1, 1000, data))
        boundaries = [await bench.store.boundary(1, position) for position in range(20)]
        assert boundaries == [0] * 5 + [5] * 3 + [8] + [9] * 10 + [19]
        with pytest.raises(LookupError):
            await bench.store.boundary(2, 0)

    run(body)


def test_the_times_of_records_survive_the_fold(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"12345"),))
        for number in range(40):
            await bench.commit(bench.append(1, 2000 + number // 3, b"x" * (number + 1)))
        await bench.commit(bench.append(1, 2000 + (1 << 33), b"years later"))
        ends, position = [RecordEnd(5, 1000)], 5
        for number in range(40):
            position += number + 1
            ends.append(RecordEnd(position, 2000 + number // 3))
        ends.append(RecordEnd(position + 11, 2000 + (1 << 33)))
        tail = ends[-1].position
        piece = await bench.store.read(1, 0, tail, 10**6)
        assert list(piece.records()) == ends
        assert await bench.store.records(1, 0, tail, 1000) == ends
        assert await bench.store.records(1, 5, tail, 3) == ends[1:4]
        assert await bench.store.records(1, 5, 7, 3) == [ends[1], RecordEnd(7, 2000)]
        assert await bench.store.records(1, tail, tail, 3) == []
        with pytest.raises(UnalignedReadError):
            await bench.store.records(1, 7, tail, 3)
        for at_ms in (0, 1000, 1001, 2000, 2005, 2013, 2014, 2000 + (1 << 33)):
            expected = next(index for index, end in enumerate(ends) if end.at_ms >= at_ms)
            begins = ends[expected - 1].position if expected else 0
            assert await bench.store.position_at(1, 0, at_ms) == begins, at_ms
        assert await bench.store.position_at(1, 0, 2001 + (1 << 33)) is None

    run(body)


def test_records_of_one_batch_have_their_own_times(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a", b"12345"),), (Appended(1, 5, 2000, b"x"),), (Appended(1, 6, 3000, b"y"),))
        ends = [RecordEnd(5, 1000), RecordEnd(6, 2000), RecordEnd(7, 3000)]
        assert await bench.store.records(1, 0, 7, 9) == ends
        assert list((await bench.store.read(1, 0, 7, 9)).records()) == ends

    run(body)


def test_a_loaded_state_is_a_copy(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),), (Appended(1, 0, 2, b"x", ProducerTuple("p", 0, 0)),))
        loaded = await bench.store.load("a")
        assert loaded is not None
        loaded.tail, loaded.producers["q"] = 99, ProducerState(0, 0, 0)
        again = await bench.store.load_id(1)
        assert again is not None
        assert (again.tail, list(again.producers)) == (1, ["p"])

    run(body)


def test_producers_are_loaded_in_the_order_of_their_requests(run: Run) -> None:
    async def body(bench: Bench) -> None:
        names = ["c", "a", "p" * 500, "b"]
        await bench.commit((created(1, "s"),))
        for number, name in enumerate(names):
            await bench.commit((Appended(1, number, 2000 + number, b"x", ProducerTuple(name, 0, 0)),))
        await bench.commit((Appended(1, 4, 3000, b"x", ProducerTuple("a", 0, 1)),))
        loaded = await bench.store.load("s")
        assert loaded is not None
        assert list(loaded.producers) == [key_of(name) for name in ("c", "p" * 500, "b", "a")]

    run(body)


def test_all_producers_are_loaded(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),))
        for number in range(6):
            await bench.commit((Appended(1, number, 2000 + number, b"x", ProducerTuple(f"p{number % 4}", 0, number)),))
        loaded = await bench.store.load("a")
        assert loaded is not None
        assert loaded.producers == {
            "p0": ProducerState(0, 4, 2004),
            "p1": ProducerState(0, 5, 2005),
            "p2": ProducerState(0, 2, 2002),
            "p3": ProducerState(0, 3, 2003),
        }

    run(body)


def test_documents(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((DocumentWritten("a/1", b"one"), created(1, "s")), (DocumentWritten("a/2", b"two"),))
        await bench.commit((DocumentWritten("b", b"other"),), (DocumentWritten("a/1", b"one again"),))
        store = bench.store
        assert await store.document("a/1") == Document("a/1", b"one again", 2)
        assert await store.document("nothing") is None
        assert [document.key for document in await store.documents("", "", 10)] == ["a/1", "a/2", "b"]
        assert [document.key for document in await store.documents("a/", "", 1)] == ["a/1"]
        assert [document.key for document in await store.documents("a/", "a/1", 10)] == ["a/2"]
        await bench.commit((DocumentDeleted("a/1"), DocumentWritten("c", b"")))
        assert await store.document("a/1") is None
        assert [document.key for document in await store.documents("", "", 2)] == ["a/2", "b"]
        assert await store.load("s") is not None

    run(body)


def test_expired_producers_are_loaded(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),))
        appends = [Appended(1, 0, 2000, b"", ProducerTuple(f"p{number}", 7, 0)) for number in range(1023)]
        await bench.commit(*[(event,) for event in appends])
        await bench.commit((Appended(1, 0, 2000 + 31 * 86_400_000, b"", ProducerTuple("last", 0, 0)),))
        loaded = await bench.store.load("a")
        assert loaded is not None
        assert "last" in loaded.producers
        for number in range(1023):
            known = loaded.producers.get(f"p{number}")
            epoch = loaded.expired_producers.get(hash_of(f"p{number}")) if known is None else known.epoch
            assert epoch == 7, number

    run(body)


def test_a_fold_waits_for_the_batch_that_is_being_written(tmp_path: Path) -> None:
    """Otherwise the seal of the segment would overwrite it."""

    async def main() -> None:
        store = embedded(tmp_path, threads=True)
        await store.start(fail, lambda: NEVER)
        bench = Bench(store, nothing)
        await bench.commit((created(1, "a", b"first"),))
        syncer = store._parts.syncer
        sync = syncer.sync

        held: list[Callable[[], None]] = []

        def slow(file: File, synced: Synced) -> None:
            sync(file, lambda error: held.append(lambda: synced(error)))

        syncer.sync = slow  # type: ignore[method-assign]
        large = b"x" * (2 << 20)
        writing = asyncio.create_task(bench.commit((*bench.append(1, 1000, large),)))
        await wait_until_async(lambda: held)
        folding = asyncio.create_task(store.fold())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not folding.done()
        syncer.sync = sync  # type: ignore[method-assign]
        held[0]()
        await folding
        await writing
        await store.close()
        store = embedded(tmp_path)
        await store.start(fail, lambda: NEVER)
        state = await store.load("a")
        assert state is not None
        assert state.tail == 5 + len(large)
        await store.close()

    asyncio.run(main())


def test_streams_are_counted_through_creation_forks_and_deletion(run: Run) -> None:
    async def body(bench: Bench) -> None:
        assert bench.store.streams == 0
        await bench.commit((created(1, "a", b"one"),), (created(2, "b"),))
        fork = created(3, "c", lineage=(Span(1, 0, 3),))
        await bench.commit((ForkAdded(1), fork), (SoftDeleted(1),))
        assert bench.store.streams == 3  # one that only a fork reads is still there
        await bench.commit((Deleted(2),))
        assert bench.store.streams == 2

    run(body)


def test_a_trimmed_stream_is_read_from_its_first_record_on(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),), *[bench.append(1, 1000 + n, b"%02d" % n) for n in range(50)])
        await bench.commit((Trimmed(1, 90, 1045, 98, 0, 90),))
        await bench.commit(bench.append(1, 2000, b"50"))  # a store may free space now
        state = await bench.store.load("a")
        assert state is not None
        assert (state.first, state.tail, state.first_ms, state.size) == (90, 102, 1045, 12)
        assert await bench.read(1, 90, 102, 100) == b"454647484950"
        assert await bench.store.records(1, 90, 102, 2) == [RecordEnd(92, 1045), RecordEnd(94, 1046)]
        assert await bench.store.boundary(1, 95) == 94
        assert await bench.store.position_at(1, 90, 0) == 90
        assert await bench.store.position_at(1, 92, 0) == 92
        assert await bench.store.position_at(1, 90, 1047) == 94
        assert await bench.store.position_at(1, 90, 2001) is None
        try:
            assert await bench.read(1, 0, 4, 4) == b"0001"
        except LookupError:
            """It was freed."""

    run(body)


def test_a_fork_reads_what_its_source_trimmed(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),), *[bench.append(1, 1000, b"%02d" % n) for n in range(20)])
        await bench.commit((Trimmed(1, 4, 1000, 38, 0, 4),))
        await bench.commit((ForkAdded(1, 20), created(2, "b", lineage=(Span(1, 0, 20),), first=4)))
        await bench.commit((Trimmed(1, 40, 0, 38, 0, 36),))
        await bench.commit(bench.append(1, 2000, b"20"))
        assert await bench.read(1, 4, 20, 100) == b"0203040506070809"
        assert await bench.read(1, 40, 42, 100) == b"20"
        await bench.commit((Deleted(2), ForkReleased(1)))
        await bench.commit(bench.append(1, 2000, b"21"))
        assert await bench.read(1, 40, 44, 100) == b"2021"
        state = await bench.store.load("a")
        assert state is not None
        assert state.unread == ((0, 40),)

    run(body)


def test_a_fork_does_not_bring_back_what_was_freed_before_it(run: Run) -> None:
    """Between what an earlier fork reads and what it reads itself."""

    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),), *[bench.append(1, 1000, b"%02d" % n) for n in range(30)])
        await bench.commit((ForkAdded(1, 10), created(2, "b", lineage=(Span(1, 0, 10),))))
        await bench.commit((Trimmed(1, 40, 1000, 58, 0, 40),))
        await bench.commit(bench.append(1, 2000, b"30"))
        await bench.commit((ForkAdded(1, 50), created(3, "c", lineage=(Span(1, 0, 50),), first=40)))
        await bench.commit((Trimmed(1, 56, 1000, 60, 0, 16),))
        await bench.commit((ForkAdded(1, 56), created(4, "d", lineage=(Span(1, 0, 56),), first=56)))  # has none of it
        await bench.commit(bench.append(1, 2000, b"31"))
        state = await bench.store.load("a")
        assert state is not None
        assert state.unread == ((10, 40), (50, 56))
        assert await bench.read(1, 0, 10, 100) == b"0001020304"
        assert await bench.read(1, 40, 50, 100) == b"2021222324"
        await bench.commit((Deleted(2), ForkReleased(1)), (Deleted(3), ForkReleased(1)), (Deleted(4), ForkReleased(1)))
        state = await bench.store.load("a")
        assert state is not None
        assert state.unread == ((0, 56),)

    run(body)


def test_a_fork_after_one_that_inherits_nothing_reads_what_is_left(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit((created(1, "a"),), *[bench.append(1, 1000, b"%02d" % n) for n in range(20)])
        await bench.commit((Trimmed(1, 10, 1000, 38, 0, 10),))
        await bench.commit((ForkAdded(1, 10), created(2, "b", lineage=(Span(1, 0, 10),), first=10)))
        await bench.commit((Trimmed(1, 20, 1000, 38, 0, 10),))
        await bench.commit((ForkAdded(1, 30), created(3, "c", lineage=(Span(1, 0, 30),), first=20)))
        await bench.commit((Trimmed(1, 36, 1000, 38, 0, 16),))
        state = await bench.store.load("a")
        assert state is not None
        assert state.unread == ((0, 20), (30, 36))

    run(body)


def test_streams_with_something_to_trim_are_due(run: Run) -> None:
    async def body(bench: Bench) -> None:
        await bench.commit(
            (created(1, "age", b"x", retention=Retention(seconds=5)),),
            (created(2, "bytes", b"xx", retention=Retention(bytes=3)),),
            (created(3, "messages", b"x", retention=Retention(messages=2), messages=1),),
            (created(4, "all", b"x", retention=Retention(compact=True)),),
        )
        assert await bench.due(-1, 6000) == []
        assert await bench.due(-1, 6001) == ["age"]
        await bench.commit(bench.append(2, 7000, b"xx"), (Appended(3, 1, 7001, b"y", messages=1),))
        assert await bench.due(-1, 8000) == ["age", "bytes"]
        await bench.commit((Appended(3, 2, 7001, b"z", messages=1),))
        assert await bench.due(-1, 8000) == ["age", "bytes", "messages"]
        await bench.commit((Trimmed(1, 1),), (Trimmed(2, 2, 7000, 2),), (Trimmed(3, 1, 7001, 2),))
        assert await bench.due(-1, 10**15) == []

    run(body)
