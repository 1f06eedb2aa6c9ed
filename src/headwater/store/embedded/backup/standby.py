"""A warm standby: a directory that follows a target, and can be promoted to a data directory.

    standby/                 in the directory; a server refuses a directory with it
      standby.json           `StandbySource`: the target, the timeline and the name of the index
      index-{n}.db           the index, folded up to the last part that was applied

New parts are folded into the index in transactions that also store the last batch, so a standby that is killed
continues where it was. After a gap in the target, or for another timeline, a new index is built beside the old one,
which is used until `standby.json` names the new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.store.embedded import index, layout, locking
from headwater.store.embedded.backup.contents import chain, read_contents, read_timelines
from headwater.store.embedded.backup.failures import BackupError, MissingError, NoBackupYetError, TargetError
from headwater.store.embedded.backup.formats import FORMAT_NAME, BackupTimeline, PartName
from headwater.store.embedded.backup.restoring import IndexEnd, finish, fold_parts, plan_restore, write_index
from headwater.store.embedded.backup.snapshot import Progress
from headwater.store.embedded.backup.targets import BackupTarget, check_claimed
from headwater.store.embedded.layout import share
from headwater.store.embedded.timelines import now_us

PASSING = (TargetError, MissingError, OSError, sqlite3.OperationalError)


class StandbySource(msgspec.Struct, frozen=True):
    target: str
    timeline: str
    index: str


class Applied(NamedTuple):
    """What one step of a standby did."""

    batches: int
    rebuilt: bool
    reached_ms: int  # the standby has everything that was acknowledged before this moment


class Standby:
    """A directory that follows a target. Use `open_standby`."""

    def __init__(self, directory: Path, target: BackupTarget, progress: Progress) -> None:
        self._directory = directory
        self._folder = directory / layout.STANDBY
        self._target = target
        self._progress = progress
        self._place: IndexEnd | None = None  # the last batch; None if it is to be read from the index
        self._newest_ms = 0  # the latest time of which the target has data, in any timeline
        self.source = _read_source(self._folder)

    @property
    def is_moved(self) -> bool:
        """Whether a promotion was interrupted after it moved the index to where a server opens it."""
        return self.source is not None and (self._directory / layout.INDEX_NAME).exists()

    @property
    def is_promoting(self) -> bool:
        return is_promoting(self._directory)

    def step(self) -> Applied:
        """Apply everything that the target has. After any error it can be called again."""
        self._check_target()
        if self.source is not None:
            place, self._place = self._place or self._read_place(self.source), None
            applied = self._continue(self.source, place)
            if applied is not None:
                return applied
        return self._rebuild()

    def _check_target(self) -> None:
        """A target that was followed before and is empty now is not mounted, so it may come back. One that is empty at
        the start may get its first backup."""
        try:
            self._target.get(FORMAT_NAME)
        except MissingError:
            if self.source is not None:
                raise TargetError(self._target.url, f"{FORMAT_NAME} is missing, so it may not be mounted") from None
            if self._target.is_empty():
                raise NoBackupYetError(self._target.url) from None
        check_claimed(self._target)

    def _read_place(self, source: StandbySource) -> IndexEnd:
        connection = index.connect(self._folder / source.index, write=False)
        try:
            return IndexEnd(index.IndexReader(connection).meta().folded_sequence)
        finally:
            connection.close()

    def _continue(self, source: StandbySource, place: IndexEnd) -> Applied | None:
        """Apply the parts after a batch; None if the target does not continue there."""
        timelines = read_timelines(self._target)
        self._newest_ms = max((range_.reached_ms for one in timelines for range_ in one.ranges), default=0)
        timeline = next((one for one in timelines if one.id == source.timeline), None)
        if timeline is None or not timeline.ranges or timeline.ranges[-1].start > place.sequence:
            return None
        later = timelines[timelines.index(timeline) + 1 :]
        if any(read_contents(self._target, one).is_restorable for one in later):
            return None
        parts = self._parts_after(timeline, place.sequence)
        if parts is None:
            return None
        done = fold_parts(self._target, timeline.id, parts, self._folder / source.index, place)
        self._place = done.place
        return Applied(done.batches, rebuilt=False, reached_ms=timeline.ranges[-1].reached_ms)

    def _parts_after(self, timeline: BackupTimeline, sequence: int) -> list[PartName] | None:
        """The parts after a batch; None if some are missing."""
        last = timeline.ranges[-1].last
        # The next batch may be in a part that was merged, whose name comes before. Then all are listed.
        for after in (f"{timeline.id}/journal/{sequence:016d}", ""):
            parts = read_contents(self._target, timeline, after).parts
            with contextlib.suppress(MissingError):
                return chain(parts, sequence, last, self._target.url)
        return None

    def _rebuild(self) -> Applied:
        """Build a new index from the newest base, and use it instead of the old one."""
        timelines = read_timelines(self._target)
        if self.source is None and not any(read_contents(self._target, one).is_restorable for one in timelines):
            raise NoBackupYetError(self._target.url)
        plan = plan_restore(self._target, None)
        old = None if self.source is None else self.source.index
        self._remove_all_but(old)
        name = f"index-{0 if old is None else int(old[len('index-') : -len('.db')]) + 1}.db"
        write_index(self._target, plan, self._folder / name, self._progress)
        done = fold_parts(self._target, plan.timeline_id, plan.parts, self._folder / name, IndexEnd(plan.base.sequence))
        self.source = StandbySource(located(self._target.url), plan.timeline_id, name)
        _write_source(self._directory, self.source)
        self._remove_all_but(name)
        self._place, self._newest_ms = done.place, plan.newest_ms
        return Applied(done.batches, rebuilt=True, reached_ms=plan.reached_ms)

    def _remove_all_but(self, kept: str | None) -> None:
        for path in self._folder.glob("index-*.db*"):
            if f"{path.name.partition('.')[0]}.db" != kept:
                path.unlink()

    def promote(self) -> None:
        """Make the directory a data directory that a server can open."""
        if self.source is None:
            raise BackupError(f"{self._directory} has nothing yet. Run: headwater restore {self._target.url} --follow")
        # The old server may have used later times than the target has, and its clock may be ahead of this one.
        newest_ms = max(self._newest_ms, now_us() // 1000) + int(limits.PROMOTION_CLOCKS_S * 1000)
        finish(self._directory, self._folder / self.source.index, self.source.timeline, newest_ms)
        shutil.rmtree(self._folder)


_SOURCE_NAME = "standby.json"
_PROMOTING = "promoting"  # asks the process that follows the target to end


def located(url: str) -> str:
    """A target that can be named from any working directory."""
    return url if "://" in url else os.path.abspath(url)


def _read_source(folder: Path) -> StandbySource | None:
    path = folder / _SOURCE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=StandbySource)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupError(f"{path} is damaged: {error}. Remove {folder.parent} and begin again.") from None


def _write_source(directory: Path, source: StandbySource) -> None:
    layout.write_file(directory / layout.STANDBY, _SOURCE_NAME, msgspec.json.encode(source), directory)


def source_of(directory: Path) -> StandbySource | None:
    """The source of a standby; None if the directory is not one, or has nothing yet."""
    return _read_source(directory / layout.STANDBY)


def remove_leftovers(directory: Path) -> None:
    """Remove what a promotion left that was killed when the directory was complete."""
    if (directory / layout.STANDBY).exists():
        shutil.rmtree(directory / layout.STANDBY)


@contextlib.contextmanager
def open_standby(
    directory: Path, target: BackupTarget, progress: Progress = lambda done, total: None
) -> Iterator[Standby]:
    """Open or create a standby that is to follow a target, and lock it."""
    folder = directory / layout.STANDBY
    if (directory / layout.FORMAT_NAME).exists():
        raise BackupError(f"{directory} is a data directory. Use a directory that does not exist.")
    if directory.exists() and not folder.exists() and any(directory.iterdir()):
        raise BackupError(f"{directory} is not empty and not a standby. Use a directory that does not exist.")
    if is_promoting(directory):
        raise BackupError(f"{directory} is being promoted. Finish it with: headwater promote {directory}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    with _locked(directory, wait_s=0.0):
        standby = Standby(directory, target, progress)
        if standby.source is not None and standby.source.target != located(target.url):
            raise BackupError(f"{directory} follows {standby.source.target}. Use another directory for {target.url}.")
        if standby.is_moved:
            raise BackupError(f"{directory} was promoted in part. Finish it with: headwater promote {directory}")
        yield standby


@contextlib.contextmanager
def open_promotion(directory: Path, target: BackupTarget) -> Iterator[Standby]:
    """Open a standby to promote it. A process that follows the target is asked to end, and waited for."""
    mark = directory / layout.STANDBY / _PROMOTING
    mark.touch(mode=0o600)
    share(mark, directory)
    try:
        with _locked(directory, wait_s=limits.BACKUP_TARGET_S):
            yield Standby(directory, target, lambda done, total: None)
    except Exception:
        mark.unlink(missing_ok=True)
        raise


def is_promoting(directory: Path) -> bool:
    return (directory / layout.STANDBY / _PROMOTING).exists()


@contextlib.contextmanager
def _locked(directory: Path, wait_s: float) -> Iterator[None]:
    until_s = time.monotonic() + wait_s
    while True:
        try:
            lock = locking.own(directory)
            break
        except locking.DirectoryInUseError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(limits.BACKUP_HOLD_S)
    try:
        yield
    finally:
        lock.release()


def follow_target(standby: Standby, stop: threading.Event, every_s: float, report: Callable[[str], None]) -> None:
    """Follow the target until stopped or promoted. Failures are reported, and when they end."""
    streak = Streak(Backoff(limits.BACKUP_RETRY_S, limits.BACKUP_RETRY_MAX_S))
    wait_s = 0.0
    while not stop.wait(wait_s):
        if standby.is_promoting:
            report("the standby is being promoted")
            return
        try:
            applied = standby.step()
        except PASSING as error:
            wait_s = streak.fail()
            report(f"the standby is behind and tries again in {wait_s:.0f} s: {error}")
        else:
            if streak.failures or applied.rebuilt:
                report("the standby has a new copy of the index" if applied.rebuilt else "the standby is up to date")
            streak.reset()
            wait_s = every_s
