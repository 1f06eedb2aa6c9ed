"""Finds the streams and tables that are to be compacted, and compacts them, one at a time.

| what happens                                     | what follows                                                      |
|--------------------------------------------------|-------------------------------------------------------------------|
| the server starts                                | snapshots that no stream uses are deleted; all streams are looked |
|                                                  | through for those whose retention says `compact`                  |
| a stream is created with such a retention, or it | it is looked at                                                   |
| is changed to one                                |                                                                   |
| a look: enough was appended that is old enough   | it is compacted                                                   |
| a look: otherwise                                | it is looked at again later                                       |
| the snapshot would not save half                 | nothing is replaced; the next run is when the front has doubled   |
| a run fails                                      | it is repeated, after growing waits                               |
| the stream is deleted, or its retention changed  | it is forgotten                                                   |
| a request asks for it                            | it is compacted up to its end, if the snapshot is smaller         |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.engine import Engine
from headwater.engine.messages import FindFront, VisibleStream
from headwater.errors import HeadwaterError, StoppingError, StreamGoneError, StreamNotFoundError
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


class _Candidate:
    """A stream that is to be compacted."""

    __slots__ = ("at_s", "front_bytes_min", "streak")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s  # when it is looked at
        self.front_bytes_min = 0  # a smaller front would not be replaced
        self.streak = Streak(Backoff(limits.COMPACT_RETRY_S, limits.COMPACT_RETRY_MAX_S))


class Compactor:
    """Compacts streams and tables of an engine."""

    def __init__(self, engine: Engine, open_content: Callable[[], RemoteContent] = SubprocessContent) -> None:
        self._engine = engine
        self._open_content = open_content
        self._candidates: dict[str, _Candidate] = {}
        self._turn = asyncio.Lock()  # held by the run
        self._woken = asyncio.Event()
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

    def note(self, path: str) -> None:
        """A stream is to be compacted from now on."""
        self._candidates[path] = _Candidate(self._now_s())
        self._woken.set()

    async def compact_now(self, path: str) -> CompactionResult:
        """Compact a stream up to its end, if the snapshot is smaller than what it replaces."""
        return await self._compact(path, at_ms=None, share=1.0)

    # Finding

    async def _remove_unused(self) -> None:
        """Delete what interrupted runs have written. A snapshot that is used is not listed."""
        after: str | None = ""
        while after is not None:
            page = await self._engine.page(limits.SNAPSHOT_PREFIX, after, limits.LIST_PAGE_MAX)
            for stream in page.streams:
                with contextlib.suppress(*_ABSENT):
                    await self._engine.execute(Delete(stream.path, self._engine.now_ms()))
            after = page.next_after

    async def _find(self) -> None:
        """Look through all streams once."""
        after: str | None = ""
        while after is not None:
            try:
                page = await self._engine.page("", after, limits.LIST_STEP_PATHS)
            except HeadwaterError as error:
                log.warning("the streams to compact are not all known, retrying: %s", error)
                await asyncio.sleep(limits.COMPACT_RETRY_S)
                continue
            for stream in page.streams:
                if _is_to_compact(stream) and stream.path not in self._candidates:
                    self.note(stream.path)
            after = page.next_after
            await asyncio.sleep(limits.COMPACT_FIND_S)

    # Looking

    async def _run(self) -> None:
        while True:
            now_s = self._now_s()
            due = [path for path, candidate in self._candidates.items() if candidate.at_s <= now_s]
            for path in due:
                await self._look(path)
            self._woken.clear()
            next_s = min([one.at_s for one in self._candidates.values()], default=now_s + limits.COMPACT_LOOK_S_MAX)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_s - self._now_s())):
                    await self._woken.wait()

    async def _look(self, path: str) -> None:
        """Compact a stream if it is time, and note when it is to be looked at again."""
        candidate = self._candidates[path]
        try:
            stream = await self._engine.info(path)
            if not _is_to_compact(stream):
                raise StreamNotFoundError("its retention does not say so any more")
            after_s = after_s_of(stream)
            candidate.at_s = self._now_s() + min(max(after_s / 4, limits.COMPACT_LOOK_S_MIN), limits.COMPACT_LOOK_S_MAX)
            at_ms = self._engine.now_ms() - after_s * 1000
            if not await self._is_worth_it(path, at_ms, candidate):
                return
            result = await self._compact(path, at_ms=at_ms, share=_SAVES_HALF)
        except _ABSENT:
            if self._candidates.get(path) is candidate:
                del self._candidates[path]
        except StoppingError:
            candidate.at_s = self._now_s() + limits.COMPACT_LOOK_S_MAX
        except Exception as error:  # noqa: BLE001 - noted
            self._note_failure(path, candidate, error)
        else:
            candidate.streak.reset()
            candidate.front_bytes_min = 0 if result.compacted else 2 * result.before_bytes
        self.counts.failing = sum(one.streak.failures > 0 for one in self._candidates.values())

    async def _is_worth_it(self, path: str, at_ms: int, candidate: _Candidate) -> bool:
        """Whether so much was appended since the last snapshot that another one may save half of the front."""
        front = await self._engine.front(FindFront(path, at_ms))
        newest = front.stream.names.newest
        replaced = front.stream.first if newest is None else newest.next
        snapshot_bytes = 0 if newest is None else newest.end - newest.start
        is_enough = front.end - replaced >= max(limits.COMPACT_BYTES_MIN, snapshot_bytes)
        return is_enough and front.stream.size(front.start, front.end) >= candidate.front_bytes_min

    def _note_failure(self, path: str, candidate: _Candidate, error: Exception) -> None:
        wait_s = candidate.streak.fail()
        candidate.at_s = self._now_s() + wait_s
        if not isinstance(error, HeadwaterError | SnapshotFailedError):
            log.exception("compacting %r failed", path)
            return
        level = logging.WARNING if candidate.streak.failures == 1 else logging.INFO
        log.log(level, "compacting %r failed, again in %.0f s: %s", path, wait_s, error)

    # Compacting

    async def _compact(self, path: str, *, at_ms: int | None, share: float) -> CompactionResult:
        counts = self.counts
        async with self._turn:
            try:
                compaction = Compaction(self._engine, path, self._open_content, at_ms=at_ms, share=share)
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


def after_s_of(stream: VisibleStream) -> int:
    """The age from which on the records of a stream are replaced."""
    wanted_s = None if stream.retention is None else stream.retention.compact_after_s
    return limits.COMPACT_AFTER_S if wanted_s is None else max(wanted_s, limits.COMPACT_AFTER_S_MIN)
