"""Salvage: keep a damaged journal up to the first damage and move the rest aside."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headwater.store.embedded import index, layout, locking
from headwater.store.embedded.disk import Disk, RealDisk
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import (
    CorruptJournalError,
    read_file,
    read_intact,
    read_segment,
    segment_name,
    segment_numbers,
)
from headwater.store.embedded.journal_writer import seal_tail
from headwater.store.embedded.timelines import now_us


class Salvage(NamedTuple):
    kept_batches: int
    dropped_bytes: int
    set_aside: list[str]


def salvage_directory(directory: Path) -> Salvage:
    """Salvage the journal of a directory that no server uses. The dropped part is kept in other files."""
    layout.format_of(directory)
    lock = locking.own(directory)
    connection = index.connect(directory / layout.INDEX_NAME, write=True)
    try:
        meta = index.IndexReader(connection).meta()
        disk = RealDisk(directory / layout.JOURNAL_DIR)

        def cutting() -> None:
            IndexWriter(connection).begin_timeline(now_us())

        return salvage(disk, meta.folded_segment, meta.folded_sequence, lambda: secrets.randbits(32), cutting)
    finally:
        connection.close()
        lock.release()


def salvage(disk: Disk, folded: int, sequence: int, salt: Callable[[], int], cutting: Callable[[], object]) -> Salvage:
    """Keep the journal up to the first damage. The rest is moved to files that the server does not read.

    `cutting` is called before the first file is changed, if there is damage.
    """
    numbers = [number for number in segment_numbers(disk) if number > folded]
    kept = dropped = 0
    aside: list[str] = []
    expected = folded + 1
    for number in numbers:
        name = segment_name(number)
        _, data = read_file(disk, name)
        intact = read_intact(name, data, number) if number == expected else None
        follows = intact is not None and (not intact.batches or intact.batches[0].sequence == sequence + kept + 1)
        if intact is not None and follows and (intact.sealed or _is_end(name, data, number, numbers)):
            kept += len(intact.batches)
            expected += 1
            continue
        if not aside:
            cutting()
        expected = -1  # everything after this is dropped
        _set_aside(disk, name, data)
        aside.append(f"{name}.damaged")
        if intact is not None and follows and intact.batches:
            kept += len(intact.batches)
            dropped += len(data) - intact.end
            seal_tail(disk, intact, intact.batches[-1].sequence + 1, salt)
        else:
            dropped += len(data)
            disk.remove(name)
    disk.sync_names()
    return Salvage(kept, dropped, aside)


def _is_end(name: str, data: bytes, number: int, numbers: list[int]) -> bool:
    """Whether a segment without a seal is the newest one and ends as after a crash."""
    try:
        return number == numbers[-1] and read_segment(name, data, number, last=True) is not None
    except CorruptJournalError:
        return False


def _set_aside(disk: Disk, name: str, data: bytes) -> None:
    """Copy a segment. It is replaced only after the copy is durable."""
    copy = disk.open(f"{name}.damaged")
    try:
        copy.truncate(0)
        copy.write(0, data)
        copy.sync()
    finally:
        copy.close()
    disk.sync_names()
