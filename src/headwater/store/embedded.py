"""The embedded store: a journal that makes writes durable and an index that they are folded into.

What is not folded yet is also here in memory: the newest states, and the bytes of every unfolded segment. A read
takes recent bytes from memory and older ones from the index; there is no moment at which a byte is in neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from headwater.limits import Limits
from headwater.log.values import Appended, Created, Deleted, Event, StreamState
from headwater.store.contract import Commit, Done, RefusedError
from headwater.store.deadlines import Deadlines
from headwater.store.disk import Disk
from headwater.store.fold import Evolve
from headwater.store.index import IndexReader, Meta
from headwater.store.journal import (
    Batch,
    CorruptJournalError,
    DiskFullError,
    JournalFailedError,
    JournalWriter,
    Segment,
    encode_records,
    read_segments,
    seal_tail,
    segment_name,
    segment_numbers,
)
from headwater.store.records import Run, gather
from headwater.store.syncing import Syncer

log = logging.getLogger("headwater.store")

T = TypeVar("T")

_MAINTAIN_S = 0.25
_FORGET_STEP = 500


class Runner(Protocol):
    """Where blocking work is done, one piece after the other."""

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Do the work, then report its result or its error on the event loop."""

    def close(self) -> None: ...


class Folder(Protocol):
    """Who folds segments into the index."""

    async def fold(self, number: int) -> None: ...

    async def reclaim(self, chunks_max: int) -> bool:
        """Reclaim some of what deleted streams left; whether there may be more."""

    async def close(self) -> None: ...


class IndexFullError(Exception):
    """The fold found no room on the disk; it can be tried again."""


class FoldCutOffError(Exception):
    """Whoever folds was ended from outside. A fold can always run again."""


class _Unfolded:
    """All that the index does not know yet: states, paths and bytes, and which segment last touched them."""

    def __init__(self) -> None:
        self.states: dict[int, StreamState] = {}
        self.paths: dict[str, int | None] = {}  # None: there is no stream there, whatever the index says
        self.deleted: set[int] = set()
        self.runs: dict[int, deque[tuple[int, Run]]] = {}  # of each stream, its bytes by segment
        self._touched: dict[int, set[int]] = {}  # segment → streams
        self._buried: dict[int, list[StreamState]] = {}  # segment → streams deleted in it
        self._last: dict[int, int] = {}  # stream → the last segment that touched it
        self.deadlines = Deadlines(self.states)

    @property
    def empty(self) -> bool:
        return not self._touched

    def add(self, event: Event, state: StreamState, segment: int) -> None:
        """Take in a durable event; `state` is the stream's newest."""
        stream_id = event.id
        self.states[stream_id] = state
        if self._last.get(stream_id) != segment:
            self._last[stream_id] = segment
            self._touched.setdefault(segment, set()).add(stream_id)
        if isinstance(event, Appended):
            if event.data:
                self._grow(stream_id, event.position, event.data, segment)
        elif isinstance(event, Created):
            self.paths[event.path] = stream_id
            if event.data:
                self._grow(stream_id, state.start, event.data, segment)
            self.deadlines.watch(state)
        elif isinstance(event, Deleted):
            self._bury(state, segment)

    def _grow(self, stream_id: int, position: int, data: bytes, segment: int) -> None:
        runs = self.runs.get(stream_id)
        if runs is None:
            runs = self.runs[stream_id] = deque()
        if not runs or runs[-1][0] != segment:
            runs.append((segment, Run(position)))
        runs[-1][1].append(data)

    def _bury(self, state: StreamState, segment: int) -> None:
        self.deleted.add(state.id)
        del self.states[state.id]
        self.runs.pop(state.id, None)
        if self.paths.get(state.path, state.id) == state.id:
            self.paths[state.path] = None
        self._buried.setdefault(segment, []).append(state)

    async def forget(self, segment: int) -> None:
        """A segment is folded: let go, a little at a time, of whatever no later one touched."""
        for count, stream_id in enumerate(self._touched.pop(segment, ())):
            if count % _FORGET_STEP == _FORGET_STEP - 1:
                await asyncio.sleep(0)
            self._forget_stream(stream_id, segment)
        for state in self._buried.pop(segment, ()):
            self.deleted.discard(state.id)
            if state.path in self.paths and self.paths[state.path] is None:
                del self.paths[state.path]

    def _forget_stream(self, stream_id: int, segment: int) -> None:
        runs = self.runs.get(stream_id)
        if runs is not None and runs[0][0] == segment:
            runs.popleft()
            if not runs:
                del self.runs[stream_id]
        if self._last.get(stream_id) == segment:
            del self._last[stream_id]
            state = self.states.pop(stream_id, None)
            if state is not None and self.paths.get(state.path) == stream_id:
                del self.paths[state.path]


