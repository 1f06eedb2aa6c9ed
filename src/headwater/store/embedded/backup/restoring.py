"""Restoring a directory: a base, and the journal after it folded up to a time.

The time is compared with the wall-clock times at which batches were written. The restored data ends with the last batch
that was written at or before the time. So it includes all writes that were acknowledged before the time, whatever the
clock did, and each batch as a whole. If the clock was set back, it may also include later writes.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from headwater import limits
from headwater.store.embedded import index, layout, newest
from headwater.store.embedded.backup.contents import Contents, chain, read_base, read_contents, read_timelines
from headwater.store.embedded.backup.failures import BackupError, DamagedBackupError
from headwater.store.embedded.backup.formats import (
    BackupRange,
    Base,
    BaseName,
    Copied,
    PartName,
    batch_digest,
    block_digest,
    decode_part,
    unseal,
)
from headwater.store.embedded.backup.identity import begin_timeline
from headwater.store.embedded.backup.snapshot import Progress
from headwater.store.embedded.backup.targets import BackupTarget, check_claimed
from headwater.store.embedded.disk import RealDisk, create_private
from headwater.store.embedded.fold import fold
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import JournalBatch, Segment
from headwater.store.embedded.timelines import now_us, random_gap


class Plan(NamedTuple):
    """The base and the parts that a restore needs."""

    timeline_id: str
    base: BaseName
    parts: list[PartName]
    at_ms: int | None
    newest_ms: int  # the latest time of which the target has data, in any timeline
    reached_ms: int  # up to which the target has everything


class IndexEnd(NamedTuple):
    """The last batch of an index."""

    sequence: int
    digest: bytes = b""  # empty if unknown


class Restored(NamedTuple):
    place: IndexEnd
    last_ms: int  # the maximum time in the batches after the base; 0 if there is none
    batches: int  # after the base


# Plan


def plan_restore(target: BackupTarget, at_ms: int | None) -> Plan:
    """The newest base at or before a time, and the parts after it. None means the latest time."""
    check_claimed(target)
    backups = [read_contents(target, timeline) for timeline in reversed(read_timelines(target))]
    newest_ms = max((range_.reached_ms for contents in backups for range_ in contents.timeline.ranges), default=0)
    for contents in backups:
        for range_ in reversed(contents.timeline.ranges):
            if range_.complete and (at_ms is None or at_ms <= range_.reached_ms):
                plan = _plan_in(target.url, contents, range_, at_ms, newest_ms)
                if plan is not None:
                    return plan
    spans = [
        f"from {shown_ms(first_ms)} to {shown_ms(range_.reached_ms)}"
        for contents in backups
        for range_ in contents.timeline.ranges
        if (first_ms := contents.first_ms(range_)) is not None
    ]
    if at_ms is None or not spans:
        raise BackupError(f"{target.url} has no complete backup. Run: headwater backup")
    raise BackupError(f"{shown_ms(at_ms)} is not in {target.url}. Choose a time {', or '.join(spans)}.")


def _plan_in(url: str, contents: Contents, range_: BackupRange, at_ms: int | None, newest_ms: int) -> Plan | None:
    """The plan in one range; None if the time is before its bases."""
    bases, parts = contents.bases_in(range_), contents.parts_in(range_)
    last = range_.last
    if at_ms is not None:
        end = _last_part(parts, at_ms)
        reached = parts[end].first if end >= 0 else -1
        bases = [base for base in bases if base.taken_ms <= at_ms or base.sequence <= reached]
        last = range_.last if end == len(parts) - 1 else parts[end].last if end >= 0 else range_.start
        parts = parts[: end + 1]
    if not bases:
        return None
    base = bases[-1]
    parts = chain(parts, base.sequence, last, url)
    return Plan(contents.timeline.id, base, parts, at_ms, newest_ms, range_.reached_ms)


def _last_part(parts: list[PartName], at_ms: int) -> int:
    """The index of the last part with a batch that was written at or before a time; -1 if there is none."""
    return next((index for index in range(len(parts) - 1, -1, -1) if parts[index].min_ms <= at_ms), -1)


# Restore


def restore(target: BackupTarget, directory: Path, at_ms: int | None, progress: Progress) -> Restored:
    """Create a data directory from a backup. The directory must be empty or not exist."""
    plan = plan_restore(target, at_ms)
    if directory.exists() and any(directory.iterdir()):
        layout.check_finished(directory)
        raise FileExistsError(errno.EEXIST, "exists and is not empty", str(directory))
    unfinished = directory / layout.RESTORING
    unfinished.mkdir(mode=0o700, parents=True)
    directory.chmod(0o700)
    path = unfinished / layout.INDEX_NAME
    write_index(target, plan, path, progress)
    done = fold_parts(target, plan.timeline_id, plan.parts, path, IndexEnd(plan.base.sequence), plan.at_ms)
    finish(directory, path, plan.timeline_id, plan.newest_ms)
    unfinished.rmdir()
    return done


def finish(directory: Path, path: Path, timeline_id: str, newest_ms: int) -> None:
    """Make a data directory of an index that was restored from a timeline. It can be repeated after an interruption.

    `newest_ms` is the latest time of data that the directory may lack."""
    (directory / layout.JOURNAL_DIR).mkdir(mode=0o700, exist_ok=True)
    if path.exists():
        folded = _begin_history(path, newest_ms)
        newest.create(RealDisk(directory / layout.JOURNAL_DIR), folded)  # an empty journal, which follows the index
        path.rename(directory / layout.INDEX_NAME)
    begin_timeline(directory, parent=timeline_id)
    RealDisk(directory).sync_names()
    layout.write_format(directory)  # last, because it marks the directory as complete


def _begin_history(path: Path, newest_ms: int) -> newest.FoldedSegment:
    """Begin a timeline in an index, and move all of its write-ahead log into it: the file is then moved alone."""
    connection = index.connect(path, write=True)
    try:
        IndexWriter(connection).begin_timeline(max(now_us(), newest_ms * 1000), random_gap())
        folded = index.IndexReader(connection).meta().folded
        [busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()
    if busy:
        raise BackupError(f"{path} is in use. Stop the process that uses it, and try again.")
    return folded


def write_index(target: BackupTarget, plan: Plan, path: Path, progress: Progress) -> None:
    base = read_base(target, plan.timeline_id, plan.base)
    create_private(path)
    with open(path, "r+b") as file:
        for block in _blocks(target, plan.timeline_id, base):
            file.write(block)
            progress(file.tell(), base.size_bytes)
        file.flush()
        os.fsync(file.fileno())
        if file.tell() != base.size_bytes:
            raise DamagedBackupError(f"{plan.timeline_id}/bases/{plan.base}", "its blocks have another size")


def _blocks(target: BackupTarget, timeline_id: str, base: Base) -> Iterator[bytes]:
    """The blocks of an index in order, with read-ahead."""

    def read(digest: bytes) -> bytes:
        name = f"{timeline_id}/blocks/{digest.hex()}"
        block = unseal(name, target.get(name))
        if block_digest(block) != digest:
            raise DamagedBackupError(name, "its content does not match its name")
        return block

    ahead: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(limits.BACKUP_COPIES_AT_ONCE, "headwater-copy") as readers:
        try:
            for digest in base.blocks:
                ahead.append(readers.submit(read, digest))
                if len(ahead) > limits.BACKUP_COPIES_AT_ONCE:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        except BaseException:
            readers.shutdown(cancel_futures=True)
            raise


def fold_parts(
    target: BackupTarget, timeline_id: str, parts: list[PartName], path: Path, after: IndexEnd, at_ms: int | None = None
) -> Restored:
    """Fold parts into an index that ends with a batch, in portions of the size of a segment."""
    connection = index.connect(path, write=True)
    try:
        index.check_format(connection)
        reader, writer = index.IndexReader(connection), IndexWriter(connection)
        meta = reader.meta()
        number, sequence = meta.folded_segment, meta.folded_sequence
        if sequence != after.sequence:
            raise DamagedBackupError(str(path), f"the index ends with batch {sequence}, not {after.sequence}")
        count, last_ms, place = 0, 0, after
        for batches in _portions(_batches(target, timeline_id, parts, after, at_ms)):
            number += 1
            fold(reader, writer, Segment(number, batches, 0, True, meta.folded_salt, meta.folded_salt))
            writer.checkpoint(log_pages_max=limits.WAL_PAGES_MAX)
            count, last = count + len(batches), batches[-1]
            place = IndexEnd(last.sequence, batch_digest(last))
            last_ms = max(last_ms, *(batch.moment.wall_ms for batch in batches))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        connection.close()
    return Restored(place, last_ms, count)


def _portions(batches: Iterator[JournalBatch]) -> Iterator[list[JournalBatch]]:
    portion, size = list[JournalBatch](), 0
    for batch in batches:
        portion.append(batch)
        size += len(batch.payload)
        if size >= limits.Limits().segment_bytes:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _batches(
    target: BackupTarget, timeline_id: str, parts: list[PartName], after: IndexEnd, at_ms: int | None
) -> Iterator[JournalBatch]:
    """The batches after a place up to the time. Each is checked to follow the one before."""
    last = len(parts) - 1
    reached, digest = after
    for number, part in enumerate(parts):
        name = f"{timeline_id}/journal/{part}"
        copied = decode_part(name, target.get(name))
        _check_follows(name, copied, part, reached, digest)
        batches = [batch for batch in copied.batches if batch.sequence > reached]
        kept = batches if at_ms is None or number < last else _cut(batches, at_ms)
        yield from kept
        if len(kept) < len(batches):
            return
        reached, digest = batches[-1].sequence, batch_digest(batches[-1])


def _check_follows(name: str, copied: Copied, part: PartName, reached: int, digest: bytes) -> None:
    first, last = copied.batches[0], copied.batches[-1]
    if (first.sequence, last.sequence) != (part.first, part.last):
        raise DamagedBackupError(name, "its batches do not match its name")
    before = copied.after if first.sequence > reached else batch_digest(copied.batches[reached - first.sequence])
    if digest and before and before != digest:
        raise DamagedBackupError(name, "it does not follow the part before it")


def _cut(batches: list[JournalBatch], at_ms: int) -> list[JournalBatch]:
    """The batches up to the last one that was written at or before a time."""
    times = [batch.moment.wall_ms for batch in batches]
    return batches[: next((index + 1 for index in range(len(times) - 1, -1, -1) if times[index] <= at_ms), 0)]


def shown_ms(moment_ms: int) -> str:
    """Format a time as for `--at`."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
