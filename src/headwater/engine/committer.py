"""Group commit: records that are accepted while a batch is written form the next batch. There is no timer.

While a slow batch is written, many records arrive, so the next batch is larger and slower. To prevent this, a window
limits the bytes that may wait. After a slow batch it is set to the bytes that the disk writes in `COMMIT_S`, but at
least to `COMMIT_BYTES_MIN`. It doubles after each fast batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from headwater import limits
from headwater.engine.catalogue import LoadedDocument, LoadedStream
from headwater.errors import HeadwaterError, OverloadedError
from headwater.log.commands import Command, Reply
from headwater.measures import COUNTS, Histogram
from headwater.store.contract import Commit, OutdatedError, Store

Answer: TypeAlias = Reply | HeadwaterError
Answered: TypeAlias = Callable[[Answer], None]


class PendingRecord(Commit, gc=False):
    """A record that is being committed, and the reply to send when it is durable."""

    changed: tuple[LoadedStream | LoadedDocument, ...]  # the stream or document of each event
    answer: Answer
    answered: Answered | None
    command: Command | None = None  # is decided again if the batch is refused and it frees space, or if it is outdated


def passed_to_store(commits: list[PendingRecord]) -> list[PendingRecord]:
    """Those that the store writes or compares. The others only wait until those before them are durable."""
    return [commit for commit in commits if commit.record or commit.expects]


def split_by_keys(
    records: list[PendingRecord], outdated: list[PendingRecord]
) -> tuple[list[PendingRecord], list[PendingRecord]]:
    """Of records that wait, those that share no state with outdated ones, directly or through others, and the rest."""
    keys = {key for record in outdated for key in record.expects or ()}
    sharing: dict[int, PendingRecord] = {}
    size = -1
    while size < len(sharing):
        size = len(sharing)
        for record in records:
            if record.expects and not keys.isdisjoint(record.expects):
                sharing[id(record)] = record
                keys.update(record.expects)
    kept = [record for record in records if id(record) not in sharing]
    return kept, [record for record in records if id(record) in sharing]


class CommitMeasures:
    """Measurements of batches."""

    __slots__ = ("accepted_bytes", "failures", "outdated", "seconds", "sizes")

    def __init__(self) -> None:
        self.sizes = Histogram(COUNTS)  # records per batch
        self.seconds = Histogram()  # time to commit a batch
        self.accepted_bytes = 0  # of bodies
        self.failures = 0  # failed batches
        self.outdated = 0  # records that another server was faster than


class Committer:
    def __init__(
        self,
        store: Store,
        *,
        backlog_bytes_max: int,
        durable: Callable[[list[PendingRecord]], None],
        failed: Callable[[list[PendingRecord], BaseException], None],
    ) -> None:
        self._store = store
        self._backlog_bytes_max = backlog_bytes_max
        self._durable = durable
        self._failed = failed
        self._waiting: list[PendingRecord] = []
        self._bytes = 0
        self._window_bytes = backlog_bytes_max  # bytes that may wait
        self._committing: list[PendingRecord] | None = None
        self._committing_bytes = 0
        self._scheduled = False
        self._is_paused = False  # until records are added that are committed alone
        self._began_s = 0.0
        self.measures = CommitMeasures()

    @property
    def backlog(self) -> tuple[int, int]:
        """The number of records that are not durable yet, and the bytes that wait for the next batch."""
        return len(self._waiting) + len(self._committing or ()), self._bytes

    @property
    def in_progress(self) -> list[PendingRecord] | None:
        """The batch that is being written, the same list with which it ends."""
        return self._committing

    def check_room(self, size_bytes: int) -> None:
        waiting_bytes = self._bytes + size_bytes
        if not self._bytes or waiting_bytes <= min(self._window_bytes, limits.COMMIT_BYTES_MIN):
            return
        if waiting_bytes > self._window_bytes or self._is_slow:
            raise OverloadedError(
                "the disk does not keep up with writes; try again later", retry_after_s=limits.RETRY_AFTER_S
            )

    @property
    def _is_slow(self) -> bool:
        """Whether the batch that is being written is slow."""
        return self._began_s > 0 and time.perf_counter() - self._began_s > limits.COMMIT_S

    def add(self, commit: PendingRecord, size_bytes: int = 0) -> None:
        self._waiting.append(commit)
        self._bytes += size_bytes
        if self._committing is None and not self._scheduled:
            # Start at the end of this loop iteration, so that all its writes share the batch.
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def withdraw(self) -> list[PendingRecord]:
        """Remove and return all records that were not passed to the store yet."""
        commits, self._waiting = self._waiting, []
        self._bytes = 0
        return commits

    def pause(self) -> None:
        """Start no batch until `commit_alone`."""
        self._is_paused = True

    def commit_alone(self, add: Callable[[], None]) -> None:
        """Commit what `add` adds, in a batch of its own, before the records that wait already, except those that depend
        on one of these: its version could be that of another server's record."""
        waiting, self._waiting = self._waiting, []
        add()
        self._waiting, dependent = split_by_keys(self._waiting, waiting)
        self._is_paused = False
        self._start()
        self._waiting = waiting + dependent + self._waiting
        if self._waiting and self._committing is None and not self._scheduled:
            self._start()

    def withdraw_sharing(self, outdated: list[PendingRecord]) -> list[PendingRecord]:
        """Remove and return the records that were not passed to the store yet and share a state with outdated ones."""
        self._waiting, sharing = split_by_keys(self._waiting, outdated)
        return sharing

    def _start(self) -> None:
        self._scheduled = False
        if self._committing is not None or not self._waiting or self._is_paused:
            return
        self._committing, self._waiting = self._waiting, []
        records = passed_to_store(self._committing)
        self.measures.accepted_bytes += self._bytes
        self._committing_bytes, self._bytes = self._bytes, 0
        if records:
            self.measures.sizes.add(len(records))
            self._began_s = time.perf_counter()
            self._store.commit(records, self._done)
        else:
            self._done(None)

    def _done(self, error: BaseException | None) -> None:
        commits, self._committing = self._committing, None
        began_s, self._began_s = self._began_s, 0.0
        if commits is None:
            raise RuntimeError("the store reported a batch that was not in progress")
        if error is not None:
            if isinstance(error, OutdatedError):
                self.measures.outdated += len(error.records)
            else:
                self.measures.failures += 1
            self._failed(commits, error)
        else:
            if began_s:
                took_s = time.perf_counter() - began_s
                self.measures.seconds.add(took_s)
                if self._committing_bytes > limits.COMMIT_BYTES_MIN or self._window_bytes < self._backlog_bytes_max:
                    self._adjust_window(took_s)
            self._durable(commits)
        if self._waiting and not self._scheduled:
            self._start()

    def _adjust_window(self, took_s: float) -> None:
        if took_s > limits.COMMIT_S:
            fits = int(self._committing_bytes * limits.COMMIT_S / took_s)
            self._window_bytes = min(self._backlog_bytes_max, max(limits.COMMIT_BYTES_MIN, fits))
        else:
            self._window_bytes = min(self._backlog_bytes_max, 2 * self._window_bytes)
