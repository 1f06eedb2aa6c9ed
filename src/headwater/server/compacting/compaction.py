"""One run of a compaction: read the front of a stream, compute the snapshot, write it, and let readers get it.

Until the last command nothing of the stream changes, and that command is one record. So a run may end at any moment.
What it has written by then is a stream that no other one uses; it is deleted, at the latest when the server starts
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import msgspec

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.engine.messages import FindFront, FrontReply, ReadMore, VisibleStream
from headwater.errors import ConflictError, HeadwaterError, StreamNotFoundError
from headwater.limits import Limits
from headwater.log.commands import Append, Compact, Create, Delete
from headwater.log.content import ROWS, ContentKind
from headwater.protocol.streams.offsets import format_offset
from headwater.server.compacting.contents import ContentSize
from headwater.server.compacting.snapshot_worker import Begin, SnapshotAnswer
from headwater.worker_process import WorkerLostError, WorkerProcess

_WORKER = "headwater.server.compacting.snapshot_worker"


class RemoteContent(Protocol):
    """The content of a snapshot, which is computed elsewhere."""

    async def begin(self, begin: Begin) -> None: ...

    async def add(self, data: bytes) -> None: ...

    async def finish(self) -> ContentSize: ...

    async def record(self, size_bytes: int) -> bytes:
        """The next record of the snapshot; empty after the last one."""

    async def close(self) -> None: ...


class SnapshotFailedError(Exception):
    """The process that computes a snapshot has ended or reported an error."""


class SubprocessContent:
    """The content of one snapshot, in a process of its own."""

    def __init__(self) -> None:
        self._worker = WorkerProcess(_WORKER, stop_s=bounds.FOLD_STOP_S)
        self._begin = b""

    async def begin(self, begin: Begin) -> None:
        self._begin = msgspec.json.encode(begin) + b"\n"

    async def add(self, data: bytes) -> None:
        await self._ask(b"%d\n%b" % (len(data), data))

    async def finish(self) -> ContentSize:
        answer, _ = await self._ask(b"0\n")
        if answer.content is None:
            raise SnapshotFailedError("the process that computes the snapshot did not say how large it is")
        return answer.content

    async def record(self, size_bytes: int) -> bytes:
        return (await self._ask(b"%d\n" % size_bytes))[1]

    async def _ask(self, task: bytes) -> tuple[SnapshotAnswer, bytes]:
        begin, self._begin = self._begin, b""
        try:
            answer, data = await self._worker.ask(begin + task, _taken, bounds.COMPACT_TIMEOUT_S)
        except WorkerLostError as error:
            raise SnapshotFailedError(f"the process that computes the snapshot: {error}") from error
        if answer.error is not None:
            raise SnapshotFailedError(answer.error)
        return answer, data

    async def close(self) -> None:
        await self._worker.kill()


async def _taken(output: asyncio.StreamReader) -> tuple[SnapshotAnswer, bytes]:
    line = await output.readline()
    if not line:
        raise WorkerLostError("it did not answer")
    try:
        answer = msgspec.json.decode(line, type=SnapshotAnswer)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WorkerLostError(f"its answer {line[:100]!r} is invalid") from error
    return answer, await output.readexactly(answer.size) if answer.size else b""


class CompactionResult(msgspec.Struct, frozen=True):
    """What a run has done."""

    compacted: bool
    before_bytes: int  # that a new reader got of the front
    after_bytes: int  # the same with the snapshot
    reason: str = ""  # why the front was not replaced
    seconds: float = 0.0


class Compaction:
    """A run for one stream. `share`: the front is replaced if the snapshot has less than this share of its bytes."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        path: str,
        open_content: Callable[[], RemoteContent] = SubprocessContent,
        *,
        at_ms: int | None,
        share: float,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._path = path
        self._open_content = open_content
        self._at_ms = at_ms  # records that were appended before are replaced; None: all of them
        self._share = share
        self._wait = wait

    async def run(self) -> CompactionResult:
        began_s = time.monotonic()
        front = await self._engine.front(FindFront(self._path, self._at_ms))
        check_compactable(front.stream, self._engine.now_ms())
        before_bytes = front.stream.size(front.start, front.end)
        newest = front.stream.names.newest
        if front.end <= (front.stream.first if newest is None else newest.next):
            return CompactionResult(compacted=False, before_bytes=0, after_bytes=0, reason="there is nothing new")
        content = self._open_content()
        try:
            size = await self._computed(content, front)
            if size.size_bytes >= before_bytes * self._share:
                reason = f"the snapshot would have {size.size_bytes} of {before_bytes} bytes"
                return CompactionResult(
                    compacted=False, before_bytes=before_bytes, after_bytes=size.size_bytes, reason=reason
                )
            written = await self._replace(front, content, size)
        finally:
            await content.close()
        seconds = time.monotonic() - began_s
        return CompactionResult(compacted=True, before_bytes=before_bytes, after_bytes=written, seconds=seconds)

    async def _computed(self, content: RemoteContent, front: FrontReply) -> ContentSize:
        stream = front.stream
        newest = stream.names.newest
        await content.begin(
            Begin(
                is_table=stream.kind >= ROWS,
                memory_bytes=self._limits.compact_memory_bytes,
                offset=format_offset(stream.offset(front.end)),
                deleted_before_ms=self._engine.now_ms() - round(self._limits.compact_deletions_s * 1000),
                complete_since=stream.trimmed_seqno if newest is None else newest.complete_since,
            )
        )
        async for data in self._pieces(front):
            await content.add(data)
            await self._wait(len(data) / self._limits.compact_bytes_per_s)
        return await content.finish()

    async def _pieces(self, front: FrontReply) -> AsyncIterator[bytes]:
        """What a new reader gets of the front. The stream is loaded again for each piece: it may be evicted."""
        position = front.start
        while position < front.end:
            stream = await self._engine.info(self._path)
            if stream.id != front.stream.id:
                raise StreamNotFoundError("the stream was deleted")
            reply = await self._engine.read_more(ReadMore(stream.id, position, front.end, bounds.COMPACT_READ_BYTES))
            position = reply.next
            yield reply.data

    async def _replace(self, front: FrontReply, content: RemoteContent, size: ContentSize) -> int:
        """Write the snapshot and let readers get it. Returns its size."""
        engine, stream = self._engine, front.stream
        path = f"{bounds.SNAPSHOT_PREFIX}{self._path}/{bounds.SNAPSHOT_PREFIX}{stream.id}-{front.end}"
        await self._remove(path)  # that of a run that was interrupted
        kind = ContentKind.MIRROR if stream.kind >= ROWS else stream.kind
        await engine.execute(
            Create(path=path, now_ms=engine.now_ms(), content_type=stream.content_type, kind=kind, owner=stream.owner)
        )
        try:
            written = 0
            while record := await content.record(bounds.COMPACT_RECORD_BYTES):
                reply = await engine.execute(Append(path, engine.now_ms(), record, stream.content_type))
                written = written if reply.tail is None else reply.tail.position
                await self._wait(len(record) / self._limits.compact_bytes_per_s)
            newest = stream.names.newest
            await engine.execute(
                Compact(
                    path=self._path,
                    now_ms=engine.now_ms(),
                    stream_id=stream.id,
                    snapshot_path=path,
                    next=front.end,
                    newest=0 if newest is None else newest.id,
                    first=stream.first,
                    through_ms=front.through_ms,
                    seqno=front.seqno,
                    complete_since=size.complete_since,
                )
            )
        except BaseException:
            with contextlib.suppress(HeadwaterError):
                await self._remove(path)
            raise
        return written

    async def _remove(self, path: str) -> None:
        with contextlib.suppress(StreamNotFoundError):
            await self._engine.execute(Delete(path, self._engine.now_ms()))


def check_compactable(stream: VisibleStream, now_ms: int) -> None:
    """Refuse a stream that cannot have a snapshot."""
    if stream.kind < ROWS and stream.kind is not ContentKind.JSON:
        raise ConflictError("only JSON streams of state events and tables can be compacted; this is neither")
    if not stream.names.can_have(max(now_ms * 1000, stream.id + 1)):  # about the id that the snapshot will have
        raise ConflictError(
            f"the id {stream.id} of the stream does not allow offsets before its own, so it cannot be compacted; "
            "copy it to a new stream"
        )
