"""Backing up a data directory, once or continuously. It only needs the files, whether or not a server is running."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.store.embedded import index, layout
from headwater.store.embedded.backup.contents import Contents, chain, read_base, read_contents, read_timelines
from headwater.store.embedded.backup.failures import (
    BackupError,
    DivergedError,
    GapError,
    MissingError,
    TargetError,
    UnfitSourceError,
)
from headwater.store.embedded.backup.formats import (
    TIMELINES,
    BackupRange,
    BackupTimeline,
    Base,
    BaseName,
    Copied,
    PartName,
    batch_digest,
    decode_part,
    encode,
    encode_part,
    seal,
)
from headwater.store.embedded.backup.holding import HeldJournal, check_journal
from headwater.store.embedded.backup.identity import begin_timeline, folder_for, identity_of, one_at_a_time
from headwater.store.embedded.backup.retention import RecentParts, prune
from headwater.store.embedded.backup.snapshot import Progress, copy_blocks, frozen, log_bytes
from headwater.store.embedded.backup.tailing import JournalTail, Mark
from headwater.store.embedded.backup.targets import BackupTarget, claim
from headwater.store.embedded.backup.watching import Watch

# Failures of a continuous backup that are retried.
_PASSING = (TargetError, UnfitSourceError, OSError, sqlite3.OperationalError)


class Copy(NamedTuple):
    """What one step copied."""

    batches: int
    bytes: int
    bases: int
    reached_ms: int


class Backup:
    """The backup of one directory to one target. Use `open_backup` to create one.

    After an error of the target every method can be called again: data that was read but not copied is kept.
    """

    def __init__(
        self, directory: Path, target: BackupTarget, journal: HeldJournal, watch: Watch, progress: Progress
    ) -> None:
        self._directory = directory
        self._target = target
        self._journal = journal
        self._watch = watch
        self._progress = progress
        self._timeline: BackupTimeline | None = None
        self._tail: JournalTail | None = None
        self._unsent: Copied | None = None  # read from the journal, but not in the target yet
        self._recent = RecentParts()
        self._known: set[bytes] = set()  # blocks in the target
        self._written_ms = 0  # the engine's time of the last batch that was copied
        self._base_ms = 0  # the same when the newest base was taken
        self._journal_bytes = 0  # in the target after the newest base
        self._saved_s = -math.inf  # when the timeline was written
        self._records_due = 0  # number of times to write the timeline: after a change, and once more without one
        self._copied = Copy(0, 0, 0, 0)
        self._counting = threading.Lock()  # several threads put blocks

    # Steps

    def step(self, base_every_s: float) -> Copy:
        """Copy everything that is durable. This includes a new base if one is needed or due."""
        try:
            copied = self._step(base_every_s)
        except Exception as error:
            self._watch.failed(error)
            raise
        self._watch.succeeded(copied.reached_ms)
        return copied

    def _step(self, base_every_s: float) -> Copy:
        self._copied = Copy(0, 0, 0, 0)
        for _ in range(limits.BACKUP_BASES_TRIED):
            try:
                if self._tail is None:
                    self._begin()
                self._ship()
                if self._base_is_due(base_every_s):
                    self._take_base(new_range=False)
                return self._copied
            except GapError:
                check_journal(self._directory, self._meta)
                self._unsent = None
                self._take_base(new_range=True)
            except DivergedError:
                check_journal(self._directory, self._meta)
                begin_timeline(self._directory, parent=identity_of(self._directory).id)
                self._tail = self._unsent = None
        raise UnfitSourceError(
            f"the journal of {self._directory} is written faster than {self._target.url} stores it. "
            "Use a faster target, or try again under less load."
        )

    def prune(self, keep_s: float) -> int:
        """Remove data that no restore to the last `keep_s` seconds needs. Returns the number of files.

        They are counted from the last write: a wall clock that is ahead removes nothing."""
        removed = prune(self._target, self._current.id, min(now_ms(), self._written_ms) - int(keep_s * 1000))
        self._timeline = next(timeline for timeline in read_timelines(self._target) if timeline.id == self._current.id)
        self._known = set()  # blocks without a base were removed
        return removed

    @property
    def _current(self) -> BackupTimeline:
        if self._timeline is None:
            raise RuntimeError("the backup has not begun")
        return self._timeline

    def _begin(self) -> None:
        """Find the last batch in the target."""
        check_journal(self._directory, self._meta)
        claim(self._target)
        identity = identity_of(self._directory)
        timelines = read_timelines(self._target)
        known = {timeline.id: timeline for timeline in timelines}
        if timelines and not known.keys() & {identity.id, identity.parent}:
            raise BackupError(f"{self._target.url} has backups of another directory. Use another target.")
        self._known = set()
        # The newest timeline is the one that was begun last, whatever the clocks of two machines say.
        started_ms = max([now_ms(), *[timeline.started_ms + 1 for timeline in timelines]])
        self._timeline = known.get(identity.id) or BackupTimeline(identity.id, identity.parent, started_ms, [])
        if not self._timeline.ranges:
            raise GapError("there is no base yet")
        contents = read_contents(self._target, self._timeline)
        mark = self._mark_of(contents)
        self._base_ms = read_base(self._target, identity.id, contents.bases[-1]).written_ms
        self._journal_bytes = sum(
            size for part, size in contents.part_bytes.items() if part.last > contents.bases[-1].sequence
        )
        self._follow(mark)

    def _mark_of(self, contents: Contents) -> Mark:
        """The last batch of the last range in the target, which may be later than the recorded one. A base may be even
        later, but batches between the two would be missing."""
        timeline, newest = contents.timeline, contents.timeline.ranges[-1]
        try:
            bases = contents.bases_in(newest)
            if not bases:
                raise GapError("its base is gone")
            parts = chain(contents.parts_in(newest), bases[0].sequence, newest.last, self._target.url)
            if not parts:
                base = read_base(self._target, timeline.id, bases[0])
                self._written_ms = base.written_ms
                return Mark(base.segment, base.sequence)
            name = f"{timeline.id}/journal/{parts[-1]}"
            copied = decode_part(name, self._target.get(name))
        except MissingError as error:  # a part was removed: continue with a new base
            raise GapError(str(error)) from None
        newest.last = max(newest.last, parts[-1].last)
        last = copied.batches[-1]
        self._written_ms = last.moment.at_ms
        return Mark(copied.segment, last.sequence, batch_digest(last))

    def _follow(self, mark: Mark) -> None:
        self._tail = JournalTail(self._journal, mark, self._meta)

    def _meta(self) -> index.Meta:
        connection = index.connect(self._directory / layout.INDEX_NAME, write=False)
        try:
            return index.IndexReader(connection).meta()
        finally:
            connection.close()

    # The journal

    def _ship(self) -> None:
        """Copy new batches of the journal."""
        if self._tail is None:
            raise RuntimeError("the backup has not begun")
        started_ms = now_ms()
        while (copied := self._unsent or self._read(self._tail)) is not None:
            self._unsent = copied
            self._put_part(copied)
            self._unsent = None
            self._tail.release()
        self._tail.release()
        self._reach(started_ms)

    def _read(self, tail: JournalTail) -> Copied | None:
        try:
            return tail.read(limits.BACKUP_PART_BYTES)
        except BaseException:
            self._tail = None  # it may have read past the missing batches
            raise

    def _put_part(self, copied: Copied) -> None:
        timeline = self._current
        name, data = encode_part(copied)
        self._target.put(f"{timeline.id}/journal/{name}", data)
        self._journal_bytes += len(data)
        range_ = timeline.ranges[-1]
        range_.last, range_.written_ms = name.last, copied.batches[-1].moment.at_ms
        self._written_ms = range_.written_ms
        range_.reached_ms, range_.complete = max(range_.reached_ms, name.min_ms), True
        if time.monotonic() - self._saved_s >= limits.BACKUP_REACHED_S:
            self.record()
        self._records_due = 2
        self._merge(self._recent.add(name, copied))
        self._count(batches=len(copied.batches), bytes_=len(data))

    def _merge(self, due: tuple[list[PartName], Copied] | None) -> None:
        """Replace small parts by one. If they cannot be removed, they do no harm."""
        if due is not None:
            names, merged = due
            name, data = encode_part(merged)
            with contextlib.suppress(TargetError):
                self._target.put(f"{self._current.id}/journal/{name}", data)
                self._target.remove(f"{self._current.id}/journal/{small}" for small in names)

    def _reach(self, moment_ms: int) -> None:
        """Note that all writes acknowledged before a time are in the target. While nothing changes, this is recorded at
        intervals. If the wall clock was set back, the time goes back too, because new batches have earlier times."""
        range_ = self._current.ranges[-1]
        range_.reached_ms, range_.complete = moment_ms, True
        if self._records_due > 0 or time.monotonic() - self._saved_s >= limits.BACKUP_REACHED_S:
            self.record()
            self._records_due = max(0, self._records_due - 1)
        self._copied = self._copied._replace(reached_ms=range_.reached_ms)

    def record(self) -> None:
        """Write the timeline to the target."""
        self._target.put(f"{TIMELINES}{self._current.id}", encode(self._current))
        self._saved_s = time.monotonic()

    def _count(self, *, batches: int = 0, bytes_: int = 0, bases: int = 0) -> None:
        with self._counting:
            done = self._copied
            self._copied = Copy(done.batches + batches, done.bytes + bytes_, done.bases + bases, done.reached_ms)

    # The index

    def _base_is_due(self, every_s: float) -> bool:
        size = (self._directory / layout.INDEX_NAME).stat().st_size
        much = self._journal_bytes > max(limits.BACKUP_BASE_BYTES_MIN, size // 2)
        return self._journal_bytes > 0 and (much or self._written_ms - self._base_ms > every_s * 1000)

    def _take_base(self, *, new_range: bool) -> None:
        """Copy the blocks of the index that the target does not have.

        A large index is first copied before it is frozen. Then only the blocks that changed are copied while it is
        frozen and its write-ahead log grows.
        """
        timeline, path = self._current, self._directory / layout.INDEX_NAME
        if not self._known:
            names = self._target.sizes(f"{timeline.id}/blocks/")
            self._known = {bytes.fromhex(name.rpartition("/")[2]) for name in names}
        if path.stat().st_size > limits.BACKUP_PREPARED_BYTES_MIN:
            copy_blocks(path, path.stat().st_size, self._put_block, self._known, self._progress)
        with frozen(path) as state:
            taken_ms = now_ms()
            blocks = copy_blocks(path, state.size_bytes, self._put_block_of(path), self._known, self._progress)
        self._written_ms = max(self._written_ms, state.folded_ms)
        written_ms = self._written_ms or taken_ms  # nothing was folded or copied yet
        base = Base(state.segment, state.sequence, taken_ms, state.size_bytes, blocks, written_ms)
        self._target.put(f"{timeline.id}/bases/{BaseName(base.sequence, taken_ms)}", encode(base))
        if new_range:
            timeline.ranges.append(BackupRange(base.sequence, base.sequence, reached_ms=0, written_ms=self._written_ms))
            self._follow(Mark(base.segment, base.sequence))
        self._base_ms, self._journal_bytes = written_ms, 0
        self.record()
        self._records_due = 2  # its journal is not copied yet
        self._count(bases=1)

    def _put_block(self, digest: bytes, block: bytes) -> None:
        sealed = seal(block)
        self._target.put(f"{self._current.id}/blocks/{digest.hex()}", sealed)
        self._count(bytes_=len(sealed))

    def _put_block_of(self, path: Path) -> Callable[[bytes, bytes], None]:
        def put(digest: bytes, block: bytes) -> None:
            if log_bytes(path) > limits.BACKUP_LOG_BYTES_MAX:
                raise UnfitSourceError(f"{path} changes faster than {self._target.url} stores it. Use a faster target.")
            self._put_block(digest, block)

        return put


@contextlib.contextmanager
def open_backup(
    directory: Path, target: BackupTarget, progress: Progress = lambda done, total: None
) -> Iterator[Backup]:
    """Open the backup of a directory to a target, and lock the target."""
    layout.check_format(directory)
    folder = folder_for(directory, target.url)
    with one_at_a_time(folder), target.lock():
        journal = HeldJournal(directory / layout.JOURNAL_DIR, folder / "held")
        journal.start()
        try:
            yield Backup(directory, target, journal, Watch(directory, folder, target.url), progress)
        finally:
            journal.stop()


def now_ms() -> int:
    return int(time.time() * 1000)


def follow(
    backup: Backup, stop: threading.Event, every_s: float, keep_s: float | None, report: Callable[[str], None]
) -> None:
    """Back up regularly until stopped, and once more at the end. Failures are reported, and when they end."""
    streak = Streak(Backoff(limits.BACKUP_RETRY_S, limits.BACKUP_RETRY_MAX_S))
    wait_s, pruned_s = 0.0, -limits.BACKUP_PRUNE_S
    while not stop.wait(wait_s):
        started_s = time.monotonic()
        try:
            backup.step(base_every_s(keep_s))
            if keep_s is not None and started_s - pruned_s > limits.BACKUP_PRUNE_S:
                backup.prune(keep_s)
                pruned_s = started_s
        except _PASSING as error:
            wait_s = streak.fail()
            report(f"the backup failed and is retried in {wait_s:.0f} s: {error}")
        else:
            if streak.failures:
                report("the backup is up to date again")
            streak.reset()
            wait_s = max(0.0, every_s - (time.monotonic() - started_s))
    backup.step(base_every_s(keep_s))
    backup.record()


def base_every_s(keep_s: float | None) -> float:
    """The interval of bases if little is written. Old data can only be removed after a newer base."""
    return limits.BACKUP_BASE_S if keep_s is None else min(limits.BACKUP_BASE_S, keep_s / 2)
