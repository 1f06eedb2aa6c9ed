"""The journal: segments of checksummed batches, each batch durable before the next one is written.

    segment   header, batches, a seal
    header    magic, format, segment number, salt, checksum            28 bytes
    batch     magic, sequence, flags, length, checksum, records        24 bytes and the records

Sequences count up by one through all segments. Checksums start from the segment's random salt, so neither a
client's bytes nor what a recycled file held before can pass for a batch. Since a batch is written only after the
one before it was synced, a batch that is not whole can only be the very last: one that is followed by a whole
batch was durable once and has been damaged since.

Files are made full-length before use and recycled afterwards: overwriting blocks that exist leaves the sync
nothing but data to write.
"""

from __future__ import annotations

import errno
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from headwater.log.values import Event, Record
from headwater.store.disk import Disk, File

FORMAT = 1

_HEADER = struct.Struct("<4sIQII")
_BATCH = struct.Struct("<4sQIII")
_MAGIC = b"HWJ\n"
_BATCH_MAGIC = b"HWB\n"
_SEAL = 1
_NAME = re.compile(r"([0-9]{16})\.journal")
_SPARE = "spare.journal"
_DAMAGE_BATCHES_MAX = 4096

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[Event, ...]])


class CorruptJournalError(Exception):
    """A part of the journal that was durable is damaged."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file} is corrupt at byte {position}: {reason}")
        self.file = file
        self.position = position


class UnknownFormatError(Exception):
    """Written by a version of Headwater that this one does not know."""


class JournalFailedError(Exception):
    """A write or sync failed in a way that leaves it unknown what is durable."""

    def __init__(self, file: str, cause: OSError) -> None:
        super().__init__(f"{file}: {cause.strerror or cause}")


class DiskFullError(Exception):
    """There is no room for a batch; nothing of it counts, and it can be tried again."""


class Batch(NamedTuple):
    file: str
    position: int
    sequence: int
    payload: memoryview

    def records(self) -> list[Record]:
        try:
            return _decoder.decode(self.payload)
        except msgspec.MsgspecError as error:
            reason = f"the checksum holds but the records do not: {error}"
            raise CorruptJournalError(self.file, self.position, reason) from None


class Segment(NamedTuple):
    """A segment as it was found on disk."""

    number: int
    batches: list[Batch]
    end: int  # of the last whole batch
    sealed: bool

    @property
    def next_sequence(self) -> int | None:
        return self.batches[-1].sequence + 1 if self.batches else None


def segment_name(number: int) -> str:
    return f"{number:016d}.journal"


def segment_numbers(disk: Disk) -> list[int]:
    return sorted(int(match[1]) for name in disk.names() if (match := _NAME.fullmatch(name)))


def encode_header(number: int, salt: int) -> bytes:
    head = _HEADER.pack(_MAGIC, FORMAT, number, salt, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def encode_records(records: Sequence[Record]) -> bytes:
    return _encoder.encode(records)


def _frame(sequence: int, payload: bytes | memoryview, salt: int, flags: int) -> bytes:
    head = _BATCH.pack(_BATCH_MAGIC, sequence, flags, len(payload), 0)[:-4]
    return b"".join((head, struct.pack("<I", zlib.crc32(payload, zlib.crc32(head, salt))), payload))


# Reading


def read_segment(name: str, data: bytes, number: int, *, last: bool, sequence: int | None = None) -> Segment | None:
    """The batches of a segment. None for a last one that was never begun.

    Only the last segment may lack its seal, and only its last batch may be broken off.
    """
    segment, position, salt = _scan(name, data, number)
    if segment is None:
        if last:
            return None
        raise CorruptJournalError(name, 0, "the segment header is damaged")
    if segment.sealed:
        return segment
    if not last:
        raise CorruptJournalError(name, position, "a batch is damaged or missing")
    later = _find_batch(data, position + 1, salt, segment.next_sequence or sequence)
    if later is not None:
        raise CorruptJournalError(name, position, f"a batch is damaged; a whole one follows at byte {later}")
    return segment


def read_intact(name: str, data: bytes, number: int) -> Segment | None:
    """What is intact from the beginning on, whatever follows."""
    try:
        return _scan(name, data, number)[0]
    except CorruptJournalError as error:
        return None if error.position == 0 else _scan(name, data[: error.position], number)[0]


def _scan(name: str, data: bytes, number: int) -> tuple[Segment | None, int, int]:
    """The segment up to its seal or the first batch that is not whole, where that is, and the salt.

    None for one that was never begun: empty, all zeros, or still with the header of what it was recycled from.
    """
    salt = _read_header(name, data, number)
    if salt is None:
        return None, 0, 0
    batches: list[Batch] = []
    position, expected = _HEADER.size, None
    while (found := _read_batch(data, position, salt)) is not None:
        sequence, flags, payload, end = found
        if expected is not None and sequence != expected:
            raise CorruptJournalError(name, position, f"batch {sequence} where {expected} was expected")
        expected = sequence + 1
        if flags & _SEAL:
            return Segment(number, batches, position, sealed=True), position, salt
        batches.append(Batch(name, position, sequence, payload))
        position = end
    return Segment(number, batches, position, sealed=False), position, salt


def _read_header(name: str, data: bytes, number: int) -> int | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, found, salt, checksum = _HEADER.unpack_from(data)
    if not any(data[: _HEADER.size]):
        return None
    if magic != _MAGIC or checksum != zlib.crc32(data[: _HEADER.size - 4]):
        raise CorruptJournalError(name, 0, "the segment header is damaged")
    if version != FORMAT:
        raise UnknownFormatError(f"{name} has journal format {version}; this version knows {FORMAT}")
    return int(salt) if found == number else None


def _read_batch(data: bytes, position: int, salt: int) -> tuple[int, int, memoryview, int] | None:
    if len(data) < position + _BATCH.size:
        return None
    magic, sequence, flags, length, checksum = _BATCH.unpack_from(data, position)
    start = position + _BATCH.size
    end = start + length
    if magic != _BATCH_MAGIC or end > len(data):
        return None
    payload = memoryview(data)[start:end]
    head = zlib.crc32(memoryview(data)[position : start - 4], salt)
    return (sequence, flags, payload, end) if zlib.crc32(payload, head) == checksum else None


def _find_batch(data: bytes, position: int, salt: int, after: int | None) -> int | None:
    """A whole batch somewhere behind a broken one. Its sequence is looked at first: a checksum for each thing in a
    client's data that resembles a batch could take minutes."""
    while (position := data.find(_BATCH_MAGIC, position)) >= 0:
        if len(data) < position + _BATCH.size:
            return None
        sequence, flags = _BATCH.unpack_from(data, position)[1:3]
        near = after is None or after <= sequence <= after + _DAMAGE_BATCHES_MAX
        if near and flags in (0, _SEAL) and _read_batch(data, position, salt) is not None:
            return position
        position += 1
    return None


