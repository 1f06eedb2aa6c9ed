"""The record of the newest segment of the journal, in a file of its own, and the check of all segments against it.

    file     two slots of 4096 bytes, each with the checksum of its content
    slot     magic, generation, number, salt, first sequence, length of the file, sequence of the seal, checksum

The record is written after the header and the name of a segment are synced, and before the first batch in it. So a
segment that is recorded was begun, whatever is left of it, and one that is not recorded has no acknowledged batch. When
a server stops, it also records the sequence of the seal, so that a journal that was replaced by an older copy of it is
noticed.

Slots are written in turn and in place. This needs no disk space, and a torn write leaves the other slot. A torn slot
belongs to the segment after the recorded one, whose header is then on the disk, or to the seal of the recorded one. An
invalid slot without either is damage.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from headwater.store.embedded.disk import Disk, File
from headwater.store.embedded.journal import (
    HEADER_BYTES,
    CorruptJournalError,
    Segment,
    UnknownFormatError,
    read_file,
    read_intact,
    read_segment,
    segment_name,
    segment_numbers,
)

NAME = "newest"
_SLOT_BYTES = 4096
_SLOT = struct.Struct("<4sQQIQQQI")
_MAGIC = b"HWN\n"


class Newest(NamedTuple):
    """The newest segment that was begun; number 0 in a new directory."""

    number: int
    salt: int
    sequence: int  # of its first batch
    size_bytes: int = 0  # the length of its file, at least
    ended: int = 0  # the sequence of its seal, if the journal was closed after it; 0 otherwise


class FoldedSegment(NamedTuple):
    """The last folded segment, according to the index."""

    number: int
    sequence: int  # of the last folded batch
    salt: int


class Recorded(NamedTuple):
    """What the file says. `torn` is whether one slot is invalid."""

    file: str
    newest: Newest
    generation: int
    torn: bool


class NewestRecord:
    """The open file. It stays open, because later there may be no file descriptor."""

    def __init__(self, file: File, newest: Newest, generation: int) -> None:
        self._file = file
        self._generation = generation
        self.newest = newest

    def write(self, newest: Newest) -> None:
        """Write the slot that does not have the last record, and sync it."""
        generation = self._generation + 1
        self._file.write(generation % 2 * _SLOT_BYTES, _encode(generation, newest))
        self._file.sync()
        self._generation, self.newest = generation, newest

    def close(self) -> None:
        self._file.close()


def create(disk: Disk, folded: FoldedSegment) -> None:
    """Record that the journal has no segment after the folded one, in a new or restored directory."""
    newest = Newest(folded.number, folded.salt, folded.sequence + 1, ended=folded.sequence + 1)
    replace(disk, newest)


def replace(disk: Disk, newest: Newest) -> None:
    """Write both slots anew, in another file that then gets the name."""
    unfinished = f"{NAME}.unfinished"
    file = disk.open(unfinished)
    try:
        file.truncate(0)
        file.write(0, _encode(0, newest).ljust(_SLOT_BYTES, b"\0") + _encode(1, newest).ljust(_SLOT_BYTES, b"\0"))
        file.sync()
    finally:
        file.close()
    disk.rename(unfinished, NAME)
    disk.sync_names()


def open_record(disk: Disk, recorded: Recorded) -> NewestRecord:
    return NewestRecord(disk.open(NAME), recorded.newest, recorded.generation)


def read(disk: Disk) -> Recorded:
    """Read the record. Raises CorruptJournalError if it is missing or neither slot is valid."""
    if NAME not in disk.names():
        raise CorruptJournalError(NAME, 0, "the record of the newest segment is missing")
    file, data = read_file(disk, NAME)
    slots = [slot for start in (0, _SLOT_BYTES) if (slot := _decode(data[start : start + _SLOT.size])) is not None]
    if not slots:
        raise CorruptJournalError(file, 0, "the record of the newest segment is damaged")
    generation, newest = max(slots)
    return Recorded(file, newest, generation, torn=len(slots) < 2)


def _encode(generation: int, newest: Newest) -> bytes:
    head = _SLOT.pack(_MAGIC, generation, *newest, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def _decode(slot: bytes) -> tuple[int, Newest] | None:
    if len(slot) < _SLOT.size:
        return None
    magic, generation, *fields, checksum = _SLOT.unpack(slot)
    if magic != _MAGIC or checksum != zlib.crc32(slot[:-4]):
        return None
    return generation, Newest(*fields)


# The check of the segments


def read_segments(disk: Disk, folded: FoldedSegment) -> Iterator[Segment]:
    """All segments that are not folded yet, in order. Raises CorruptJournalError unless each one that was begun is
    there and is the one that was written. When it ends, all of them are verified."""
    recorded = read(disk)
    newest = recorded.newest
    numbers = segment_numbers(disk)
    _check_folded(recorded, folded)
    following = _begun_after(disk, recorded, numbers)
    end = newest.number if following is None else following.number
    sequence, salt = folded.sequence + 1, folded.salt
    sealed = True
    for number in range(folded.number + 1, end + 1):
        if number not in numbers:
            raise CorruptJournalError(segment_name(number), 0, "the segment is missing")
        name, data = read_file(disk, segment_name(number))
        if number == newest.number:
            _check_newest(name, data, newest)
        segment = read_segment(name, data, number, last=number == end, sequence=sequence)
        _check_identity(name, segment, salt, newest)
        first = segment.batches[0].sequence if segment.batches else sequence
        if first != sequence or (number == newest.number and sequence != newest.sequence):
            raise CorruptJournalError(name, HEADER_BYTES, f"found batch {first}, expected {sequence}")
        sequence, salt, sealed = segment.next_sequence or sequence, segment.salt, segment.sealed
        if number == newest.number and newest.ended:
            _check_end(name, segment, sequence, newest)
        yield segment
    if recorded.torn and following is None and not sealed:
        raise CorruptJournalError(recorded.file, 0, "a slot of the record of the newest segment is damaged")


def _check_folded(recorded: Recorded, folded: FoldedSegment) -> None:
    newest = recorded.newest
    if newest.number < folded.number:
        reason = f"it records segment {newest.number}, but the index has folded {folded.number}; it is an older copy"
        raise CorruptJournalError(recorded.file, 0, reason)
    if newest.number == folded.number:
        if newest.salt != folded.salt:
            raise CorruptJournalError(recorded.file, 0, "the journal and the index are of different directories")
        if newest.ended and newest.ended != folded.sequence + 1:
            reason = f"the journal ends with batch {newest.ended - 1}, the index with batch {folded.sequence}"
            raise CorruptJournalError(recorded.file, 0, reason)


def _begun_after(disk: Disk, recorded: Recorded, numbers: list[int]) -> Segment | None:
    """The segment after the recorded one, if its record was torn. Without a record it has no batches, and was never
    begun."""
    newest = recorded.newest
    later = [number for number in numbers if number > newest.number]
    for number in later:
        name, data = read_file(disk, segment_name(number))
        try:
            segment = read_intact(name, data, number)
        except UnknownFormatError:
            segment = None
        if segment is None:
            continue
        if number == newest.number + 1 and recorded.torn and segment.previous == newest.salt:
            return segment
        if segment.batches:
            reason = f"{segment_name(number)} was begun after the newest segment that is recorded, {newest.number}"
            raise CorruptJournalError(recorded.file, 0, reason)
    return None


def _check_newest(name: str, data: bytes, newest: Newest) -> None:
    if len(data) < newest.size_bytes:
        reason = f"the file was cut: it has {len(data)} bytes and had {newest.size_bytes}"
        raise CorruptJournalError(name, len(data), reason)


def _check_identity(name: str, segment: Segment, previous: int, newest: Newest) -> None:
    if segment.previous != previous or (segment.number == newest.number and segment.salt != newest.salt):
        raise CorruptJournalError(name, 0, "it is not the segment that was written here, but another or an older one")


def _check_end(name: str, segment: Segment, sequence: int, newest: Newest) -> None:
    if not segment.sealed or sequence != newest.ended:
        reason = f"it ends with batch {sequence - 1}, but the journal was closed after batch {newest.ended - 1}"
        raise CorruptJournalError(name, segment.end, reason)
