"""A consistent copy of a data directory, taken beside a running server and without its help.

The journal is copied first and the index after it. Whatever the fold moves meanwhile is in the index by the time
that is copied, and segments that it covers are dropped from the copy; the newest segment is kept as far as it is
intact. So the copy is the state at some moment between start and end, and opens like any directory.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from headwater.store.embedded import index, layout
from headwater.store.embedded.disk import Disk, RealDisk, create_private
from headwater.store.embedded.journal import UnknownFormatError, read_intact, segment_name, segment_numbers
from headwater.store.embedded.journal_writer import seal_tail

Progress = Callable[[int, int], None]


def back_up(directory: Path, target: Path, progress: Progress) -> None:
    """Copy a directory, in use or not, to one that does not exist yet. A copy that fails leaves nothing behind."""
    if layout.format_of(directory) != layout.FORMAT:
        raise UnknownFormatError(f"{directory} has an older format; start a server on it once to upgrade it")
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(errno.EEXIST, "exists and is not empty", str(target))
    made = not target.exists()
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        (target / layout.JOURNAL_DIR).mkdir(mode=0o700, exist_ok=True)
        journal = RealDisk(target / layout.JOURNAL_DIR)
        copy_journal(RealDisk(directory / layout.JOURNAL_DIR), journal)
        folded = copy_index(directory / layout.INDEX_NAME, target / layout.INDEX_NAME, progress)
        finish_journal(journal, folded, lambda: secrets.randbits(32))
        layout.write_format(target)
        sync_tree(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        if not made:
            target.mkdir(mode=0o700, exist_ok=True)
        raise


def copy_journal(source: Disk, target: Disk) -> None:
    for number in segment_numbers(source):
        copy_segment(source, target, number)


def copy_segment(source: Disk, target: Disk, number: int) -> None:
    try:
        data = source.read(segment_name(number))
    except FileNotFoundError:  # folded and recycled since it was listed: the index will have it
        return
    file = target.open(segment_name(number))
    try:
        file.write(0, data)
    finally:
        file.close()


def copy_index(source: Path, target: Path, progress: Progress) -> int:
    """Copy one snapshot of the index; the last segment that is folded into it."""
    create_private(target)
    reader = index.connect(source, write=False)
    writer = sqlite3.connect(target)
    try:
        reader.execute("BEGIN")
        folded = index.IndexReader(reader).meta().folded_segment  # the read that takes the snapshot
        reader.backup(writer, pages=2048, progress=lambda _, left, total: progress(total - left, total))
        writer.execute("PRAGMA journal_mode = WAL")
    finally:
        reader.close()
        writer.close()
    return folded


def finish_journal(disk: Disk, folded: int, salt: Callable[[], int]) -> None:
    """Drop what the index has; end the newest segment where it is intact, since it was copied while it grew."""
    numbers = segment_numbers(disk)
    for number in numbers:
        name = segment_name(number)
        if number <= folded:
            disk.remove(name)
        elif number == numbers[-1]:
            segment = read_intact(name, disk.read(name), number)
            if segment is None or segment.next_sequence is None:
                disk.remove(name)
            elif not segment.sealed:
                seal_tail(disk, segment, segment.next_sequence, salt)


def sync_tree(directory: Path) -> None:
    """Nothing is a backup before it is on the disk."""
    for path in [*directory.rglob("*"), directory]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
