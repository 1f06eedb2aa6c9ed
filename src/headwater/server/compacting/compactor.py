"""Finds the streams and tables that are to be compacted, and compacts them, one at a time.

| what happens                                     | what follows                                                      |
|--------------------------------------------------|-------------------------------------------------------------------|
| the server starts                                | snapshots that no stream uses are deleted; all streams are looked |
|                                                  | through for candidates                                            |
| a stream whose retention says `compact` has      | it is a candidate                                                 |
| enough that is newer than its last snapshot      |                                                                   |
| a look at a candidate: enough of it is old       | it is compacted                                                   |
| a look: otherwise                                | it is looked at again later                                       |
| the snapshot would not save half                 | nothing is replaced; the next run is when the front has doubled   |
| a run fails                                      | it is repeated, after growing waits                               |
| a candidate is deleted, its retention changes,   | it is one no more                                                 |
| or it has not enough any more                    |                                                                   |
| a request asks for it                            | it is compacted up to its end, if the snapshot is smaller         |

Enough is as much as the last snapshot has, and at least `compact_bytes_min`. The writer says after each append how much
there is, so streams without appends cost nothing, however many there are. What is kept of a stream is a number in a
dictionary, which the garbage collector does not look at.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec

from headwater import limits as bounds
from headwater.backoff import Backoff, Streak
from headwater.engine import Engine
from headwater.engine.messages import FindFront, VisibleStream
from headwater.errors import HeadwaterError, StoppingError, StreamGoneError, StreamNotFoundError
from headwater.limits import Limits
from headwater.log.commands import Delete
from headwater.server.compacting.compaction import (
    Compaction,
    CompactionResult,
    RemoteContent,
    SnapshotFailedError,
    SubprocessContent,
)
from headwater.tasks import Tasks

log = logging.getLogger("headwater.compacting")

_SAVES_HALF = 0.5
_ABSENT = (StreamNotFoundError, StreamGoneError)


class CompactionCounts(msgspec.Struct):
    """What the runs since the start of the server have done."""

    runs: int = 0  # that replaced a front
    skipped: int = 0  # that found the snapshot too large
    failures: int = 0
    before_bytes: int = 0  # of the fronts that were replaced
    after_bytes: int = 0  # of their snapshots
    failing: int = 0  # streams whose last run failed


class Compactor:
    """Compacts streams and tables of an engine."""

    def __init__(
        self, engine: Engine, limits: Limits, open_content: Callable[[], RemoteContent] = SubprocessContent
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._open_content = open_content
        self._candidates: dict[str, float] = {}  # when each is looked at
        self._front_bytes_min: dict[str, int] = {}  # of streams that were not replaced: a smaller front would not be
        self._streaks: dict[str, Streak] = {}  # of streams whose last run failed
        self._turn = asyncio.Lock()  # held by the run
        self._tasks = Tasks()
        self.counts = CompactionCounts()
        self._succeeded_s = time.monotonic()  # when the last run ended that did not fail, or the server started

    @property
    def age_s(self) -> float:
        """The time since a run ended that did not fail, or since the server started."""
        return time.monotonic() - self._succeeded_s

    async def start(self) -> None:
        await self._remove_unused()
        self._engine.note_compactable(self.note)
        self._tasks.start(self._find())
        self._tasks.start(self._run())

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tasks.ended()

    def note(self, path: str, new_bytes: int, front_bytes: int) -> None:
        """A stream that is to be compacted has so many bytes for a new reader, and as many of them are newer than its
        last snapshot."""
        if path not in self._candidates and self._is_enough(path, new_bytes, front_bytes):
            self._candidates[path] = self._now_s()

    def _is_enough(self, path: str, new_bytes: int, front_bytes: int) -> bool:
        """Whether a snapshot of these bytes may save half of them."""
        return new_bytes >= max(self._limits.compact_bytes_min, front_bytes - new_bytes) and (
            front_bytes >= self._front_bytes_min.get(path, 0)
        )

    async def compact_now(self, path: str) -> CompactionResult:
        """Compact a stream up to its end, if the snapshot is smaller than what it replaces."""
        return await self._compact(path, at_ms=None, share=1.0)

    # Finding

    async def _remove_unused(self) -> None:
        """Delete what interrupted runs have written. A snapshot that is used is not listed."""
        after: str | None = ""
        while after is not None:
            page = await self._engine.page(bounds.SNAPSHOT_PREFIX, after, bounds.LIST_PAGE_MAX)
            for stream in page.streams:
                with contextlib.suppress(*_ABSENT):
                    await self._engine.execute(Delete(stream.path, self._engine.now_ms()))
            after = page.next_after

    async def _find(self) -> None:
        """Look through all streams once."""
        after: str | None = ""
        while after is not None:
            try:
                page = await self._engine.page("", after, bounds.LIST_STEP_PATHS)
            except HeadwaterError as error:
                log.warning("the streams to compact are not all known, retrying: %s", error)
                await asyncio.sleep(bounds.COMPACT_RETRY_S)
                continue
            for stream in page.streams:
                if _is_to_compact(stream):
                    self.note(stream.path, *_bytes_of(stream, stream.begin, stream.tail))
            after = page.next_after
            await asyncio.sleep(bounds.COMPACT_FIND_S)

    # Looking

    async def _run(self) -> None:
        while True:
            now_s = self._now_s()
            for path in [path for path, at_s in self._candidates.items() if at_s <= now_s]:
                await self._look(path)
            await asyncio.sleep(bounds.COMPACT_LOOK_S_MIN)

    async def _look(self, path: str) -> None:
        """Compact a stream if it is time, and note when it is to be looked at again."""
        try:
            stream = await self._engine.info(path)
            if not _is_to_compact(stream):
                raise StreamNotFoundError("its retention does not say so any more")
            if self._is_enough(path, *_bytes_of(stream, stream.begin, stream.tail)):
                await self._compact_old(path, self._after_s(stream))
            else:
                del self._candidates[path]
        except _ABSENT:
            self._forget(path)
        except StoppingError:
            self._candidates[path] = self._now_s() + bounds.COMPACT_LOOK_S_MAX
        except Exception as error:  # noqa: BLE001 - noted
            self._note_failure(path, error)
        self.counts.failing = len(self._streaks)

    async def _compact_old(self, path: str, after_s: int) -> None:
        """Compact a stream if enough of it is old."""
        wait_s = min(max(after_s / 4, bounds.COMPACT_LOOK_S_MIN), bounds.COMPACT_LOOK_S_MAX)
        self._candidates[path] = self._now_s() + wait_s
        at_ms = self._engine.now_ms() - after_s * 1000
        front = await self._engine.front(FindFront(path, at_ms))
        if self._is_enough(path, *_bytes_of(front.stream, front.start, front.end)):
            result = await self._compact(path, at_ms=at_ms, share=_SAVES_HALF)
            self._front_bytes_min.pop(path, None)
            if not result.compacted:
                self._front_bytes_min[path] = 2 * result.before_bytes
        self._streaks.pop(path, None)

    def _forget(self, path: str) -> None:
        for known in (self._candidates, self._front_bytes_min, self._streaks):
            known.pop(path, None)

    def _after_s(self, stream: VisibleStream) -> int:
        """The age from which on the records of a stream are replaced."""
        wanted_s = None if stream.retention is None else stream.retention.compact_after_s
        return self._limits.compact_after_s if wanted_s is None else max(wanted_s, bounds.COMPACT_AFTER_S_MIN)

    def _note_failure(self, path: str, error: Exception) -> None:
        streak = self._streaks.setdefault(path, Streak(Backoff(bounds.COMPACT_RETRY_S, bounds.COMPACT_RETRY_MAX_S)))
        wait_s = streak.fail()
        self._candidates[path] = self._now_s() + wait_s
        if not isinstance(error, HeadwaterError | SnapshotFailedError):
            log.exception("compacting %r failed", path)
            return
        level = logging.WARNING if streak.failures == 1 else logging.INFO
        log.log(level, "compacting %r failed, again in %.0f s: %s", path, wait_s, error)

    # Compacting

    async def _compact(self, path: str, *, at_ms: int | None, share: float) -> CompactionResult:
        counts = self.counts
        async with self._turn:
            try:
                compaction = Compaction(self._engine, self._limits, path, self._open_content, at_ms=at_ms, share=share)
                result = await compaction.run()
            except (*_ABSENT, StoppingError):
                raise
            except Exception:
                counts.failures += 1
                raise
        self._succeeded_s = time.monotonic()
        if result.compacted:
            counts.runs += 1
            counts.before_bytes += result.before_bytes
            counts.after_bytes += result.after_bytes
            log.info(
                "compacted %r: %d to %d bytes in %.1f s", path, result.before_bytes, result.after_bytes, result.seconds
            )
        else:
            counts.skipped += 1
            log.info("%r was not compacted: %s", path, result.reason)
        return result

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def _is_to_compact(stream: VisibleStream) -> bool:
    return stream.retention is not None and stream.retention.compact


def _bytes_of(stream: VisibleStream, start: int, end: int) -> tuple[int, int]:
    """How many bytes of a range for a new reader are newer than the last snapshot, and how many it has."""
    newest = stream.names.newest
    return end - (stream.first if newest is None else newest.next), stream.size(start, end)
