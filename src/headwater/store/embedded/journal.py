"""The journal: segments of batches with checksums. Each batch is synced before the next one is written.

    segment   header, batches, a seal
    header    magic, format, segment number, salt, salt of the segment before, checksum   28 bytes
    batch     magic, sequence, flags, length, moment, checksum, records                   56 bytes and the records

Sequences increase by one across all segments. Checksums are seeded with the random salt of the segment, so neither
client data nor old content of a recycled file can look like a batch. A batch is written only after the one before it
was synced, so only the last batch can be incomplete. An invalid batch that is followed by a valid one was durable and
has been damaged since.

Files are allocated at full length before use and recycled afterwards. Overwriting existing blocks changes no file
metadata, so that a sync writes only data.

The newest segment is recorded in a file of its own (`newest.py`), with its salt. Each header has the salt of the
segment before it, and the index has that of the last folded one. So every segment that is not folded must exist, and be
the one that was written: a segment that is missing, cut, or from another directory is noticed.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headwater import limits
from headwater.log.events import Event, Record
from headwater.log.moments import NEVER, Moment
from headwater.store.embedded.disk import Disk

FORMAT = 3

_HEADER = struct.Struct("<4sIQIII")
_BATCH = struct.Struct("<4sQIIQQQQI")
HEADER_BYTES = _HEADER.size
BATCH_OVERHEAD_BYTES = _BATCH.size
_MAGIC = b"HWJ\n"
_BATCH_MAGIC = b"HWB\n"
SEAL = 1  # flag of the batch that ends a segment
_NAME = re.compile(r"([0-9]{16})\.journal")

_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(list[tuple[Event, ...]])


class DirectoryError(Exception):
    """A data directory cannot be opened. Nothing in it was changed."""


class CorruptJournalError(DirectoryError):
    """A durable part of the journal is damaged."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file} is corrupt at byte {position}: {reason}")
        self.file = file
        self.position = position


class UnknownFormatError(DirectoryError):
    """The data was written by a version of Headwater that this version does not support."""


