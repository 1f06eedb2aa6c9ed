"""The reader: information on streams, and their durable data in pieces of bounded size."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TypeVar

import msgspec

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedStream, loaded_stream
from headwater.engine.freshness import Freshness
from headwater.engine.large_reads import LargeReads
from headwater.engine.live import LiveReaders
from headwater.engine.loading import Loader
from headwater.engine.messages import (
    Read,
    ReadMore,
    ReadReply,
    StreamDetails,
    VisiblePage,
    VisibleStream,
)
from headwater.engine.writer import Writer
from headwater.errors import HeadwaterError, InvalidOffsetError, StreamNotFoundError, UnavailableError
from headwater.limits import Limits
from headwater.log.commands import Command, Expire, Reply
from headwater.log.deciding import check_not_expired, is_expired
from headwater.log.offsets import Names, Offset, Part
from headwater.log.state import Document
from headwater.store.contract import Store
from headwater.store.pieces import Piece, RecordEnd, UnalignedReadError, join, shifted

T = TypeVar("T")

_INSIDE_A_RECORD = "the offset is inside a record; use an offset from the server"


class DurableReader:
    """Reads what is durable: the information on a stream, its bytes, and lists of streams."""

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        loader: Loader,
        writer: Writer,
        live: LiveReaders,
        large: LargeReads,
        limits: Limits,
        now_ms: Callable[[], int],
        execute: Callable[[Command], Awaitable[Reply]],
    ) -> None:
        self._execute = execute
        self._freshness = None if writer.sharing is None else writer.sharing.freshness
        self._store = store
        self._catalogue = catalogue
        self._loader = loader
        self._writer = writer
        self._live = live
        self._limits = limits
        self._now_ms = now_ms
        self._large = large
        self._turn_s = 0.0  # time at which the next large read may start

    # Streams

    async def info(self, path: str) -> VisibleStream:
        """Information on a stream. This does not renew its time-to-live."""
        return (await self.find(path, renew=False)).info()

    async def details(self, path: str) -> StreamDetails:
        """What a stream is, beside its bytes. This does not renew its time-to-live."""
        stream = await self.find(path, renew=False)
        producers = stream.state.producers
        newest = tuple(islice(reversed(producers.items()), bounds.PRODUCERS_SHOWN_MAX))
        return StreamDetails(stream.info(), stream.state.forks, stream.readers, newest, len(producers))

    async def page(self, prefix: str, after: str, limit: int) -> VisiblePage:
        states, next_after = await self._store.page(prefix, after, limit)
        if self._freshness is not None:
            # Whether a stream has expired depends on the clock of the server, so it is there until it is deleted.
            present = [loaded_stream(state, durable=True).info() for state in states if not state.soft_deleted]
            return VisiblePage(tuple(present), next_after)
        now_ms = self._now_ms()
        page = []
        for state in states:
            stream = self._catalogue.visible(state.path) or loaded_stream(state, durable=True)
            if stream.live is not None:  # it does not expire, and so it must not be missing from this page either
                self._writer.renew_if_watched(stream, now_ms)
            if stream.deleted is None and not stream.state.soft_deleted and not is_expired(stream.state, now_ms):
                page.append(stream.info())
        return VisiblePage(tuple(page), next_after)

    async def find(self, path: str, *, renew: bool) -> LoadedStream:
        """The stream at a path, as readers see it. `renew`: renew its time-to-live."""
        if self._freshness is not None:
            return await self._find_fresh(self._freshness, path, renew=renew)
        stream = self._catalogue.visible(path)
        if stream is None:
            await self._loader.load(path)
            stream = self._catalogue.visible(path)
            if stream is None:
                raise StreamNotFoundError("no stream at this path")
        self._use(stream, renew=renew)
        return stream

    async def _find_fresh(self, freshness: Freshness, path: str, *, renew: bool) -> LoadedStream:
        """The same in a shared store: the stream is as it was at some moment since the call."""
        while True:
            stream = await freshness.at(path)
            if stream is None:
                raise StreamNotFoundError("no stream at this path")
            if not await self._expire(stream):
                self._use(stream, renew=renew)
                return stream

    async def _expire(self, stream: LoadedStream) -> bool:
        """Whether a stream has expired, by the clock of this server. Others may have another time, so its deletion is
        stored before anyone is told."""
        now_ms = self._now_ms()
        self._writer.renew_if_watched(stream, now_ms)
        if stream.deleted is not None or not is_expired(stream.state, now_ms):
            return False
        await self._execute(Expire(stream.path, now_ms))
        return True

    async def _recheck(self, stream: LoadedStream) -> None:
        """In a shared store, a stream is as it was at some moment since the call."""
        if self._freshness is not None:
            await self._freshness.recheck(stream)

    def _use(self, stream: LoadedStream, *, renew: bool) -> None:
        stream.used = True
        now_ms = self._now_ms()
        if stream.live is not None:
            self._writer.renew_if_watched(stream, now_ms)
        self._check_live(stream, now_ms)
        if renew and stream.state.ttl_s is not None:
            self._writer.renew(stream, now_ms)

    def _check_live(self, stream: LoadedStream, now_ms: int) -> None:
        if stream.deleted is not None:
            stream.check_not_deleted()
        check_not_expired(stream.state, now_ms)  # it may have expired although its deletion is not durable yet

    # Bytes

    async def read(self, message: Read) -> ReadReply:
        stream = self._catalogue.visible(message.path)
        if stream is None or self._freshness is not None:
            stream = await self.find(message.path, renew=True)
        else:
            self._use(stream, renew=True)
        until = None if message.until is None else self.position_of(stream, message.until)
        start = self.position_of(stream, message.offset, until)
        if until is not None:
            check_range(stream.names, start, until)
            await self.check_boundary(stream, until)
        if message.wait_s and start == stream.tail and (until is None or start < until):
            await self._live.wait(stream, start, message.wait_s)
            if self._freshness is not None:
                await self._freshness.recheck(stream)
                await self._expire(stream)
            self._check_live(stream, self._now_ms())
        return await self._read_from(stream, start, until, message.bytes_max)

    def position_of(self, stream: LoadedStream, offset: Offset | None, until: int | None = None) -> int:
        """The position of an offset. The beginning is that of a read up to `until`."""
        return stream.names.resolve(stream.tail, offset, self._catalogue.timeline, stream.first, until)

    async def read_more(self, message: ReadMore) -> ReadReply:
        await self._loader.load_id(message.stream_id)  # it may have been evicted since the last piece
        stream = self._live.followed(message.stream_id)
        stream.used = True
        if self._freshness is not None:
            await self._freshness.recheck(stream)
        return await self._read_from(stream, message.start, message.until, message.bytes_max)

    async def _read_from(self, stream: LoadedStream, start: int, until: int | None, bytes_max: int) -> ReadReply:
        info = stream.info()
        if start < info.first and not info.names.has(start):
            raise info.names.trimmed(info.first, start)
        end = info.tail if until is None else min(until, info.tail)
        if start >= end:
            return ReadReply(info, start, start, until, b"")
        if start < 0:
            end = next(part.end for part in info.names.parts(start, end))
        if end - start <= max(bytes_max, bounds.LARGE_READ_BYTES):
            piece = await self.piece(stream, start, end, bytes_max)
            return ReadReply(info, start, piece.next, until, piece.data)
        large = self._large
        held = large.find(stream.id, start, end, bytes_max)
        if held is None:
            async with large.turn:
                held = large.find(stream.id, start, end, bytes_max)  # another read may have loaded it in the meantime
                if held is None:
                    piece = await self.piece(stream, start, end, bytes_max)
                    if len(piece.data) <= max(bytes_max, bounds.LARGE_READ_BYTES):
                        return ReadReply(info, start, piece.next, until, piece.data)
                    held = large.hold(stream.id, start, piece.next, piece.data)
        return ReadReply(info, start, held.next, until, held.data, held)

    async def piece(self, stream: LoadedStream, start: int, end: int, bytes_max: int) -> Piece:
        """Whole records from `start` to at most `end`: as many as fit into about `bytes_max`, at least one.

        A piece ends where a snapshot ends. So its `next` is where its data ends, or, after the last byte of a snapshot,
        the position at which the stream continues."""
        end = min(end, stream.tail)
        if start < 0 or stream.state.lineage or start >= end:
            whole = await self._joined_piece(stream, start, end, bytes_max)
        else:
            try:
                whole = await self._store.read(stream.id, start, end, bytes_max)
            except (LookupError, UnalignedReadError) as error:
                raise await self._refusal(stream, error, start) from None
            _check_not_replaced(stream)
        if len(whole.data) >= bounds.LARGE_READ_BYTES:
            await self._pace(len(whole.data))
        return whole

    async def _joined_piece(self, stream: LoadedStream, start: int, end: int, bytes_max: int) -> Piece:
        """The same for a stream with a snapshot, or a fork, whose records may be stored in its ancestors."""
        pieces: list[Piece] = []
        left = bytes_max
        parts = deque(stream.names.parts(start, end))
        while parts and left > 0:
            for part, piece in await self._read_parts(stream, _fitting(parts, left), left):
                if part.start < 0:
                    return _at_next(piece, part)
                if pieces and len(piece.data) > left:
                    return join(pieces)
                pieces.append(piece)
                left -= len(piece.data)
                if piece.next < part.end:
                    return join(pieces)
        return join(pieces) if pieces else Piece(b"", start, start)

    async def _read_parts(self, stream: LoadedStream, parts: list[Part], bytes_max: int) -> list[tuple[Part, Piece]]:
        """Read parts together: the store answers many small reads at once in little more time than one."""
        reads = [
            self.own(
                stream,
                self._store.read(part.owner, part.start - part.shift, part.end - part.shift, bytes_max),
                part.start,
            )
            for part in parts
        ]
        pieces = [await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads)
        return [(part, shifted(piece, part.shift)) for part, piece in zip(parts, pieces, strict=True)]

    async def fetch_record(self, stream: LoadedStream, position: int, wanted: bool) -> bytes:
        """Check that a record begins at a position, and return it if it is `wanted`."""
        if not wanted:
            await self.check_boundary(stream, position)
            return b""
        return (await self.piece(stream, position, stream.tail, 1)).data if position < stream.tail else b""

    async def own(self, stream: LoadedStream, result: Awaitable[T], start: int) -> T:
        """Await a read of the store at a position. Errors are mapped, because the stream may have been deleted, or
        trimmed, in the meantime."""
        try:
            value = await result
        except (LookupError, UnalignedReadError) as error:
            raise await self._refusal(stream, error, start) from None
        _check_not_replaced(stream)
        return value

    async def _refusal(
        self, stream: LoadedStream, error: LookupError | UnalignedReadError, start: int
    ) -> HeadwaterError:
        """The error for the client, for a read from a position that the store refused."""
        await self._recheck(stream)
        if isinstance(error, UnalignedReadError):
            return InvalidOffsetError(_INSIDE_A_RECORD)
        stream = await self._current(stream)
        stream.check_not_deleted()
        state = stream.state  # the store may know of a trim before readers do
        if start < state.first and not state.names.has(start):
            return state.names.trimmed(state.first, start)
        return StreamNotFoundError("the stream was deleted")

    async def _current(self, stream: LoadedStream) -> LoadedStream:
        """A stream as it is now. One that was evicted during a read does not change any more; it is loaded again."""
        if self._freshness is not None or stream.deleted is not None:
            return stream
        current = self._catalogue.visible_by_id(stream.id)
        if current is None:
            await self._loader.load(stream.path)
            current = self._catalogue.visible(stream.path)
        return stream if current is None or current.id != stream.id else current

    async def record_at(self, stream: LoadedStream, position: int) -> RecordEnd:
        """The end and time of the record that begins at a position. If there is none any more, it was trimmed."""
        if position >= stream.tail or 0 <= position < stream.first:
            raise stream.state.names.trimmed(stream.first, position)
        return (await self.records(stream, next(stream.names.parts(position, stream.tail)), 1))[0]

    async def records(self, stream: LoadedStream, part: Part, limit: int) -> list[RecordEnd]:
        """The ends and times of the first records of a part. The last record of a snapshot ends where the stream
        continues. Those of a snapshot have the time of the last record that it replaces, so that times never
        decrease."""
        shift = part.shift
        stored = self._store.records(part.owner, part.start - shift, part.end - shift, limit)
        ends = await self.own(stream, stored, part.start)
        if part.start >= 0:
            return ends
        through_ms = stream.names.snapshot_at(part.start).through_ms
        places = [end.position + shift for end in ends]
        return [RecordEnd(part.next if place == part.end else place, through_ms) for place in places]

    async def check_boundary(self, stream: LoadedStream, position: int) -> None:
        """Refuse a position inside a record."""
        first = stream.first if position >= 0 else stream.names.snapshot_at(position).start
        if first < position < stream.tail and await self.boundary(stream, first, position) != position:
            raise InvalidOffsetError(_INSIDE_A_RECORD)

    async def boundary(self, stream: LoadedStream, start: int, position: int) -> int:
        """The last record boundary from `start`, which must be a boundary, to `position`."""
        begin = start
        for part in stream.names.parts(start, stream.tail):
            if position < part.end:
                stored = self._store.boundary(part.owner, position - part.shift)
                return max(begin, await self.own(stream, stored, part.start) + part.shift)
            if position < part.next:
                raise ValueError(f"position {position} is not between a snapshot and what follows it")
            begin = part.next
        return begin

    async def _pace(self, size_bytes: int) -> None:
        """Limit the rate of large reads while there are appends, so that they do not delay the appends."""
        if self._now_ms() - self._writer.written_ms > bounds.WRITING_MS:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(self._turn_s, now_s)
        self._turn_s = turn_s + size_bytes / self._limits.read_bytes_per_s_while_writing
        if turn_s > now_s:
            await asyncio.sleep(turn_s - now_s)

    # Documents

    async def document(self, key: str) -> Document | None:
        if self._freshness is not None:
            return await self._freshness.document(key)
        return (await self._loader.load_document(key)).durable

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        return await self._store.documents(prefix, after, limit)


def _check_not_replaced(stream: LoadedStream) -> None:
    """What was read may be of another database than the stream."""
    if stream.deleted is UnavailableError:
        stream.check_not_deleted()


def check_range(names: Names, start: int, until: int) -> None:
    """Refuse a range that begins in a snapshot and ends before what it replaces does: the snapshot has later data."""
    if start >= 0 or until <= start:
        return
    snapshot = names.snapshot_at(start)
    if not snapshot.has(until) and until < snapshot.next:
        raise InvalidOffsetError(
            "the range begins in a snapshot that compaction has made and ends before it does; begin at -1, or end at a "
            "later offset"
        )


def _fitting(parts: deque[Part], bytes_max: int) -> list[Part]:
    """Take parts from the front: the first one, and as many after it as fit with it into a number of bytes."""
    first = parts.popleft()
    fitting, size_bytes = [first], first.end - first.start
    while parts and first.start >= 0 and size_bytes + parts[0].end - parts[0].start <= bytes_max:
        size_bytes += parts[0].end - parts[0].start
        fitting.append(parts.popleft())
    return fitting


def _at_next(piece: Piece, part: Part) -> Piece:
    """A piece of a snapshot, after whose last byte the stream continues elsewhere."""
    return msgspec.structs.replace(piece, next=part.next) if piece.next == part.end else piece