class EmbeddedStore:
    def __init__(
        self,
        disk: Disk,
        connect: Callable[[], sqlite3.Connection],
        evolve: Evolve,
        *,
        limits: Limits,
        syncer: Syncer,
        helper: Runner,
        folder: Folder,
        salt: Callable[[], int],
        readers: Executor | None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """Recover what the directory holds. `readers` runs reads of the index; None runs them where they are asked."""
        self.full: str | None = None
        self.failed: Callable[[BaseException], None] | None = None
        self.next_id = 1
        self._disk = disk
        self._connect = connect
        self._evolve = evolve
        self._limits = limits
        self._syncer = syncer
        self._helper = helper  # for what would hold up the loop
        self._folder = folder
        self._readers = readers
        self._release = release
        self._index = IndexReader(connect())
        self._local = threading.local()
        self._local.index = self._index
        self._opened = [self._index]
        self._unfolded = _Unfolded()
        self._sealed: deque[int] = deque()
        self._held: tuple[Sequence[Commit], Done] | None = None
        self._folding: asyncio.Task[None] | None = None
        self._maintaining: asyncio.Task[None] | None = None
        self._idle_ticks = 0
        self._preparing = False
        self._under_way = False
        self._broken: Exception | None = None  # after a failed sync nothing more is written
        self._segment, sequence = self._recover(salt)
        self._journal = JournalWriter(
            disk, number=self._segment, sequence=sequence, segment_bytes=limits.segment_bytes, salt=salt
        )

    # Recovery

    def _recover(self, salt: Callable[[], int]) -> tuple[int, int]:
        """Replay the journal and seal what a crash left open; the next segment's number and batch's sequence."""
        folded = self._index.meta().folded_segment
        last, sequence = self._replay()
        if last is not None and not last.sealed:
            seal_tail(self._disk, last, sequence, salt)
        newest = folded if last is None else last.number
        for number in segment_numbers(self._disk):
            if not folded < number <= newest:
                self._disk.remove(segment_name(number))  # folded already, or never begun
        self._sealed.extend(range(folded + 1, newest + 1))
        return newest + 1, sequence

    def _replay(self) -> tuple[Segment | None, int]:
        """Make anew what is not folded; the newest segment and the sequence of the next batch."""
        with self._index.snapshot():  # the fold may move on meanwhile
            return self._replay_over(self._index.meta())

    def _replay_over(self, meta: Meta) -> tuple[Segment | None, int]:
        self._unfolded = _Unfolded()
        self.next_id = max(self.next_id, meta.next_id)
        segment, sequence = None, meta.folded_sequence + 1
        for segment in read_segments(self._disk, meta.folded_segment, sequence):
            for batch in segment.batches:
                self._replay_batch(batch, segment.number)
                sequence = batch.sequence + 1
        return segment, sequence

    def _replay_batch(self, batch: Batch, number: int) -> None:
        unfolded = self._unfolded
        for record in batch.records():
            for event in record:
                before = None
                if isinstance(event, Created):
                    self.next_id = max(self.next_id, event.id + 1)
                elif event.id not in unfolded.deleted:
                    before = unfolded.states.get(event.id) or self._index.by_id(event.id)
                try:
                    state = self._evolve(before, event) or before
                except ValueError as error:
                    raise CorruptJournalError(batch.file, batch.position, str(error)) from None
                if state is not None:
                    unfolded.add(event, state, number)

    # Writing

    async def start(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._syncer.start()
        self._helper.submit(self._journal.prepare, lambda _, error: ready.set_result(None))
        await ready  # with the first segment's file; a disk that has no room for it will say so again
        self._maintaining = asyncio.create_task(self._maintain())

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        self._idle_ticks = 0
        if self._broken is not None:
            done(self._broken)
            return
        if len(self._sealed) > self._limits.unfolded_segments_max:
            self._held = (batch, done)  # until the fold has caught up
            return
        try:
            file = self._journal.place(encode_records([commit.record for commit in batch]))
        except DiskFullError as error:
            self._note_sealed()
            self._refuse(error, done)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be written after it
            self._broken = error
            done(error)
            return
        self._under_way = True

        def synced(error: OSError | None) -> None:
            self._under_way = False
            if error is not None:
                self._broken = JournalFailedError(file.name, error)
                done(self._broken)
                return
            self._journal.settle()
            self._note_sealed()
            self._take_in(batch, self._segment)
            done(None)

        self._syncer.sync(file, synced)

    def _take_in(self, batch: Sequence[Commit], number: int) -> None:
        add = self._unfolded.add
        for commit in batch:
            for event, state in zip(commit.record, commit.states, strict=True):
                add(event, state, number)

    def _refuse(self, error: Exception, done: Done) -> None:
        """The states handed over are ahead of what is durable, so the durable ones are made from the journal."""
        self.full = str(error)
        log.error("writes are refused: %s", error)
        try:
            self._replay()
        except Exception as failure:  # noqa: BLE001 - then nobody knows what is durable
            self._broken = failure
            done(failure)
            return
        done(RefusedError(str(error), self._find))

    def _find(self, stream_id: int) -> StreamState | None:
        if stream_id in self._unfolded.deleted:
            return None
        return self._unfolded.states.get(stream_id) or self._index.by_id(stream_id)

    # Folding

    def _note_sealed(self) -> None:
        while self._segment < self._journal.number:
            self._sealed.append(self._segment)
            self._segment += 1
        if self._sealed and self._folding is None:
            self._folding = asyncio.create_task(self._fold())

    async def _fold(self) -> None:
        try:
            while self._sealed:
                number = self._sealed[0]
                await self._folder.fold(number)
                self._sealed.popleft()
                await self._unfolded.forget(number)
                self._journal.recycle(number)
                self._release_held()
        except IndexFullError as error:
            log.error("folding waits for room: %s", error)
            if self._held is not None:
                (_, done), self._held = self._held, None
                self._refuse(error, done)
        except FoldCutOffError as error:
            log.error("folding starts again: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must stop the server
            self._fail(error)
        finally:
            self._folding = None

    def _release_held(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self.commit(*held)

    async def _maintain(self) -> None:
        """Have the next segment's file ready, fold what lies idle, reclaim what was deleted, look for room again."""
        idle_ticks_max = max(1, round(self._limits.fold_idle_s / _MAINTAIN_S))
        while True:
            self._prepare()
            if self._idle_ticks >= idle_ticks_max and not self._under_way and not self._unfolded.empty:
                self._roll()
            self._idle_ticks += 1
            if self._sealed and self._folding is None:
                self._note_sealed()
            elif self._folding is None:
                await self._reclaim()
            await asyncio.sleep(_MAINTAIN_S)

    def _prepare(self) -> None:
        """The next segment's file, made ahead of need. While the disk is full this is also how room is found again."""
        if self._preparing:
            return
        self._preparing = True

        def prepared(_: None, error: BaseException | None) -> None:
            self._preparing = False
            if error is None and self.full:
                log.warning("there is room again")
                self.full = None
            elif isinstance(error, Exception) and not isinstance(error, OSError):
                self._fail(error)

        self._helper.submit(self._journal.prepare, prepared)

    async def _reclaim(self) -> None:
        """One step after the other as long as nothing waits to be folded."""
        try:
            more = True
            while more and not self._sealed:
                more = await self._folder.reclaim(self._limits.reclaim_chunks)
        except (IndexFullError, FoldCutOffError) as error:
            log.warning("reclaiming is tried again: %s", error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must stop the server
            self._fail(error)

    def _roll(self) -> None:
        try:
            self._journal.roll()
        except DiskFullError as error:
            log.warning("the journal is folded when there is room: %s", error)
        except JournalFailedError as error:
            self._fail(error)
        self._note_sealed()

    def _fail(self, error: Exception) -> None:
        self._broken = self._broken or error
        if self._held is not None:
            (_, done), self._held = self._held, None
            done(error)
        if self.failed is not None:
            self.failed(error)

    # Reading

    async def load(self, path: str) -> StreamState | None:
        if path in self._unfolded.paths:
            stream_id = self._unfolded.paths[path]
            return None if stream_id is None else self._unfolded.states[stream_id]
        state = self._index.by_path(path)
        if state is None or state.id in self._unfolded.deleted:
            return None
        return self._unfolded.states.get(state.id, state)

    async def load_id(self, stream_id: int) -> StreamState | None:
        return self._find(stream_id)

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> bytes:
        if stream_id in self._unfolded.deleted:
            raise LookupError(f"stream {stream_id} is deleted")
        runs = self._unfolded.runs.get(stream_id)
        recent = runs[0][1].start if runs else end
        if start >= end:
            return b""
        if start >= recent:
            return self._read_recent(stream_id, start, end, bytes_max)
        old = await self._read_index(stream_id, start, min(end, recent), bytes_max)
        if not old:
            raise LookupError(f"stream {stream_id} has no bytes at {start}")
        after = start + len(old)
        runs = self._unfolded.runs.get(stream_id)  # again: some may have been folded meanwhile
        if after >= end or len(old) >= bytes_max or not runs or runs[0][1].start > after:
            return old
        new = self._read_recent(stream_id, after, end, bytes_max - len(old))
        return old + new if len(old) + len(new) <= bytes_max else old

    async def boundary(self, stream_id: int, position: int) -> int:
        if stream_id in self._unfolded.deleted:
            raise LookupError(f"stream {stream_id} is deleted")
        for _, run in reversed(self._unfolded.runs.get(stream_id, ())):
            if run.start <= position:
                return run.boundary(position)
        return await self._ask_index(lambda index: index.boundary(stream_id, position))

    def _read_recent(self, stream_id: int, start: int, end: int, bytes_max: int) -> bytes:
        runs = [run for _, run in self._unfolded.runs.get(stream_id, ()) if run.end > start]
        return gather(runs, start, end, bytes_max)

    async def _read_index(self, stream_id: int, start: int, end: int, bytes_max: int) -> bytes:
        return await self._ask_index(lambda index: index.read(stream_id, start, end, bytes_max))

    async def _ask_index(self, ask: Callable[[IndexReader], T]) -> T:
        if self._readers is None:
            return ask(self._index)
        return await asyncio.get_running_loop().run_in_executor(self._readers, lambda: ask(self._index_here()))

    def _index_here(self) -> IndexReader:
        """On a thread of the readers, that thread's own connection."""
        index: IndexReader | None = getattr(self._local, "index", None)
        if index is None:
            index = self._local.index = IndexReader(self._connect())
            self._opened.append(index)
        return index

    async def page(self, prefix: str, after: str, limit: int) -> list[StreamState]:
        unfolded = self._unfolded
        new = sorted(p for p, i in unfolded.paths.items() if i is not None and p.startswith(prefix) and p > after)
        found = {path: unfolded.states[unfolded.paths[path] or 0] for path in new[:limit]}
        last = after
        while True:
            rows = self._index.page(prefix, last, limit)
            for state in rows:
                if state.path not in unfolded.paths and state.id not in unfolded.deleted:
                    found[state.path] = unfolded.states.get(state.id, state)
            if len(rows) < limit or sum(path <= rows[-1].path for path in found) >= limit:
                break
            last = rows[-1].path
        return [found[path] for path in sorted(found)[:limit]]

    async def due(self, now_ms: int, limit: int) -> list[str]:
        states = self._unfolded.deadlines.due(now_ms, limit)
        for stream_id in self._index.due(now_ms, limit):
            state = self._find(stream_id)
            if state is not None and state.deadline_ms is not None and state.deadline_ms <= now_ms:
                states.append(state)
        return list(dict.fromkeys(state.path for state in states if not state.soft_deleted))[:limit]

    async def close(self) -> None:
        tasks = [task for task in (self._maintaining, self._folding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._broken is None:
            with contextlib.suppress(DiskFullError, JournalFailedError):
                self._journal.roll()  # sealed, the next start need not wonder how it ends
        self._syncer.close()
        self._helper.close()
        await self._folder.close()
        self._journal.close()
        if self._readers is not None:
            self._readers.shutdown()
        for index in self._opened:
            index.close()
        self._release()
