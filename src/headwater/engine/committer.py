"""Group commit: whatever was accepted while one batch became durable forms the next. No timer, no linger."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from headwater.engine.streams import Stream
from headwater.errors import HeadwaterError, OverloadedError
from headwater.log.model import Reply
from headwater.log.values import Record
from headwater.store.contract import Commit, Store

Answer: TypeAlias = Reply | HeadwaterError
Answered: TypeAlias = Callable[[Answer], None]


class Entry(msgspec.Struct, gc=False):
    """A record on its way, and the answer to give when it is durable."""

    record: Record
    streams: tuple[Stream, ...]  # of each event, the stream it concerns
    answer: Answer
    answered: Answered | None


class Committer:
    def __init__(
        self,
        store: Store,
        *,
        backlog_bytes_max: int,
        call_soon: Callable[[Callable[[], None]], object],
        durable: Callable[[list[Entry]], None],
        failed: Callable[[list[Entry], BaseException], None],
    ) -> None:
        self._store = store
        self._backlog_bytes_max = backlog_bytes_max
        self._call_soon = call_soon
        self._durable = durable
        self._failed = failed
        self._entries: list[Entry] = []
        self._commits: list[Commit] = []
        self._bytes = 0
        self._under_way: list[Entry] | None = None
        self._scheduled = False

    def check_room(self, size_bytes: int) -> None:
        if self._bytes + size_bytes > self._backlog_bytes_max and self._entries:
            raise OverloadedError("the store does not keep up; try again shortly", headers=(("retry-after", "1"),))

    def add(self, entry: Entry, size_bytes: int = 0) -> None:
        self._entries.append(entry)
        if entry.record:
            self._commits.append(Commit(entry.record, tuple([stream.state for stream in entry.streams])))
            self._bytes += size_bytes
        if self._under_way is None and not self._scheduled:
            # At the end of this turn of the loop, so that all who wrote in it share the batch.
            self._scheduled = True
            self._call_soon(self._start)

    def withdraw(self) -> list[Entry]:
        """Take back everything that is not under way yet."""
        entries, self._entries = self._entries, []
        self._commits = []
        self._bytes = 0
        return entries

    def _start(self) -> None:
        self._scheduled = False
        if self._under_way is not None or not self._entries:
            return
        self._under_way, self._entries = self._entries, []
        commits, self._commits = self._commits, []
        self._bytes = 0
        if commits:
            self._store.commit(commits, self._done)
        else:
            self._done(None)

    def _done(self, error: BaseException | None) -> None:
        entries, self._under_way = self._under_way, None
        if entries is None:
            raise RuntimeError("the store reported a batch that was not under way")
        if error is not None:
            self._failed(entries, error)
        else:
            self._durable(entries)
        if self._entries and not self._scheduled:
            self._start()