class JournalBatch(NamedTuple):
    file: str
    position: int
    sequence: int
    moment: Moment
    payload: memoryview

    def records(self) -> list[Record]:
        try:
            return _records.decode(self.payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            reason = f"the checksum matches, but the records are invalid: {error}"
            raise CorruptJournalError(self.file, self.position, reason) from None


class Segment(NamedTuple):
    """A segment as read from disk."""

    number: int
    batches: list[JournalBatch]
    end: int  # end of the last valid batch
    sealed: bool
    salt: int
    previous: int  # the salt of the segment before it

    @property
    def next_sequence(self) -> int | None:
        return self.batches[-1].sequence + 1 if self.batches else None

    def encode(self, sequence: int) -> bytes:
        """Encode the segment; `sequence` is that of its seal."""
        parts = [encode_header(self.number, self.salt, self.previous)]
        parts += [encode_batch(batch.sequence, batch.moment, batch.payload, self.salt) for batch in self.batches]
        if self.sealed:
            parts.append(encode_seal(sequence, self.salt))
        return b"".join(parts)


def segment_name(number: int) -> str:
    return f"{number:016d}.journal"


def segment_numbers(disk: Disk) -> list[int]:
    return sorted(int(match[1]) for name in disk.names() if (match := _NAME.fullmatch(name)))


def read_file(disk: Disk, name: str) -> tuple[str, bytes]:
    """The full name of a file, for messages, and its bytes."""
    file = disk.open(name)
    try:
        return file.name, file.read()
    finally:
        file.close()


def encode_header(number: int, salt: int, previous: int) -> bytes:
    head = _HEADER.pack(_MAGIC, FORMAT, number, salt, previous, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def encode_records(records: Sequence[Record]) -> bytearray:
    """Encode records into a bytearray: msgspec crashes if there is no memory to enlarge bytes."""
    payload = bytearray()
    _encoder.encode_into(records, payload)
    return payload


def encode_batch(
    sequence: int, moment: Moment, payload: bytes | bytearray | memoryview, salt: int, flags: int = 0
) -> bytes:
    head = _BATCH.pack(_BATCH_MAGIC, sequence, flags, len(payload), *moment, 0)[:-4]
    return b"".join((head, struct.pack("<I", zlib.crc32(payload, zlib.crc32(head, salt))), payload))


def encode_seal(sequence: int, salt: int) -> bytes:
    return encode_batch(sequence, NEVER, b"", salt, SEAL)


# Reading


def read_segment(name: str, data: bytes, number: int, *, last: bool, sequence: int | None = None) -> Segment:
    """Read the batches of a segment that was begun.

    Only the last segment may have no seal, and only its last batch may be incomplete.
    """
    segment = _scan(name, data, number)
    if segment is None:
        raise CorruptJournalError(name, 0, "the segment has lost its header")
    if segment.sealed:
        return segment
    if not last:
        raise CorruptJournalError(name, segment.end, "a batch is damaged or missing")
    later = _find_batch(data, segment.end + 1, segment.salt, segment.next_sequence or sequence)
    if later is not None:
        raise CorruptJournalError(name, segment.end, f"a batch is damaged; a valid one follows at byte {later}")
    return segment


def read_intact(name: str, data: bytes, number: int) -> Segment | None:
    """Read the valid batches up to the first damage."""
    try:
        return _scan(name, data, number)
    except CorruptJournalError as error:
        return None if error.position == 0 else _scan(name, data[: error.position], number)


def _scan(name: str, data: bytes, number: int) -> Segment | None:
    """Return the segment up to its seal or first invalid batch.

    It is None if it has no header: empty, all zeros, or with the header of the recycled segment.
    """
    header = read_header(name, data, number)
    if header is None:
        return None
    salt, previous = header
    batches: list[JournalBatch] = []
    position, expected = _HEADER.size, None
    while (frame := read_batch(data, position, salt)) is not None:
        sequence, flags, moment, payload, end = frame
        if expected is not None and sequence != expected:
            raise CorruptJournalError(name, position, f"found batch {sequence}, expected {expected}")
        expected = sequence + 1
        if flags & SEAL:
            return Segment(number, batches, position, True, salt, previous)
        batches.append(JournalBatch(name, position, sequence, moment, payload))
        position = end
    return Segment(number, batches, position, False, salt, previous)


def read_header(name: str, data: bytes, number: int) -> tuple[int, int] | None:
    """The salts of the segment and of the one before it; None if the file has no header of this segment."""
    if len(data) < _HEADER.size:
        return None
    magic, version, own_number, salt, previous, checksum = _HEADER.unpack_from(data)
    if not any(data[: _HEADER.size]):
        return None
    if magic != _MAGIC or checksum != zlib.crc32(data[: _HEADER.size - 4]):
        raise CorruptJournalError(name, 0, "the segment header is damaged")
    if version != FORMAT:
        raise UnknownFormatError(f"{name} has journal format {version}; this version supports {FORMAT}")
    return (int(salt), int(previous)) if own_number == number else None


def read_batch(data: bytes, position: int, salt: int) -> tuple[int, int, Moment, memoryview, int] | None:
    """Sequence, flags, moment, records and end of the batch at a position; None if there is no valid batch."""
    if len(data) < position + _BATCH.size:
        return None
    magic, sequence, flags, length, *moment, checksum = _BATCH.unpack_from(data, position)
    start = position + _BATCH.size
    end = start + length
    if magic != _BATCH_MAGIC or end > len(data):
        return None
    payload = memoryview(data)[start:end]
    head = zlib.crc32(memoryview(data)[position : start - 4], salt)
    return (sequence, flags, Moment(*moment), payload, end) if zlib.crc32(payload, head) == checksum else None


def batch_length(data: bytes, position: int) -> int:
    """The length in the header of the batch at a position; 0 if there is no batch header."""
    if not data.startswith(_BATCH_MAGIC, position) or len(data) < position + _BATCH.size:
        return 0
    return _BATCH.size + int(_BATCH.unpack_from(data, position)[3])


def _find_batch(data: bytes, position: int, salt: int, after: int | None) -> int | None:
    """Find a valid batch after an invalid one. The sequence is checked before the checksum, because client data may
    contain many byte strings that look like a batch, and checking all their checksums could take minutes."""
    while (position := data.find(_BATCH_MAGIC, position)) >= 0:
        if len(data) < position + _BATCH.size:
            return None
        sequence, flags = _BATCH.unpack_from(data, position)[1:3]
        near = after is None or after <= sequence <= after + limits.JOURNAL_DAMAGE_BATCHES_MAX
        if near and flags in (0, SEAL) and read_batch(data, position, salt) is not None:
            return position
        position += 1
    return None
