"""A consistent copy of a data directory, taken beside a running server and without its help.

The journal is copied first and the index after it. Whatever the fold moves meanwhile is in the index by the time
that is copied, and segments that it covers are dropped from the copy; the newest segment is kept as far as it is
intact. So the copy is the state at some moment between start and end, and opens like any directory.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from headwater.store import index
from headwater.store.disk import RealDisk
from headwater.store.journal import read_intact, seal_tail, segment_name, segment_numbers


def copy_journal(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    disk = RealDisk(source)
    for number in segment_numbers(disk):
        try:
            shutil.copyfile(source / segment_name(number), target / segment_name(number))
        except FileNotFoundError:
            continue  # folded and recycled since it was listed: the index will have it


def copy_index(source: Path, target: Path, progress: Callable[[int, int], None]) -> int:
    """Copy one snapshot of the index; the last segment that is folded into it."""
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


def finish_journal(target: Path, folded: int, salt: Callable[[], int]) -> None:
    """Drop what the index has; end the newest segment where it is intact, since it was copied while it grew."""
    disk = RealDisk(target)
    numbers = segment_numbers(disk)
    for number in numbers:
        name = segment_name(number)
        if number <= folded:
            disk.remove(name)
        elif number == numbers[-1]:
            segment = read_intact(name, (target / name).read_bytes(), number)
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
