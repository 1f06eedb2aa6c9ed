"""Group commit: everything accepted while one batch becomes durable forms the next. There is no timer.

A batch that takes long makes the next one large, which then takes longer still. So what may wait is bounded by the time
that batches take: after a slow one by what would have been written in `COMMIT_S`, but by no less than
`COMMIT_BYTES_MIN`, since many small writes are not the cause of a slow disk. It doubles with each batch that was quick.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from headwater import limits
from headwater.engine.catalogue import LoadedDocument, LoadedStream
from headwater.errors import HeadwaterError, OverloadedError
from headwater.log.commands import Reply
from headwater.measures import COUNTS, Histogram
from headwater.store.contract import Commit, Store

Answer: TypeAlias = Reply | HeadwaterError
Answered: TypeAlias = Callable[[Answer], None]


class Entry(Commit, gc=False):
    """A record on its way to the disk, and the answer to give when it is durable."""

    changed: tuple[LoadedStream | LoadedDocument, ...]  # by each event
    answer: Answer
    answered: Answered | None


class CommitMeasures:
    """Of the batches that were handed to the store."""

    __slots__ = ("accepted_bytes", "failures", "seconds", "sizes")

    def __init__(self) -> None:
        self.sizes = Histogram(COUNTS)  # records of each batch
        self.seconds = Histogram()  # until each was durable
        self.accepted_bytes = 0  # of bodies
        self.failures = 0  # batches that did not become durable


class Committer:
    def __init__(
        self,
        store: Store,
        *,
        backlog_bytes_max: int,
        durable: Callable[[list[Entry]], None],
        failed: Callable[[list[Entry], BaseException], None],
    ) -> None:
        self._store = store
        self._backlog_bytes_max = backlog_bytes_max
        self._durable = durable
        self._failed = failed
        self._entries: list[Entry] = []
        self._bytes = 0
        self._window_bytes = backlog_bytes_max  # that may wait, by the time that batches take
        self._committing: list[Entry] | None = None
        self._committing_bytes = 0
        self._scheduled = False
        self._began_s = 0.0
        self.measures = CommitMeasures()

    @property
    def backlog(self) -> tuple[int, int]:
        """Records that are not durable yet, and the bytes of those that the store does not have yet."""
        return len(self._entries) + len(self._committing or ()), self._bytes

    def check_room(self, size_bytes: int) -> None:
        waiting_bytes = self._bytes + size_bytes
        if not self._bytes or waiting_bytes <= min(self._window_bytes, limits.COMMIT_BYTES_MIN):
            return
        if waiting_bytes > self._window_bytes or self._is_slow:
            raise OverloadedError("the store does not keep up; try again shortly", retry_after_s=limits.RETRY_AFTER_S)

    @property
    def _is_slow(self) -> bool:
        """Whether the batch that is on its way takes long already."""
        return self._began_s > 0 and time.perf_counter() - self._began_s > limits.COMMIT_S

    def add(self, entry: Entry, size_bytes: int = 0) -> None:
        self._entries.append(entry)
        self._bytes += size_bytes
        if self._committing is None and not self._scheduled:
            # At the end of this turn of the loop, so that all writes of the turn share the batch (group commit).
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def withdraw(self) -> list[Entry]:
        """Take back everything that was not handed to the store yet."""
        entries, self._entries = self._entries, []
        self._bytes = 0
        return entries

    def _start(self) -> None:
        self._scheduled = False
        if self._committing is not None or not self._entries:
            return
        self._committing, self._entries = self._entries, []
        commits = [entry for entry in self._committing if entry.record]
        self.measures.accepted_bytes += self._bytes
        self._committing_bytes, self._bytes = self._bytes, 0
        if commits:
            self.measures.sizes.add(len(commits))
            self._began_s = time.perf_counter()
            self._store.commit(commits, self._done)
        else:
            self._done(None)

    def _done(self, error: BaseException | None) -> None:
        entries, self._committing = self._committing, None
        began_s, self._began_s = self._began_s, 0.0
        if entries is None:
            raise RuntimeError("the store reported a batch that was not in progress")
        if error is not None:
            self.measures.failures += 1
            self._failed(entries, error)
        else:
            if began_s:
                took_s = time.perf_counter() - began_s
                self.measures.seconds.add(took_s)
                if self._committing_bytes > limits.COMMIT_BYTES_MIN or self._window_bytes < self._backlog_bytes_max:
                    self._adjust_window(took_s)
            self._durable(entries)
        if self._entries and not self._scheduled:
            self._start()

    def _adjust_window(self, took_s: float) -> None:
        if took_s > limits.COMMIT_S:
            fits = int(self._committing_bytes * limits.COMMIT_S / took_s)
            self._window_bytes = min(self._backlog_bytes_max, max(limits.COMMIT_BYTES_MIN, fits))
        else:
            self._window_bytes = min(self._backlog_bytes_max, 2 * self._window_bytes)
