"""The files of a target and their encoding.

    FORMAT                                     the format of the target
    timelines/{id}                             `BackupTimeline`: the history of one data directory
    {id}/bases/{sequence}-{ms}                 `Base`: the index after a batch of the journal
    {id}/blocks/{sha256}                       a block of such an index, compressed
    {id}/journal/{first}-{last}-{ms}-{ms}-{n}  `EncodedPart`: batches of the journal

All files except FORMAT are compressed and begin with a checksum. Numbers in names have 16 digits, so that names sort as
the numbers do. The name of a part has the minimum and maximum wall-clock time at which its batches were written, and a
checksum of its content, so that no part overwrites another one.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, TypeVar

import msgspec
import xxhash
import zstandard

from headwater import limits
from headwater.log.moments import Moment
from headwater.store.embedded.backup.failures import BackupError, DamagedBackupError
from headwater.store.embedded.journal import FORMAT as JOURNAL_FORMAT
from headwater.store.embedded.journal import JournalBatch

FORMAT = b"headwater backup, format 2\n"
FORMAT_NAME = "FORMAT"
TIMELINES = "timelines/"

_MAGIC = b"HWBK"
_DIGEST_BYTES = 16
_PART_NAME = re.compile(r"([0-9]{16})-([0-9]{16})-([0-9]{16})-([0-9]{16})-([0-9a-f]{16})")
_BASE_NAME = re.compile(r"([0-9]{16})-([0-9]{16})")

T = TypeVar("T")


class BackupRange(msgspec.Struct):
    """A part of a timeline without a gap: a base and the journal after it."""

    start: int  # the sequence of the base
    last: int  # the sequence of the last batch
    reached_ms: int  # all writes acknowledged before this wall-clock time are included; 0 at the beginning
    complete: bool = False  # whether the journal after its base was copied
    written_ms: int = 0  # the engine's time of its last batch


class BackupTimeline(msgspec.Struct):
    id: str
    parent: str  # the timeline that the directory was restored from
    started_ms: int
    ranges: list[BackupRange]


class Base(msgspec.Struct, frozen=True):
    segment: int  # the last folded segment
    sequence: int  # of the last folded batch
    taken_ms: int
    size_bytes: int
    blocks: list[bytes]  # SHA-256 of each block
    written_ms: int = 0  # the engine's time of the last batch that was copied before it was taken


class Copied(NamedTuple):
    """Consecutive batches of one segment."""

    segment: int
    batches: list[JournalBatch]
    after: bytes  # digest of the batch before them; empty if unknown


class EncodedPart(msgspec.Struct, frozen=True, array_like=True):
    """The encoded form of `Copied`."""

    format: int  # of the journal
    segment: int
    first: int  # sequence of the first batch
    after: bytes  # digest of the batch before it; empty if unknown
    moments: list[Moment]
    batches: list[bytes]


class PartName(NamedTuple):
    first: int
    last: int
    min_ms: int
    max_ms: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.first:016d}-{self.last:016d}-{self.min_ms:016d}-{self.max_ms:016d}-{self.checksum}"


class BaseName(NamedTuple):
    sequence: int
    taken_ms: int

    def __str__(self) -> str:
        return f"{self.sequence:016d}-{self.taken_ms:016d}"


def parse_part(name: str) -> PartName | None:
    match = _PART_NAME.fullmatch(name.rpartition("/")[2])
    if match is None:
        return None
    first, last, min_ms, max_ms = map(int, match.groups()[:4])
    return PartName(first, last, min_ms, max_ms, match[5])


def parse_base(name: str) -> BaseName | None:
    match = _BASE_NAME.fullmatch(name.rpartition("/")[2])
    return None if match is None else BaseName(*map(int, match.groups()))


# Contents of files


def seal(data: bytes) -> bytes:
    packed = zstandard.compress(data, limits.BACKUP_ZSTD_LEVEL)
    return b"".join((_MAGIC, xxhash.xxh3_128_digest(packed), packed))


def unseal(name: str, sealed: bytes) -> bytes:
    """The data of a file. Raises DamagedBackupError if its checksum does not match."""
    start = len(_MAGIC) + _DIGEST_BYTES
    packed = sealed[start:]
    if not sealed.startswith(_MAGIC) or xxhash.xxh3_128_digest(packed) != sealed[len(_MAGIC) : start]:
        raise DamagedBackupError(name, "its checksum does not match")
    try:
        return zstandard.decompress(packed)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamagedBackupError(name, str(error)) from None


def encode(value: BackupTimeline | Base | EncodedPart) -> bytes:
    return seal(msgspec.msgpack.encode(value))


def decode(name: str, sealed: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(unseal(name, sealed), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedBackupError(name, str(error)) from None


def block_digest(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()


def batch_digest(batch: JournalBatch) -> bytes:
    head = msgspec.msgpack.encode((batch.sequence, batch.moment))
    return xxhash.xxh3_128_digest(batch.payload, xxhash.xxh3_64_intdigest(head))


def encode_part(copied: Copied) -> tuple[PartName, bytes]:
    """Encode a part. Returns its name and content."""
    batches = copied.batches
    payloads = [bytes(batch.payload) for batch in batches]
    moments = [batch.moment for batch in batches]
    data = encode(EncodedPart(JOURNAL_FORMAT, copied.segment, batches[0].sequence, copied.after, moments, payloads))
    times = [moment.wall_ms for moment in moments]
    checksum = xxhash.xxh3_64_hexdigest(data)
    return PartName(batches[0].sequence, batches[-1].sequence, min(times), max(times), checksum), data


def decode_part(name: str, sealed: bytes) -> Copied:
    part = decode(name, sealed, EncodedPart)
    if part.format != JOURNAL_FORMAT:
        raise DamagedBackupError(name, f"it has journal format {part.format}, which this version does not support")
    if len(part.moments) != len(part.batches):
        raise DamagedBackupError(name, "its batches and their times do not match")
    batches = [
        JournalBatch(name, 0, part.first + index, moment, memoryview(payload))
        for index, (moment, payload) in enumerate(zip(part.moments, part.batches, strict=True))
    ]
    if not batches:
        raise DamagedBackupError(name, "it is empty")
    return Copied(part.segment, batches, part.after)


def check_format(text: bytes, url: str) -> None:
    if text != FORMAT:
        raise BackupError(
            f"{url} has {text[:80].decode(errors='replace').strip()!r}; this version supports format 2. "
            "Use the version of Headwater that wrote it."
        )
