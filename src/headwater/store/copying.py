"""Copying a store into another one of any kind: streams with their ids, offsets, times, producers, forks, snapshots and
retention, timelines, and documents with their versions.

Nobody may use either store meanwhile. A copy goes through the streams in the order of their paths and continues with
what is missing if it is run again after an interruption. The target remembers which source it is a copy of, and in
which state that was; another source, or one that was changed since, is refused. At the end everything is read from both
and compared, and only then the target becomes a store that a server opens.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from headwater.limits import COPY_BATCH_BYTES, COPY_DOCUMENTS, COPY_STREAMS
from headwater.log.moments import Moment
from headwater.log.state import Document, StreamState
from headwater.store.contract import Store
from headwater.store.pieces import Piece, RecordEnd

T = TypeVar("T")
Progress = Callable[[int, int | None], None]  # given the bytes that are done


class CopyError(Exception):
    """A copy was refused, or the target is not the same as its source. The message says what to do."""


class Source(msgspec.Struct, frozen=True):
    """What is copied, and its state. A source that was changed after a copy began has another one."""

    name: str
    latest: Moment
    next_id: int
    streams: int
    timeline: int
    mark: str = ""  # of a store without moments: another one after each change


class CopiedRun(NamedTuple):
    """Consecutive records of one stream."""

    stream_id: int
    start: int
    ends: array[int]  # relative to the start
    times: array[int]
    data: bytes


class Portion(msgspec.Struct):
    """What is written to the target at once. The bytes of a stream come before its state, or with it."""

    runs: list[tuple[CopiedRun, StreamState]] = []
    states: list[StreamState] = []
    documents: list[Document] = []
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= COPY_BATCH_BYTES or len(self.states) >= COPY_STREAMS


class CopySource(Protocol):
    """A store that is copied, which nobody else may use until it is closed."""

    @property
    def store(self) -> Store: ...

    @property
    def what(self) -> Source: ...

    async def check(self) -> None:
        """Check that nobody has used it so far. Raises CopyError if somebody may have."""

    async def close(self) -> None: ...


class CopyTarget(Protocol):
    """A store that is being made. Its methods may block; each change is durable when they return."""

    async def finished(self, stream_ids: Sequence[int]) -> set[int]:
        """Those streams that were copied as a whole."""

    async def end_of(self, stream_id: int) -> int | None:
        """The end of the bytes of a stream that was copied in part; None if there are none."""

    async def put(self, portion: Portion) -> None: ...

    async def put_position(self, source: Source) -> None:
        """Continue ids, times and the timeline where the source ends."""

    async def opened(self) -> Store:
        """The copy as a store, to compare it. Only `complete` and `close` may be called after this."""

    async def complete(self) -> None:
        """Make it a store that servers open."""

    async def close(self) -> None: ...


class CopyCounts(NamedTuple):
    streams: int
    documents: int
    size_bytes: int


def describe(store: Store, name: str, mark: str = "") -> Source:
    return Source(name, store.latest, store.next_id, store.streams, store.timeline, mark)


def check_same(target: str, before: Source, source: Source) -> None:
    """Check that an unfinished copy can be continued."""
    if before.name != source.name:
        raise CopyError(f"{target} is an unfinished copy of {before.name}, not of {source.name}; give another one")
    if before != source:
        raise CopyError(
            f"{source.name} was changed after the unfinished copy in {target} began; remove that copy and copy again"
        )


async def copy_store(store: Store, source: Source, target: CopyTarget, update: Progress) -> None:
    """Copy everything that the target does not have yet."""
    done_bytes = latest_ms = 0
    portion = Portion()
    async for states in _pages(store):
        finished = await target.finished([state.id for state in states])
        for brief in states:
            latest_ms = max(latest_ms, brief.accessed_ms, brief.appended_ms)
            if brief.id in finished:
                done_bytes += brief.size
                continue
            state = await _state_of(store, brief)
            async for run in _missing(store, state, await target.end_of(state.id)):
                portion.runs.append((run, state))
                portion.size_bytes += len(run.data)
                done_bytes += len(run.data)
                if portion.is_full:
                    await target.put(portion)
                    portion = Portion()
                    update(done_bytes, None)
            portion.states.append(state)
            if portion.is_full:
                await target.put(portion)
                portion = Portion()
                update(done_bytes, None)
    await target.put(portion)
    async for documents in _document_pages(store):
        await target.put(Portion(documents=documents))
    await target.put_position(_not_before(source, latest_ms))


def _not_before(source: Source, latest_ms: int) -> Source:
    """A source whose clock has reached the times of its records. A store without moments does not know its clock."""
    if source.latest.at_ms >= latest_ms:
        return source
    return msgspec.structs.replace(source, latest=Moment(latest_ms, latest_ms, 0, 0))


async def compare(store: Store, copy: Store, update: Progress) -> CopyCounts:
    """Read both and compare. Raises CopyError at the first difference."""
    count = size_bytes = document_count = 0
    _same("the timeline", store.timeline, copy.timeline)
    _same("the number of streams", store.streams, copy.streams)
    if copy.next_id < store.next_id:
        raise CopyError(f"the next id is {copy.next_id} in the copy and {store.next_id} in its source")
    copies = _each(_pages(copy))
    async for states in _pages(store):
        for brief in states:
            other = await anext(copies, None)
            _same("a path", brief.path, None if other is None else other.path)
            state = await _state_of(store, brief)
            _same(f"the state of {state.path}", state, await copy.load_id(state.id))
            await _compare_bytes(store, copy, state)
            count += 1
            size_bytes += state.size
            update(size_bytes, None)
    if (surplus := await anext(copies, None)) is not None:
        raise CopyError(f"the copy has a stream that its source lacks: {surplus.path}")
    others = _each(_document_pages(copy))
    async for documents in _document_pages(store):
        for document in documents:
            _same(f"document {document.key!r}", document, await anext(others, None))
            document_count += 1
    if (left := await anext(others, None)) is not None:
        raise CopyError(f"the copy has a document that its source lacks: {left.key!r}")
    return CopyCounts(count, document_count, size_bytes)


def _same(what: str, here: object, there: object) -> None:
    if here != there:
        raise CopyError(
            f"{what} is not the same in the copy and its source; was the source changed meanwhile? "
            "Remove the copy and make it again"
        )


async def _state_of(store: Store, brief: StreamState) -> StreamState:
    """The state of a stream with its producers, which pages do not have."""
    state = await store.load_id(brief.id)
    if state is None:
        raise CopyError(f"{brief.path} was deleted meanwhile; stop the servers of the source and copy again")
    return state


async def _pages(store: Store) -> AsyncIterator[list[StreamState]]:
    after: str | None = ""
    while after is not None:
        page = await store.page("", after, COPY_STREAMS)
        yield page.states
        after = page.next_after


async def _document_pages(store: Store) -> AsyncIterator[list[Document]]:
    after = ""
    while documents := await store.documents("", after, COPY_DOCUMENTS):
        yield documents
        after = documents[-1].key


async def _each(pages: AsyncIterator[list[T]]) -> AsyncIterator[T]:
    async for page in pages:
        for one in page:
            yield one


# Bytes


def kept_ranges(state: StreamState) -> Iterator[tuple[int, int]]:
    """The ranges of its own bytes that a stream or a fork of it can read. The others may be gone."""
    position = state.start
    for low, high in sorted(state.unread):
        if low > position:
            yield position, low
        position = max(position, high)
    if position < state.tail:
        yield position, state.tail


async def _missing(store: Store, state: StreamState, end: int | None) -> AsyncIterator[CopiedRun]:
    """The bytes of a stream after those that were copied."""
    for low, high in kept_ranges(state):
        position = low if end is None else max(low, end)
        while position < high:
            piece = await store.read(state.id, position, high, COPY_BATCH_BYTES)
            yield _run_of(state.id, piece)
            position = piece.next


def _run_of(stream_id: int, piece: Piece) -> CopiedRun:
    ends, times = array("Q"), array("Q")
    for record in piece.records():
        ends.append(record.position - piece.start)
        times.append(record.at_ms)
    return CopiedRun(stream_id, piece.start, ends, times, piece.data)


async def _compare_bytes(store: Store, copy: Store, state: StreamState) -> None:
    for low, high in kept_ranges(state):
        position = low
        while position < high:
            piece = await store.read(state.id, position, high, COPY_BATCH_BYTES)
            data, records = await _read_all(copy, state.id, position, piece.next)
            _same(f"the content of {state.path} from byte {position} on", piece.data, data)
            for here, there in zip_longest(piece.records(), records):
                _same(f"a record of {state.path} from byte {position} on", here, there)
            position = piece.next


async def _read_all(store: Store, stream_id: int, start: int, end: int) -> tuple[bytes, list[RecordEnd]]:
    parts: list[bytes] = []
    records: list[RecordEnd] = []
    while start < end:
        piece = await store.read(stream_id, start, end, end - start)
        parts.append(piece.data)
        records += piece.records()
        start = piece.next
    return b"".join(parts), records
