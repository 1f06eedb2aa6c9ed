"""The embedded store: writes become durable in a journal, which is folded into an index.

Unfolded data is also in memory: the newest durable states, and the bytes of all unfolded segments. A read takes recent
bytes from memory and older ones from the index. Bytes are removed from memory only after they are in the index.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from headwater.errors import DamagedDataError, NotReadyError
from headwater.limits import (
    DAMAGE_LOGGED_MAX,
    FOLD_FAILURES_UNREADY,
    INDEX_READERS,
    LARGE_BATCH_BYTES,
    SMALL_READ_BYTES,
    Limits,
)
from headwater.log.events import DOCUMENT_EVENTS, Appended, Created, Deleted, Record
from headwater.log.moments import Moment
from headwater.log.producers import Producers, add_newer, note_last
from headwater.log.state import Document, StreamState, without_producers
from headwater.measures import Histogram
from headwater.store.contract import Commit, Done, Due, NoMemoryError, RefusedError, Space, StatePage, StoreReport
from headwater.store.deadlines import Deadline
from headwater.store.embedded.disk import Disk, File, Reserve
from headwater.store.embedded.folder import Folder
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.journal import encode_records
from headwater.store.embedded.journal_writer import DiskFullError, JournalFailedError, JournalWriter
from headwater.store.embedded.layout import is_locked
from headwater.store.embedded.lookups import Lookups
from headwater.store.embedded.maintenance import Maintenance
from headwater.store.embedded.read_ahead import ReadAhead
from headwater.store.embedded.recovery import Recovered
from headwater.store.embedded.syncing import Syncer
from headwater.store.embedded.threads import Runner
from headwater.store.pieces import Piece, RecordEnd, boundary_in, join, list_runs, position_at, read_runs

log = logging.getLogger("headwater.store")

T = TypeVar("T")
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_copy: Callable[[StreamState], StreamState] = getattr(StreamState, "__copy__")  # noqa: B009 - not in its type


# Shared by the states of all unfolded streams without producers, of which there may be many. They stay empty.
_NO_PRODUCERS: Producers = {}
_NONE_EXPIRED: dict[int, int] = {}


class Parts(NamedTuple):
    """The parts of the store, which a simulation can replace."""

    disk: Disk
    connect: Callable[[], IndexReader]
    syncer: Syncer
    helper: Runner  # runs blocking work
    writer: Runner  # writes large batches
    folder: Folder
    readers: Executor | None  # runs reads of the index; None: on the loop
    salt: Callable[[], int]
    reserve: Reserve
    release: Callable[[], None] = lambda: None
    space: Callable[[], Space] | None = None
    large_batch_bytes: int = LARGE_BATCH_BYTES


class Damage:
    """Counts reads of damaged rows, and logs each damage once."""

    def __init__(self) -> None:
        self.reads = 0
        self._logged: set[str] = set()

    def note(self, error: DamagedDataError) -> None:
        self.reads += 1
        if error.detail not in self._logged and len(self._logged) < DAMAGE_LOGGED_MAX:
            self._logged.add(error.detail)
            log.error("%s; stop the server and run: headwater check", error.detail)


class EmbeddedStore:
    """A store in a directory: a journal, and an index of what is folded. Background work is in `Maintenance`."""

    shared = False

    def __init__(self, parts: Parts, recovered: Recovered, limits: Limits) -> None:
        self.next_id = recovered.next_id
        self.streams = recovered.streams
        self.timeline = recovered.timeline
        self.latest = recovered.latest
        self.full: str | None = None  # set by maintenance
        self._parts = parts
        self._limits = limits
        self._unfolded = recovered.unfolded
        self._idle: list[IndexReader] = []  # idle connections to the index
        self._lookups = None if parts.readers is None else Lookups(parts.readers, self._ask_here)
        self._read_ahead = ReadAhead(self._read_index)
        self._held: tuple[Sequence[Commit], dict[int, StreamState], Done] | None = None  # waits for the fold
        self._broken: Exception | None = None  # after a failed sync, nothing more is written
        self._failed: Callable[[BaseException], None] | None = None
        self._moment: Callable[[], Moment] = _not_started
        self._damage = Damage()
        self._syncs = Histogram()
        self._journal = JournalWriter(
            parts.disk,
            recovered.record,
            number=recovered.segment,
            sequence=recovered.next_sequence,
            segment_bytes=limits.segment_bytes,
            salt=parts.salt,
        )
        if recovered.unsealed is not None:
            self._journal.resume(*recovered.unsealed)
        self._maintenance = Maintenance(self._journal, parts, limits, self, recovered.sealed)

    # Writing

    async def start(self, failed: Callable[[BaseException], None], moment: Callable[[], Moment]) -> None:
        self._failed = failed
        self._moment = moment
        self._parts.syncer.start()
        for _ in range(INDEX_READERS):  # open them now, because later there may be no file descriptor
            index = self._parts.connect()
            index.meta()  # the first read opens the other files of the database
            self._idle.append(index)
        await self._maintenance.start()

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        if self._broken is not None:
            done(self._broken)
            return
        kept = self._copies(batch)
        if self._maintenance.is_behind and self.full is None:
            self._held = (batch, kept, done)  # until the fold has caught up
        else:
            self._write(batch, kept, done)

    def _write(
        self, batch: Sequence[Commit], kept: dict[int, StreamState], done: Done, *, retried: bool = False
    ) -> None:
        """Write and sync a batch. A large batch is written in a thread. A batch that adds no data is written into the
        space of the reserve if there is no other."""
        records = [commit.record for commit in batch]
        moment = self._moment()
        self._maintenance.writing = True

        def placed(file: File | None, error: BaseException | None) -> None:
            if file is None:
                self._maintenance.writing = False
                if isinstance(error, DiskFullError) and not retried and not _adds_data(records):
                    self._maintenance.note_full(str(error))  # which releases the reserve
                    self._write(batch, kept, done, retried=True)
                else:
                    done(NoMemoryError() if isinstance(error, MemoryError) else self._refused(error))
            else:
                began_s = time.perf_counter()
                self._parts.syncer.sync(file, lambda error: synced(file, began_s, error))

        def synced(file: File, began_s: float, error: OSError | None) -> None:
            self._syncs.add(time.perf_counter() - began_s)
            self._maintenance.writing = False
            if error is not None:
                self._broken = JournalFailedError(file.name, error)
                done(self._broken)
                return
            self._journal.settle()
            self._maintenance.note_sealed()
            finished = partial(self._finish, batch, kept, self._maintenance.segment, done)
            if self._moment().wall_ms < moment.wall_ms:
                self._mark_time(finished)
            else:
                finished(None)

        def place() -> File:
            return self._journal.place(encode_records(records), moment)

        if _appended_bytes(records) > self._parts.large_batch_bytes:
            self._parts.writer.submit(place, placed)
            return
        try:
            file = place()
        except Exception as error:  # noqa: BLE001 - reported to the caller
            placed(None, error)
        else:
            placed(file, None)

    def _finish(
        self,
        batch: Sequence[Commit],
        kept: dict[int, StreamState],
        segment: int,
        done: Done,
        error: BaseException | None,
    ) -> None:
        """Show a batch of a segment to readers and acknowledge it, both at once."""
        if error is None:
            self._take_in(batch, kept, segment)
            self._maintenance.note_written()
            self._maintenance.note_changes(self._unfolded.changes_of(self._maintenance.segment))
        done(error)

    def _mark_time(self, done: Done) -> None:
        """The wall clock was set back while a batch was synced. Before it is acknowledged, write an empty batch with
        the new time: a restore to a time after this one includes it, and so the batch before it."""

        def marked(error: BaseException | None) -> None:
            done(None if isinstance(error, RefusedError) else error)

        self._write((), {}, marked)

    def _refused(self, error: BaseException | None) -> BaseException:
        """Map a write error: lack of disk space is temporary, any other error is final."""
        if isinstance(error, DiskFullError):
            self._maintenance.note_full(str(error))
            return RefusedError(str(error))
        self._broken = error if isinstance(error, Exception) else RuntimeError(f"journal write failed: {error!r}")
        return self._broken

    def _copies(self, batch: Sequence[Commit]) -> dict[int, StreamState]:
        """Copies of the states after a batch. They have only the producers that changed since the last fold."""
        kept: dict[int, StreamState] = {}
        known = self._unfolded.states
        for commit in batch:
            for state in commit.after:
                if type(state) is StreamState and state.id not in kept:
                    own = kept[state.id] = _copy(state)
                    before = known.get(state.id)
                    own.producers = _NO_PRODUCERS if before is None else before.producers
                    own.expired_producers = _NONE_EXPIRED
        return kept

    def _take_in(self, batch: Sequence[Commit], kept: dict[int, StreamState], segment: int) -> None:
        """Keep the bytes and the copied states. Events are not evolved again: the state before the first event of a
        stream since the last fold is only in the index."""
        unfolded = self._unfolded
        for commit in batch:
            for number, event in enumerate(commit.record):  # faster than zip with strict=True
                after = commit.after[number]
                if type(event) is Appended:
                    state, at_ms, producer = kept[event.id], event.at_ms, event.producer
                    if producer is not None:
                        if state.producers is _NO_PRODUCERS:
                            state.producers = {}
                        note_last(state.producers, producer, at_ms)  # the fold expires them
                    unfolded.append(event, state, at_ms, segment)
                elif isinstance(event, DOCUMENT_EVENTS):
                    unfolded.add_document(event.key, after if isinstance(after, Document) else None, segment)
                else:
                    unfolded.add(event, kept[event.id], kept[event.id].appended_ms, segment)
                    if isinstance(event, Created):
                        self.next_id = max(self.next_id, event.id + 1)
                        self.streams += 1
                    elif isinstance(event, Deleted):
                        self.streams -= 1

    async def fold(self) -> None:
        """Fold everything that was written so far."""
        await self._maintenance.fold_all()

    def relieve(self) -> None:
        self._read_ahead.close()
        self._maintenance.fold_soon()

    # Called by maintenance

    @property
    def has_unfolded(self) -> bool:
        return not self._unfolded.empty

    def has_deletions(self, segment: int) -> bool:
        return self._unfolded.has_deletions(segment)

    async def folded(self, segment: int) -> None:
        """Drop a folded segment from memory, and continue with a batch that waited for it."""
        await self._unfolded.forget(segment)

    def resume(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._write(*held)

    def refuse_held(self, error: str) -> None:
        if self._held is not None:
            (batch, kept, done), self._held = self._held, None
            if _adds_data([commit.record for commit in batch]):
                done(RefusedError(error))
            else:
                self._write(batch, kept, done)

    def fail(self, error: Exception) -> None:
        self._broken = self._broken or error
        if self._held is not None:
            (_, _, done), self._held = self._held, None
            done(error)
        if self._failed is not None:
            self._failed(error)

    # States

    async def load(self, path: str) -> StreamState | None:
        unfolded = self._unfolded
        state = None
        if path not in unfolded.paths:
            state = await self._ask_current_index(lambda index: index.by_path(path), self._look_up)
        if path in unfolded.paths:
            stream_id = unfolded.paths[path]
            return None if stream_id is None else await self.load_id(stream_id)
        if state is None or state.id in unfolded.deleted:
            return None
        recent = unfolded.states.get(state.id)
        return state if recent is None else _merged(recent, state)

    async def load_id(self, stream_id: int) -> StreamState | None:
        if stream_id in self._unfolded.deleted:
            return None
        recent = self._unfolded.states.get(stream_id)  # before the index, because of folds
        state = await self._look_up(lambda index: index.by_id(stream_id))
        return state if recent is None else _merged(recent, state)

    async def page(self, prefix: str, after: str, limit: int) -> StatePage:
        rows = await self._ask_current_index(lambda index: index.page(prefix, after, limit))
        recent = self._unfolded.paths_after(prefix, after, limit)
        # Up to this path all streams are known, of the index and unfolded ones.
        ends = [paths[-1] for paths in ([state.path for state in rows], recent) if len(paths) == limit]
        end = min(ends, default=None)
        states, streams = self._unfolded.states, dict[str, StreamState]()
        for state in rows:
            if state.path not in self._unfolded.paths and state.id not in self._unfolded.deleted:
                streams[state.path] = states.get(state.id, state)
        for path in recent:
            if (stream_id := self._unfolded.paths[path]) is not None:
                streams[path] = states[stream_id]
        paths = sorted(path for path in streams if end is None or path <= end)
        if len(paths) > limit:
            paths, end = paths[:limit], paths[limit - 1]
        return StatePage([without_producers(streams[path]) for path in paths], end)

    async def due(self, after: Deadline, now_ms: int, limit: int) -> Due:
        unfolded = self._unfolded
        recent, recent_end = unfolded.deadlines.due(after, now_ms, limit)
        due_paths = {deadline: unfolded.states[deadline[1]].path for deadline in recent}
        rows = await self._ask_index(lambda index: index.due(after, now_ms, limit))
        for deadline_ms, stream_id, path in rows:
            if stream_id not in unfolded.states and stream_id not in unfolded.deleted:
                due_paths[deadline_ms, stream_id] = path
        ends = [] if recent_end is None else [recent_end]
        end = min([*ends, rows[-1][:2]] if len(rows) == limit else ends, default=None)
        due = sorted(deadline for deadline in due_paths if end is None or deadline <= end)
        if len(due) > limit:
            due, end = due[:limit], due[limit - 1]
        return Due([due_paths[deadline] for deadline in due], end)

    # Bytes

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        self._check_exists(stream_id)
        if start >= end:
            return Piece(b"", start, start)
        recent = self._unfolded.runs_from(stream_id, start)
        if recent and recent[0].start <= start:
            return read_runs(recent, start, end, bytes_max)
        stop = min(end, recent[0].start) if recent else end
        old = await self._read_ahead.read(stream_id, start, stop, bytes_max)
        recent = self._unfolded.runs_from(stream_id, old.next)  # again: some may have been folded
        left = bytes_max - len(old.data)
        if old.next >= end or left <= 0 or not recent or recent[0].start != old.next:
            return old
        new = read_runs(recent, old.next, end, left)
        return join([old, new]) if len(new.data) <= left else old

    async def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        self._check_exists(stream_id)
        if start >= end:
            return []
        recent = self._unfolded.runs_from(stream_id, start)
        if recent and recent[0].start <= start:
            return list_runs(recent, start, end, limit)
        stop = min(end, recent[0].start) if recent else end
        ends = await self._ask_index(lambda index: index.records(stream_id, start, stop, limit))
        if not ends:
            raise LookupError(f"stream {stream_id} has no bytes at {start}")
        if ends[-1].position < end and len(ends) < limit:
            ends += await self.records(stream_id, ends[-1].position, end, limit - len(ends))
        return ends

    async def boundary(self, stream_id: int, position: int) -> int:
        self._check_exists(stream_id)
        for run in reversed(self._unfolded.runs_from(stream_id, 0)):
            if run.start <= position:
                return boundary_in(run, position)
        return await self._ask_index(lambda index: index.boundary(stream_id, position))

    async def position_at(self, stream_id: int, start: int, at_ms: int) -> int | None:
        self._check_exists(stream_id)
        recent = self._unfolded.runs_from(stream_id, start)  # before the index, because of folds
        if not recent or recent[0].start > start:
            position = await self._ask_index(lambda index: index.position_at(stream_id, start, at_ms))
            if position is not None:
                return position
        return next((place for run in recent if (place := position_at(run, start, at_ms)) is not None), None)

    def _check_exists(self, stream_id: int) -> None:
        if stream_id in self._unfolded.deleted:
            raise LookupError(f"stream {stream_id} is deleted")

    # Documents

    async def document(self, key: str) -> Document | None:
        if key in self._unfolded.documents:
            return self._unfolded.documents[key]
        return await self._look_up(lambda index: index.document(key))

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        documents: list[Document] = []
        last: str | None = after
        while last is not None and len(documents) < limit:
            some, last = await self._some_documents(prefix, last, limit)
            documents += some
        return documents[:limit]

    async def _some_documents(self, prefix: str, after: str, limit: int) -> tuple[list[Document], str | None]:
        """Some documents in order, and the key after which there may be more."""
        page = await self._ask_current_index(lambda index: index.documents(prefix, after, limit))
        recent = self._unfolded.keys_after(prefix, after, limit)
        ends = [keys[-1] for keys in ([document.key for document in page], recent) if len(keys) == limit]
        end = min(ends, default=None)
        by_key: dict[str, Document | None] = {document.key: document for document in page}
        by_key |= {key: self._unfolded.documents[key] for key in recent}
        documents = [by_key[key] for key in sorted(by_key) if end is None or key <= end]
        return [document for document in documents if document is not None], end

    # The index

    async def _read_index(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        ask = self._look_up if end - start <= SMALL_READ_BYTES else self._ask_index  # small ones are answered in groups
        return await ask(lambda index: index.read(stream_id, start, end, bytes_max))

    async def _ask_current_index(
        self,
        ask: Callable[[IndexReader], T],
        query: Callable[[Callable[[IndexReader], T]], Awaitable[T]] | None = None,
    ) -> T:
        """Query the index, and repeat this if a segment was folded in the meantime."""
        query = query or self._ask_index
        while True:
            forgotten = self._unfolded.forgotten
            answer = await query(ask)
            if forgotten == self._unfolded.forgotten:
                return answer

    async def _ask_index(self, ask: Callable[[IndexReader], T]) -> T:
        if self._parts.readers is None:
            return self._ask_here(ask)
        return await asyncio.get_running_loop().run_in_executor(self._parts.readers, self._ask_here, ask)

    async def _look_up(self, ask: Callable[[IndexReader], T]) -> T:
        """The same for a single row."""
        if self._lookups is None:
            return self._ask_here(ask)
        answer: T = await self._lookups.ask(ask)
        return answer

    def _ask_here(self, ask: Callable[[IndexReader], T]) -> T:
        """Query the index with a connection that no other thread uses."""
        try:
            index = self._idle.pop()
        except IndexError:
            index = self._parts.connect()
        try:
            return ask(index)
        except DamagedDataError as error:
            self._damage.note(error)
            raise
        except sqlite3.DatabaseError as error:
            if is_locked(error):
                raise NotReadyError("the index is locked by another program") from error
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGE_CODES:
                raise
            damage = DamagedDataError(f"a page of the index is damaged: {error}")
            self._damage.note(damage)
            raise damage from error
        finally:
            self._idle.append(index)

    def report(self) -> StoreReport:
        maintenance = self._maintenance
        folding = maintenance.folding
        return StoreReport(
            self._syncs.copy(),
            folding.seconds.copy(),
            folding.failures,
            len(folding.sealed),
            self._journal.unfolded_bytes,
            maintenance.is_behind,
            self._parts.space,
            folding.deaths,
            folding.streak.failures >= FOLD_FAILURES_UNREADY,
            self._damage.reads,
        )

    async def close(self) -> None:
        self._read_ahead.close()
        await self._maintenance.stop()
        if self._broken is None:
            with contextlib.suppress(DiskFullError, JournalFailedError):
                self._journal.end()  # so that recovery need not find its end
        self._parts.syncer.close()
        self._parts.writer.close()
        self._parts.helper.close()
        await self._parts.folder.close()
        self._journal.close()
        if self._parts.readers is not None:
            self._parts.readers.shutdown()
        for index in self._idle:
            index.close()
        self._parts.release()


def _not_started() -> Moment:
    raise RuntimeError("the store was not started")


def _appended_bytes(records: Sequence[Record]) -> int:
    size_bytes = 0
    for record in records:
        for event in record:
            if type(event) is Appended or type(event) is Created:
                size_bytes += len(event.data)
    return size_bytes


def _adds_data(records: Sequence[Record]) -> bool:
    """Whether records store anything new. Deletions do not, nor does closing a stream."""
    return any(isinstance(event, Created) or getattr(event, "data", b"") for record in records for event in record)


def _merged(recent: StreamState, folded: StreamState | None) -> StreamState:
    """Add the producers of the index to an unfolded state, which has only those that changed."""
    if folded is None:
        return recent.copy()
    add_newer(folded.producers, recent.producers)
    folded.expired_producers.update(recent.expired_producers)
    return msgspec.structs.replace(recent, producers=folded.producers, expired_producers=folded.expired_producers)
