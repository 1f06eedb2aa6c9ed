"""The reader: what is durable, in bounded pieces; and waiting for more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.messages import (
    FindRecords,
    FindSplits,
    Read,
    ReadMore,
    ReadReply,
    RecordsReply,
    SplitsReply,
    StreamInfo,
    StreamPage,
)
from headwater.engine.tails import Subscriber, Tail
from headwater.engine.writer import Writer
from headwater.errors import InvalidOffsetError, StoppingError, StreamNotFoundError
from headwater.limits import Limits
from headwater.log.deciding import is_expired, live
from headwater.log.offsets import Offset, owners, resolve
from headwater.log.state import Document
from headwater.store.contract import Store
from headwater.store.pieces import Piece, RecordEnd, UnalignedReadError, join

T = TypeVar("T")


class Reader:
    def __init__(
        self, store: Store, catalogue: Catalogue, writer: Writer, limits: Limits, now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._writer = writer
        self._limits = limits
        self._now_ms = now_ms
        self._draining = False
        self._turn_s = 0.0  # when the next large read may go

    def drain(self) -> None:
        """Reads that wait for something new return at once from now on."""
        self._draining = True

    # Streams

    async def info(self, path: str) -> StreamInfo:
        """A stream as it is; this does not renew its time-to-live."""
        return (await self._find(path, renew=False)).info()

    async def page(self, prefix: str, after: str, limit: int) -> StreamPage:
        states = await self._store.page(prefix, after, limit)
        now_ms = self._now_ms()
        page = []
        for state in states:
            stream = self._catalogue.visible(state.path) or LoadedStream(state, durable=True)
            if stream.deleted is None and not stream.state.soft_deleted and not is_expired(stream.state, now_ms):
                page.append(stream.info())
        return StreamPage(tuple(page), states[-1].path if len(states) == limit else None)

    async def _find(self, path: str, *, renew: bool) -> LoadedStream:
        """The stream that readers find at a path; reading renews a sliding time-to-live, looking does not."""
        stream = self._catalogue.visible(path)
        if stream is None:
            await self._catalogue.load(path)
            stream = self._catalogue.visible(path)
            if stream is None:
                raise StreamNotFoundError("no stream at this path")
        stream.used = True
        now_ms = self._now_ms()
        self._writer.renew_if_watched(stream, now_ms)
        self._check_live(stream, now_ms)
        if renew:
            self._writer.renew(stream, now_ms)
        return stream

    def _check_live(self, stream: LoadedStream, now_ms: int) -> None:
        stream.check_not_deleted()
        if stream.state.deadline_ms is not None and not stream.state.soft_deleted:
            live(stream.state, now_ms)

    # Bytes

    async def read(self, asked: Read) -> ReadReply:
        stream = await self._find(asked.path, renew=True)
        start = _position(stream, asked.offset)
        until = None if asked.until is None else _position(stream, asked.until)
        if until is not None:
            await self._check_boundary(stream, until)
        if asked.wait_s and start == stream.tail and (until is None or start < until):
            await self._wait(stream, start, asked.wait_s)
            self._check_live(stream, self._now_ms())
        return await self._read_from(stream, start, until, asked.bytes_max)

    async def read_more(self, asked: ReadMore) -> ReadReply:
        stream = self._followed(asked.stream_id)
        return await self._read_from(stream, asked.start, asked.until, asked.bytes_max)

    async def _read_from(self, stream: LoadedStream, start: int, until: int | None, bytes_max: int) -> ReadReply:
        info = stream.info()
        end = info.tail if until is None else min(until, info.tail)
        if start >= end:
            return ReadReply(info, start, start, until, b"")
        piece = await self._piece(stream, start, end, bytes_max)
        return ReadReply(info, start, piece.next, until, piece.data)

    async def _piece(self, stream: LoadedStream, start: int, end: int, bytes_max: int) -> Piece:
        """Whole records from `start`, at least one and at most about `bytes_max`, none reaching past `end`."""
        pieces: list[Piece] = []
        left = bytes_max
        for owner, stop in owners(stream.id, stream.state.lineage, start, min(end, stream.tail)):
            piece = await self._own(stream, self._store.read(owner, start, stop, left))
            if pieces and len(piece.data) > left:
                break
            pieces.append(piece)
            start = piece.next
            left -= len(piece.data)
            if start < stop or left <= 0:
                break
        whole = join(pieces) if pieces else Piece(b"", start, start)
        if len(whole.data) >= bounds.LARGE_READ_BYTES:
            await self._pace(len(whole.data))
        return whole

    async def fetch_record(self, stream: LoadedStream, position: int, wanted: bool) -> bytes:
        """The record that begins at a position, if it is wanted; a position inside a record is refused."""
        if not wanted:
            await self._check_boundary(stream, position)
            return b""
        return (await self._piece(stream, position, stream.tail, 1)).data if position < stream.tail else b""

    async def _own(self, stream: LoadedStream, asked: Awaitable[T]) -> T:
        """What the store answers of a stream that may be deleted meanwhile."""
        try:
            return await asked
        except UnalignedReadError:
            raise InvalidOffsetError("the offset lies inside a record; use one that the server gave") from None
        except LookupError:
            stream.check_not_deleted()
            raise StreamNotFoundError("the stream was deleted") from None

    async def _check_boundary(self, stream: LoadedStream, position: int) -> None:
        """Refuse a position inside a record."""
        if 0 < position < stream.tail and await self._boundary(stream, 0, position) != position:
            raise InvalidOffsetError("the offset lies inside a record; use one that the server gave")

    async def _boundary(self, stream: LoadedStream, start: int, position: int) -> int:
        """The last position from `start` to the one given where a record begins or ends; `start` must be one."""
        begin = start
        for owner, stop in owners(stream.id, stream.state.lineage, start, stream.tail):
            if position < stop:
                return max(begin, await self._own(stream, self._store.boundary(owner, position)))
            begin = stop
        return begin

    async def _pace(self, size_bytes: int) -> None:
        """While appends come in, large reads share a bounded rate, so that they leave room for the writers."""
        if self._now_ms() - self._writer.written_ms > bounds.WRITING_MS:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(self._turn_s, now_s)
        self._turn_s = turn_s + size_bytes / self._limits.read_bytes_per_s_while_writing
        if turn_s > now_s:
            await asyncio.sleep(turn_s - now_s)

    # Records and split points

    async def records(self, asked: FindRecords) -> RecordsReply:
        stream = await self._find(asked.path, renew=False)
        info = stream.info()
        end = min(info.tail, _position(stream, asked.until))
        if asked.at_ms is None:
            start = _position(stream, asked.offset)
            await self._check_boundary(stream, start)
        else:
            start = await self._position_at(stream, asked.at_ms)
        found: list[RecordEnd] = []
        position = start
        for owner, stop in owners(stream.id, info.lineage, start, end):
            if len(found) < asked.limit:
                found += await self._own(stream, self._store.records(owner, position, stop, asked.limit - len(found)))
            position = stop
        return RecordsReply(info, start, end, tuple(found))

    async def _position_at(self, stream: LoadedStream, at_ms: int) -> int:
        """From where on everything was appended at or after a moment; the tail if nothing was."""
        start = 0
        for owner, stop in owners(stream.id, stream.state.lineage, 0, stream.tail):
            found = await self._own(stream, self._store.position_at(owner, at_ms))
            if found is not None and found < stop:
                return max(start, found)
            start = stop
        return stream.tail

    async def splits(self, asked: FindSplits) -> SplitsReply:
        stream = await self._find(asked.path, renew=False)
        info = stream.info()
        start, end = _position(stream, asked.offset), _position(stream, asked.until)
        await self._check_boundary(stream, start)
        await self._check_boundary(stream, end)
        places = await self._places(stream, start, max(start, end), asked)
        return SplitsReply(info, start, end, tuple(places))

    async def _places(self, stream: LoadedStream, start: int, end: int, asked: FindSplits) -> list[int]:
        found: list[int] = []
        last, step_bytes = start, asked.step_bytes
        for number in range(1, (asked.limit if step_bytes else asked.parts - 1) + 1):
            goal = last + step_bytes if step_bytes else start + (end - start) * number // asked.parts
            if goal >= end:
                break
            place = await self._boundary(stream, last, goal)
            if place <= last and step_bytes:
                place = (await self._piece(stream, last, end, 1)).next
            if last < place < end:
                found.append(place)
                last = place
            elif step_bytes:
                break
        return found

    # Live readers

    async def _wait(self, stream: LoadedStream, position: int, timeout_s: float) -> None:
        """Until the stream goes past a position, is closed or deleted, or the time is up."""
        if stream.tail > position or stream.closed or stream.deleted is not None or self._draining:
            return
        try:
            await _tail_of(stream).wait(timeout_s)
        finally:
            self._drop_tail(stream)

    def follow(self, stream_id: int, subscriber: Subscriber) -> StreamInfo:
        """Tell a subscriber of every change after what is returned. The stream must have been read just before."""
        stream = self._followed(stream_id)
        stream.check_not_deleted()
        if self._draining:
            raise StoppingError("the server accepts no more live readers")
        _tail_of(stream).subscribers.add(subscriber)
        return stream.info()

    def unfollow(self, stream_id: int, subscriber: Subscriber) -> None:
        stream = self._catalogue.by_id(stream_id)
        if stream is not None and stream.live is not None:
            stream.live.subscribers.discard(subscriber)
            self._drop_tail(stream)

    def _followed(self, stream_id: int) -> LoadedStream:
        stream = self._catalogue.by_id(stream_id)
        if stream is None:
            raise StreamNotFoundError("the stream was deleted")
        return stream

    def _drop_tail(self, stream: LoadedStream) -> None:
        if stream.live is not None and stream.live.empty:
            self._writer.renew(stream, self._now_ms())
            stream.live = None

    # Documents

    async def document(self, key: str) -> Document | None:
        return (await self._catalogue.load_document(key)).durable

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        return await self._store.documents(prefix, after, limit)


def _position(stream: LoadedStream, offset: Offset | None) -> int:
    return resolve(stream.id, stream.state.lineage, stream.tail, offset)


def _tail_of(stream: LoadedStream) -> Tail:
    if stream.live is None:
        stream.live = Tail()
    return stream.live
