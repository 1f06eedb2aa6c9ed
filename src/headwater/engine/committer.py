"""Group commit: records that are accepted while a batch is written form the next batch. There is no timer.

While a slow batch is written, many records arrive, so the next batch is larger and slower. To prevent this, a window
limits the bytes that may wait. After a slow batch it is set to the bytes that the disk writes in `COMMIT_S`, but at
least to `COMMIT_BYTES_MIN`. It doubles after each fast batch.

A shared store takes a second batch before the first one has ended (`store/contract.py`), so that it need not wait for
this process between them. The second one is sent only if it has as many records as the first one. When it was sent as
soon as anything waited, batches were a third smaller, and fewer records were stored. If the first one fails, nothing of
the second one is stored. Its records wait again then, before all others, so that the failure finds them where it finds
what was not sent yet.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from headwater import limits
from headwater.engine.catalogue import LoadedDocument, LoadedStream
from headwater.errors import HeadwaterError, OverloadedError
from headwater.log.commands import Command, Reply
from headwater.measures import COUNTS, Histogram
from headwater.store.contract import Commit, NotStoredError, OutdatedError, Store

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


def _has_events(records: list[PendingRecord]) -> bool:
    return any(one.record for one in records)


class CommitMeasures:
    """Measurements of batches."""

    __slots__ = ("accepted_bytes", "failures", "outdated", "seconds", "sizes")

    def __init__(self) -> None:
        self.sizes = Histogram(COUNTS)  # records per batch
        self.seconds = Histogram()  # time to commit a batch
        self.accepted_bytes = 0  # of bodies
        self.failures = 0  # failed batches
        self.outdated = 0  # records that another server was faster than


class _Batch(msgspec.Struct, eq=False):
    """A batch that was passed to the store."""

    records: list[PendingRecord]
    size_bytes: int
    is_alone: bool  # no other one is committed beside it
    began_s: float
    is_repeated: bool = True  # whether it is committed again if it was not stored because of the one before it
    error: BaseException | None = None


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
        self._in_progress: deque[_Batch] = deque()
        self._failing: list[_Batch] = []  # have ended with an error, while a later one has not ended
        self._at_once = limits.SHARED_BATCHES_AT_ONCE if store.shared else 1
        self._has_room = True  # for another batch in progress
        self._scheduled = False
        self._is_paused = False  # until records are added that are committed alone
        self._began_s = 0.0  # when the first batch in progress was sent, or became the first one
        self.measures = CommitMeasures()

    @property
    def backlog(self) -> tuple[int, int]:
        """The number of records that are not durable yet, and the bytes that wait for the next batch."""
        return len(self._waiting) + sum(len(batch.records) for batch in self._all), self._bytes

    @property
    def _all(self) -> list[_Batch]:
        """The batches of which it was not reported how they ended."""
        return [*self._failing, *self._in_progress]

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
        if self._has_room and not self._scheduled:
            # Start at the end of this loop iteration, so that all its writes share the batch.
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def withdraw(self) -> list[PendingRecord]:
        """Remove and return all records that were not passed to the store yet."""
        commits, self._waiting = self._waiting, []
        self._bytes = 0
        return commits

    def give_up(self) -> Sequence[list[PendingRecord]]:
        """The batches in progress, the same lists with which they end. What was not stored is not committed again."""
        for batch in self._all:
            batch.is_repeated = False
        return [batch.records for batch in self._all]

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
        self._start(is_alone=True)
        self._waiting = waiting + dependent + self._waiting
        if self._waiting and not self._in_progress and not self._scheduled:
            self._start()

    def withdraw_sharing(self, outdated: list[PendingRecord]) -> list[PendingRecord]:
        """Remove and return the records that were not passed to the store yet and share a state with outdated ones."""
        self._waiting, sharing = split_by_keys(self._waiting, outdated)
        return sharing

    def _start(self, *, is_alone: bool = False) -> None:
        self._scheduled = False
        waiting, in_progress = self._waiting, self._in_progress
        if not self._has_room or not waiting or self._is_paused or (in_progress and not self._may_follow):
            return
        records = passed_to_store(waiting)
        began_s = time.perf_counter() if records else 0.0
        if not in_progress:
            self._began_s = began_s
        in_progress.append(_Batch(waiting, self._bytes, is_alone, began_s))
        self.measures.accepted_bytes += self._bytes
        self._waiting, self._bytes = [], 0
        self._has_room = len(in_progress) < self._at_once
        if records:
            self.measures.sizes.add(len(records))
            self._store.commit(records, self._done)
        else:
            self._done(None)

    @property
    def _may_follow(self) -> bool:
        """Whether the records that wait are committed while another batch is in progress."""
        former = self._in_progress[-1]
        return (
            len(self._waiting) >= len(former.records)
            and not former.is_alone
            and _has_events(former.records)
            and _has_events(self._waiting)
        )

    def _done(self, error: BaseException | None) -> None:
        in_progress = self._in_progress
        if not in_progress:
            raise RuntimeError("the store reported a batch that was not in progress")
        batch, began_s, now_s = in_progress.popleft(), self._began_s, time.perf_counter()
        self._began_s = now_s if in_progress else 0.0
        if error is not None or self._failing:
            self._fail(batch, error)
        else:
            self._has_room = True
            if began_s:
                self.measures.seconds.add(now_s - batch.began_s)
                if batch.size_bytes > limits.COMMIT_BYTES_MIN or self._window_bytes < self._backlog_bytes_max:
                    self._adjust_window(batch.size_bytes, now_s - began_s)
            self._durable(batch.records)
        if self._waiting and not self._scheduled:
            self._start()

    def _fail(self, batch: _Batch, error: BaseException | None) -> None:
        """Report a batch that has failed, as soon as those after it have ended too."""
        batch.error = error or RuntimeError("the store has stored a batch although the one before it has failed")
        self._failing.append(batch)
        self._has_room = not self._in_progress
        if self._in_progress:
            return
        failing, self._failing = self._failing, []
        repeated = [one for one in failing if one.is_repeated and isinstance(one.error, NotStoredError)]
        self._waiting = [record for one in repeated for record in one.records] + self._waiting
        self._bytes += sum(one.size_bytes for one in repeated)
        for one in failing:
            if one.error is None or one in repeated:
                continue
            if isinstance(one.error, OutdatedError):
                self.measures.outdated += len(one.error.records)
            else:
                self.measures.failures += 1
            self._failed(one.records, one.error)

    def _adjust_window(self, size_bytes: int, took_s: float) -> None:
        if took_s > limits.COMMIT_S:
            fits = int(size_bytes * limits.COMMIT_S / took_s)
            self._window_bytes = min(self._backlog_bytes_max, max(limits.COMMIT_BYTES_MIN, fits))
        else:
            self._window_bytes = min(self._backlog_bytes_max, 2 * self._window_bytes)
