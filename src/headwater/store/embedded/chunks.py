"""Chunks: folded records of one stream as a row of the index, with a checksum over all of it.

    start      position of the first record in the stream
    ends       end of each record, relative to the start              4 bytes each
    at_ms      time of the first record
    times      time of each record, relative to the first             4 or 8 bytes each, empty if all are equal
    checksum   XXH3 of ends, times and data

Chunks of format 1 have no times (`at_ms` is missing) and a CRC-32 of the data alone. The row of the stream in `untimed`
has one time for all their records.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import xxhash

from headwater import limits
from headwater.errors import DamagedDataError


class Chunk(NamedTuple):
    """A run of whole records (see `pieces.Run`)."""

    start: int
    ends: array[int]
    at_ms: int
    times: array[int] | None
    data: bytes

    def slice(self, first: int, stop: int) -> bytes:
        return self.data if stop - first == len(self.data) else self.data[first:stop]

    def time(self, index: int) -> int:
        return self.at_ms if self.times is None else self.at_ms + self.times[index]


class ChunkRow(NamedTuple):
    """The columns of a chunk, in the order of the table."""

    stream_id: int
    start: int
    size: int
    checksum: int
    ends: bytes
    data: bytes
    at_ms: int | None
    times: bytes | None


COLUMNS = ", ".join(ChunkRow._fields)


def decode_chunk(row: ChunkRow, untimed_ms: int) -> Chunk:
    """Verify and decode a row. `untimed_ms` is the time of records without a time."""
    if checksum(row) != row.checksum or len(row.data) != row.size:
        raise DamagedDataError(f"the chunk of stream {row.stream_id} at {row.start} is damaged")
    return outline(row, untimed_ms)


def outline(row: ChunkRow, untimed_ms: int) -> Chunk:
    """Decode a row that was read without its data, and is therefore not verified."""
    ends = array("I", row.ends)
    if row.at_ms is None or not row.times:
        return Chunk(row.start, ends, untimed_ms if row.at_ms is None else row.at_ms, None, row.data)
    wide = len(row.times) > ends.itemsize * len(ends)
    return Chunk(row.start, ends, row.at_ms, array("Q" if wide else "I", row.times), row.data)


def checksum(row: ChunkRow) -> int:
    if row.at_ms is None:
        return zlib.crc32(row.data)
    return checksum_of(row.ends, row.times or b"", row.data)


def checksum_of(*parts: bytes) -> int:
    """XXH3 of several parts. The checksum and length of a part are the seed of the next."""
    found = 0
    for part in parts:
        found = xxhash.xxh3_64_intdigest(part, found ^ len(part))
    return found - (1 << 63)  # SQLite's integers are signed


def cut(stream_id: int, start: int, ends: Sequence[int], times: Sequence[int], data: bytes) -> Iterator[ChunkRow]:
    """Split records that begin at `start` into rows of whole records, about CHUNK_BYTES each."""
    first = index = 0
    while index < len(ends):
        last = max(index, bisect_right(ends, first + limits.CHUNK_BYTES, lo=index) - 1)
        stop = ends[last]
        own = array("I", [end - first for end in ends[index : last + 1]])
        row = ChunkRow(
            stream_id,
            start + first,
            stop - first,
            0,
            own.tobytes(),
            data[first:stop],
            times[index],
            _encode_times(times[index : last + 1]),
        )
        yield row._replace(checksum=checksum(row))
        first, index = stop, last + 1


def _encode_times(times: Sequence[int]) -> bytes:
    first, last = times[0], times[-1]
    if first == last:
        return b""
    return array("I" if last - first < 1 << 32 else "Q", [time - first for time in times]).tobytes()
