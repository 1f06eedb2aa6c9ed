"""Salvage: keep a damaged journal up to the first damage, move the rest aside, and say what is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headwater.store.embedded import index, layout, newest
from headwater.store.embedded.disk import Disk, RealDisk
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import (
    CorruptJournalError,
    Segment,
    UnknownFormatError,
    read_file,
    read_intact,
    read_segment,
    segment_name,
    segment_numbers,
)
from headwater.store.embedded.journal_writer import seal_tail
from headwater.store.embedded.newest import FoldedSegment, Newest
from headwater.store.embedded.timelines import now_us, random_gap


class Salvage(NamedTuple):
    kept_batches: int
    dropped_bytes: int
    set_aside: list[str]
    lost: list[str]  # what is lost, one sentence each


def salvage_directory(directory: Path) -> Salvage:
    """Salvage the journal of a directory that no server uses. The dropped part is kept in other files."""
    with layout.owned_index(directory, write=True) as opened:
        folded = index.IndexReader(opened).meta().folded

        def cutting() -> None:
            IndexWriter(opened).begin_timeline(now_us(), random_gap())

        return salvage(RealDisk(directory / layout.JOURNAL_DIR), folded, cutting)


def salvage(disk: Disk, folded: FoldedSegment, cutting: Callable[[], object]) -> Salvage:
    """Keep the journal up to the first damage. The rest is moved to files that the server does not read.

    `cutting` is called before the first file is changed, if there is damage.
    """
    try:
        whole = list(newest.read_segments(disk, folded))
    except (CorruptJournalError, UnknownFormatError):
        cutting()
        return _Salvager(disk, folded).run()
    return Salvage(sum(len(segment.batches) for segment in whole), 0, [], [])


class _Salvager:
    """Goes through the segments in order. `_kept` is the last one that is kept."""

    def __init__(self, disk: Disk, folded: FoldedSegment) -> None:
        self._disk = disk
        self._folded = folded
        self._kept = Newest(folded.number, folded.salt, folded.sequence + 1, ended=folded.sequence + 1)
        self._sequence = folded.sequence + 1  # of the next batch
        self._is_whole = True  # until the first damage
        self._batches = self._dropped = self._seen = 0
        self._aside: list[str] = []
        self._lost: list[str] = []

    def run(self) -> Salvage:
        recorded = self._recorded()
        numbers = segment_numbers(self._disk)
        begun = self._folded.number if recorded is None else recorded.number
        for number in range(self._folded.number + 1, max([begun, *numbers]) + 1):
            if number in numbers:
                self._take(number, recorded)
            elif number <= begun:
                self._lose(f"{segment_name(number)} is missing, with all its batches")
        if recorded is not None:
            self._seen = max(self._seen, recorded.ended - 1)
        newest.replace(self._disk, self._kept)
        return Salvage(self._batches, self._dropped, self._aside, [*self._lost, *self._missing_batches()])

    def _recorded(self) -> Newest | None:
        try:
            return newest.read(self._disk).newest
        except CorruptJournalError as error:
            self._lost.append(f"{error}; segments after the last one that is left, if there were any, are lost")
            return None

    def _missing_batches(self) -> list[str]:
        first = self._sequence
        if self._is_whole:
            return []
        if self._seen < first:
            return [f"batches from {first} on, as many as there were, are lost"]
        return [f"batches {first} to {self._seen}, and any that followed in a damaged segment, are lost"]

    def _take(self, number: int, recorded: Newest | None) -> None:
        """Keep a segment, its intact beginning, or nothing of it."""
        name = segment_name(number)
        _, data = read_file(self._disk, name)
        try:
            intact = read_intact(name, data, number)
        except UnknownFormatError:
            intact = None
        if (recorded is None or number > recorded.number) and (intact is None or not intact.batches):
            if any(data):
                self._set_aside(name, data)
            self._disk.remove(name)  # without a batch
            return
        if intact is not None and intact.batches:
            self._seen = max(self._seen, intact.batches[-1].sequence)
        follows = self._is_whole and intact is not None and self._follows(intact, recorded)
        if intact is not None and follows and self._is_complete(name, data, intact, recorded):
            self._keep(intact, len(data), sealed=intact.sealed)
            return
        self._set_aside(name, data)
        if intact is not None and follows and intact.batches:
            seal_tail(self._disk, intact, len(data))
            self._keep(intact, len(data), sealed=True)
            self._dropped += len(data) - intact.end
            self._lose(f"{name} is damaged at byte {intact.end}; what followed is lost")
        else:
            self._dropped += len(data)
            self._disk.remove(name)
            self._lose(f"{name} is {'damaged' if self._is_whole else 'after the damage'}; all of it is lost")

    def _follows(self, segment: Segment, recorded: Newest | None) -> bool:
        is_recorded = recorded is None or segment.number != recorded.number or segment.salt == recorded.salt
        first = segment.batches[0].sequence if segment.batches else self._sequence
        return is_recorded and segment.previous == self._kept.salt and first == self._sequence

    def _is_complete(self, name: str, data: bytes, segment: Segment, recorded: Newest | None) -> bool:
        """Whether a segment is sealed, or is the newest one and ends as after a crash."""
        is_newest = recorded is None or segment.number >= recorded.number
        if recorded is not None and segment.number == recorded.number:
            next_sequence = segment.next_sequence or self._sequence
            if len(data) < recorded.size_bytes or recorded.ended not in (0, next_sequence):
                return False
        return segment.sealed or (is_newest and _is_end(name, data, segment.number))

    def _keep(self, segment: Segment, size_bytes: int, *, sealed: bool) -> None:
        first = self._sequence
        self._sequence = segment.next_sequence or first
        self._batches += len(segment.batches)
        ended = self._sequence if sealed else 0
        self._kept = Newest(segment.number, segment.salt, first, size_bytes, ended)

    def _lose(self, what: str) -> None:
        self._is_whole = False
        self._lost.append(what)

    def _set_aside(self, name: str, data: bytes) -> None:
        """Copy a segment. It is replaced only after the copy is durable."""
        copy = self._disk.open(f"{name}.damaged")
        try:
            copy.truncate(0)
            copy.write(0, data)
            copy.sync()
        finally:
            copy.close()
        self._disk.sync_names()
        self._aside.append(f"{name}.damaged")


def _is_end(name: str, data: bytes, number: int) -> bool:
    try:
        read_segment(name, data, number, last=True)
    except CorruptJournalError:
        return False
    return True
