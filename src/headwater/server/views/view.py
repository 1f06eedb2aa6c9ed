"""One view: a live reader of its source that appends what it converts to its target, together with its position.

| what happens                                | what follows                                                    |
|---------------------------------------------|-----------------------------------------------------------------|
| the source gets messages                    | they are converted and appended in one batch                    |
| a message cannot be converted               | it is counted and left out                                      |
| a `reset`, or the source was created again, | the view is emptied: its live keys are deleted, or it is reset  |
| or it was trimmed or compacted further than |                                                                 |
| the view had read                           |                                                                 |
| the source is deleted, or of another kind   | the view stays as it is and waits for another source            |
| the source is closed and read to its end    | the view is closed                                              |
| an append fails                             | retried with growing waits, from the stored position            |
| the view is deleted or expires              | its document is deleted                                         |
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import AsyncIterator, Sequence

import msgspec

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.engine import Engine
from headwater.engine.follower import Pulled
from headwater.engine.messages import Ended, Slice, VisibleStream
from headwater.errors import HeadwaterError, OffsetTrimmedError, StoppingError, StreamGoneError, StreamNotFoundError
from headwater.log.commands import Append, FramedBody, WriteDocument, WriteDocuments
from headwater.log.offsets import Offset
from headwater.protocol.state.as_events import RESET_EVENT
from headwater.protocol.state.batches import ConvertedBatch, Converter
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.tables.paths import name_of
from headwater.server.tables.active import ActiveViews
from headwater.server.views.definition import Definition, ViewDocument, ViewProgress, decode, encode, shown

log = logging.getLogger("headwater.views")

ABSENT = (StreamNotFoundError, StreamGoneError)


class ViewState(enum.Enum):
    FOLLOWING = "following"
    WAITING = "waiting"  # for a source
    RETRYING = "retrying"
    CLOSED = "closed"


class ViewStatus(msgspec.Struct, frozen=True):
    view: str
    name: str
    direction: str  # what the view is: a table or a stream
    source: str
    type: str
    record: str | None
    state: ViewState
    position: str | None  # in the source: an offset or a SeqNo; None: no source
    lag_bytes: int | None  # the same
    skipped: int
    last_skipped: str | None  # why
    last_error: str | None
    since: str  # when the state began


class ViewGoneError(Exception):
    """The view was deleted, or has expired."""


class _SourceMissingError(Exception):
    """There is no source, or it cannot be converted."""


class View:
    """One view. `turns` limits how many views catch up at the same time."""

    def __init__(
        self, engine: Engine, active: ActiveViews, turns: asyncio.Semaphore, key: str, document: ViewDocument
    ) -> None:
        self.key = key
        self.definition: Definition = document.definition
        self._engine = engine
        self._active = active
        self._turns = turns
        self._progress = document.progress
        self._recorded = document.progress  # in the document
        self._version = 0  # of the document
        self._content_type, self.target_id = "", 0  # of the target; 0: it was not opened yet
        self._source_offset: Offset | None = None  # up to which the source is converted, while there is one
        self._pulled: Pulled | None = None  # the source, since it was first followed
        self._state = ViewState.WAITING
        self._since_ms = engine.now_ms()
        self._last_error: str | None = None
        self._streak = Streak(Backoff(limits.RETRY_FIRST_S, limits.RETRY_MAX_S))  # of failures without progress

    def status(self) -> ViewStatus:
        definition, progress, offset, pulled = self.definition, self._progress, self._source_offset, self._pulled
        position = None
        if offset is not None:
            position = format_offset(offset) if definition.is_table else str(progress.last_seqno)
        return ViewStatus(
            view=shown(definition.target),
            name=name_of(definition.target) if definition.is_table else definition.target,
            direction="table" if definition.is_table else "stream",
            source=shown(definition.source),
            type=definition.type,
            record=None if definition.record is None else definition.record.value,
            state=self._state,
            position=position,
            lag_bytes=None if offset is None or pulled is None else pulled.follower.left_bytes(progress.position),
            skipped=progress.skipped,
            last_skipped=progress.reason,
            last_error=self._last_error,
            since=format_instant(self._since_ms),
        )

    async def run(self) -> None:
        """Keep the view current until it is closed or the server stops. Raises ViewGoneError if it is deleted."""
        while not self._is_draining and self._state is not ViewState.CLOSED:
            wait_s = 0.0
            try:
                await self._follow()
            except _SourceMissingError as error:
                self._note(ViewState.WAITING, str(error))
                wait_s = limits.VIEW_LOOK_S
            except StoppingError:
                return
            except (*ABSENT, OffsetTrimmedError):  # source or target was deleted meanwhile, or what follows was removed
                wait_s = limits.RETRY_FIRST_S
            except ViewGoneError:
                raise
            except Exception as error:
                if not isinstance(error, HeadwaterError):
                    log.exception("view %s failed", shown(self.definition.target))
                self._note(ViewState.RETRYING, str(error) or type(error).__name__)
                wait_s = self._streak.fail()
            await asyncio.sleep(wait_s)

    @property
    def _is_draining(self) -> bool:
        return self._pulled is not None and self._pulled.reason is Ended.DRAINING

    # Following

    async def _follow(self) -> None:
        """Follow the source from the stored position until it is closed or something fails."""
        target = await self._open()
        if target.closed:
            self._note(ViewState.CLOSED)
            return
        source = await self._find_source()
        if not self._has_place_in(source):
            before = self._progress
            await self._clear(ViewProgress(source.id, source.begin, skipped=before.skipped, reason=before.reason))
            source = await self._find_source()
            if not self._has_place_in(source):
                return
        converter = self.definition.converter((target if self.definition.is_table else source).content_type)
        pulled = self._pulled = Pulled(
            self._engine, "view", source, self._progress.position, bytes_max=limits.VIEW_READ_BYTES
        )
        pulled.follower.open()
        self._source_offset = pulled.follower.offset
        self._note(ViewState.FOLLOWING)
        try:
            while await self._step(pulled, converter):
                pass
        finally:
            pulled.follower.close()

    def _has_place_in(self, source: VisibleStream) -> bool:
        """Whether the view can continue where it is. Otherwise the source was created again, or what follows was
        removed."""
        position = self._progress.position
        return source.id == self._progress.source_id and (position >= source.first or source.names.has(position))

    async def _open(self) -> VisibleStream:
        """Open the target, and load the stored position."""
        document = await self._engine.document(self.key)
        try:
            target = await self._engine.info(self.definition.target)
        except ABSENT:
            raise ViewGoneError from None
        if document is None:
            raise ViewGoneError
        self._version, self._content_type, self.target_id = document.version, target.content_type, target.id
        self._progress = self._recorded = decode(document.data).progress
        return target

    async def _find_source(self) -> VisibleStream:
        path = self.definition.source
        self._source_offset = None
        try:
            source = await self._engine.info(path)
        except ABSENT:
            raise _SourceMissingError(f"{shown(path)} does not exist") from None
        fault = self.definition.fault_of(source)
        if fault is not None:
            raise _SourceMissingError(fault)
        return source

    async def _step(self, pulled: Pulled, converter: Converter) -> bool:
        """Convert the next slice of the source. False: there is no more.

        A large slice, and each slice of a view that catches up, needs a turn.
        """
        behind_bytes = pulled.follower.left_bytes(pulled.follower.position)
        async with self._turn(behind_bytes):
            piece = await pulled.next()
            if piece is None:
                return False
            async with self._turn(len(piece.data) if behind_bytes <= limits.VIEW_INLINE_BYTES else 0):
                await self._convert(piece, converter)
        if piece.closed:
            await self._append((), self._progress, close=True)
            self._note(ViewState.CLOSED)
        return not piece.closed

    @contextlib.asynccontextmanager
    async def _turn(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait for a turn to convert much: it needs memory and a thread."""
        if size_bytes <= limits.VIEW_INLINE_BYTES:
            yield
        else:
            async with self._turns:
                yield

    async def _convert(self, piece: Slice, converter: Converter) -> None:
        batches = converter.convert(piece.data, self._progress.taken)
        inline = len(piece.data) <= limits.VIEW_INLINE_BYTES
        last = not piece.data
        while not last:
            batch = next(batches) if inline else await asyncio.to_thread(next, batches)
            await self._take(batch, self._progress.after(batch, piece.next))
            last = batch.last
        self._source_offset = piece.offset
        if inline:
            await asyncio.sleep(0)

    # Appending

    async def _take(self, batch: ConvertedBatch, after: ViewProgress) -> None:
        if batch.reset:
            if batch.records:  # stop before the reset, so that it is found again after a failure
                await self._append(batch.records, msgspec.structs.replace(after, taken=batch.taken - 1))
            await self._clear(after)
        elif batch.records:
            await self._append(batch.records, after)
        else:
            self._progress = after
            if after.position - self._recorded.position >= limits.VIEW_UNRECORDED_BYTES:
                await self._record(after)

    async def _clear(self, after: ViewProgress) -> None:
        """Empty the view. Keys that were deleted before a crash are not live any more."""
        if not self.definition.is_table:
            await self._append((RESET_EVENT,), after)
            return
        table = await self._engine.info(self.definition.target)
        rows = (await self._active.rows_of(self._engine, self._engine.limits, table)).after(0)
        for start in range(0, len(rows), limits.VIEW_BATCH_RECORDS):
            some = rows[start : start + limits.VIEW_BATCH_RECORDS]
            deletes = [b"-\t%b\t" % row.split(b"\t", 4)[3] for row in some]
            await self._append(deletes, after if start + len(some) == len(rows) else self._progress)
        if not rows:
            await self._record(after)

    async def _append(self, records: Sequence[bytes], progress: ViewProgress, *, close: bool = False) -> None:
        """Append records and store the position, atomically."""
        body, framed = b"", None
        if records and self.definition.is_table:
            body = b"\n".join(records)
        elif records:
            joined = b",".join(records)
            body, framed = b"[%b]" % joined, FramedBody(joined + b",")
        command = Append(
            self.definition.target,
            self._engine.now_ms(),
            body,
            self._content_type,
            close=close,
            documents=(self._document(progress),),
            framed=framed,
            stream_id=self.target_id,
            keeper=self.key,
        )
        try:
            await self._engine.execute(command)
        except StreamGoneError:
            raise ViewGoneError from None
        self._written(progress)

    async def _record(self, progress: ViewProgress) -> None:
        await self._engine.execute(WriteDocuments((self._document(progress),)))
        self._written(progress)

    def _document(self, progress: ViewProgress) -> WriteDocument:
        return WriteDocument(self.key, encode(ViewDocument(self.definition, progress)), expected=self._version)

    def _written(self, progress: ViewProgress) -> None:
        self._version += 1
        self._progress = self._recorded = progress
        self._streak.reset()

    def _note(self, state: ViewState, error: str | None = None) -> None:
        if (state, error) == (self._state, self._last_error):
            return
        if state is not self._state:
            self._state, self._since_ms = state, self._engine.now_ms()
        self._last_error = error
        level = logging.WARNING if state is ViewState.RETRYING else logging.INFO
        log.log(level, "view %s: %s%s", shown(self.definition.target), state.value, f": {error}" if error else "")