def read_segments(disk: Disk, folded: int, sequence: int) -> Iterator[Segment]:
    """Every segment that is not folded yet, in order and without a gap; `sequence` is of the first batch to come."""
    numbers = [number for number in segment_numbers(disk) if number > folded]
    for index, number in enumerate(numbers):
        if number != folded + 1 + index:
            raise CorruptJournalError(segment_name(folded + 1 + index), 0, "the segment is missing")
        file = disk.open(segment_name(number))
        try:
            segment = read_segment(file.name, file.read(), number, last=index == len(numbers) - 1, sequence=sequence)
        finally:
            file.close()
        if segment is None:
            continue
        if segment.batches:
            first = segment.batches[0].sequence
            if first != sequence:
                raise CorruptJournalError(file.name, _HEADER.size, f"batch {first} where {sequence} was expected")
            sequence = segment.batches[-1].sequence + 1
        yield segment


# Writing


class JournalWriter:
    """Appends batches to the newest segment: `place` writes one, and once the file is synced `settle` counts it."""

    def __init__(self, disk: Disk, *, number: int, sequence: int, segment_bytes: int, salt: Callable[[], int]) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._new_salt = salt
        self._salt = 0
        self._file: File | None = None
        self._position = 0
        self._placed = 0
        self.number = number  # of the newest segment, begun or to be begun
        self.sequence = sequence  # of the next batch

    def place(self, payload: bytes) -> File:
        """Write a batch of encoded records; the file to sync."""
        if self._position + _BATCH.size + len(payload) > self._segment_bytes and self._position > _HEADER.size:
            self.roll()
        file = self._file or self._begin()
        data = _frame(self.sequence, payload, self._salt, 0)
        self._write(file, data)
        self._placed = len(data)
        return file

    def settle(self) -> None:
        """The batch that was placed is durable."""
        self._position += self._placed
        self.sequence += 1

    def roll(self) -> None:
        """Seal the segment, so that the next batch goes into a new one."""
        file = self._file
        if file is not None:
            self._write(file, _frame(self.sequence, b"", self._salt, _SEAL))
            _sync(file)
            self.close()
            self.number += 1

    def _begin(self) -> File:
        name = segment_name(self.number)
        self._salt = self._new_salt()
        self._position = 0
        try:
            if _SPARE in self._disk.names():
                self._disk.rename(_SPARE, name)
            self._file = file = self._disk.open(name)
        except OSError as error:
            raise failure(name, error) from error
        try:
            self._write(file, encode_header(self.number, self._salt))
            _sync(file)
            self._disk.sync_names()
        except OSError as error:
            self.close()
            raise JournalFailedError(name, error) from error
        except BaseException:
            self.close()
            raise
        self._position = _HEADER.size
        return file

    def _write(self, file: File, data: bytes) -> None:
        try:
            file.write(self._position, data)
        except OSError as error:
            raise failure(file.name, error) from error

    def prepare(self) -> None:
        """Have a full-length file ready for the next segment."""
        if _SPARE in self._disk.names():
            return
        file = self._disk.open("new.journal")
        try:
            zeros = bytes(1 << 20)
            for position in range(0, self._segment_bytes, len(zeros)):
                file.write(position, zeros)
            file.sync()
        except BaseException:
            file.truncate(0)
            raise
        finally:
            file.close()
        self._disk.rename("new.journal", _SPARE)

    def recycle(self, number: int) -> None:
        """A folded segment is no longer needed: its blocks are, if no others wait."""
        if _SPARE in self._disk.names():
            self._disk.remove(segment_name(number))
        else:
            self._disk.rename(segment_name(number), _SPARE)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise JournalFailedError(file.name, error) from error


def failure(name: str, error: OSError) -> Exception:
    """What a failed write means: no room can be waited out, anything else cannot."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{name}: {error.strerror}")
    return JournalFailedError(name, error)


def seal_tail(disk: Disk, segment: Segment, sequence: int, salt: Callable[[], int]) -> None:
    """Rewrite a recovered last segment whole: what was broken off is gone and the seal says so."""
    fresh = salt()
    parts = [encode_header(segment.number, fresh)]
    parts += [_frame(batch.sequence, batch.payload, fresh, 0) for batch in segment.batches]
    parts.append(_frame(sequence, b"", fresh, _SEAL))
    file = disk.open("recovered.journal")
    try:
        file.truncate(0)
        file.write(0, b"".join(parts))
        file.sync()
    finally:
        file.close()
    disk.rename("recovered.journal", segment_name(segment.number))
    disk.sync_names()
