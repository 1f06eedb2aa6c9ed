"""Chunks: folded records of one stream as a row of the index.

stream_id       the stream
start           position of the first record in the stream
size            length of the data
at_ms           time of the first record
ends            end of each record, relative to the start            4 bytes each
times           time of each record, relative to the first           4 or 8 bytes each, empty if all are equal
data_checksum   of the data
checksum        of all other columns, so that a row can be verified without its data
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.store.embedded.row_checksums import check_row, data_checksum, row_checksum


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
    at_ms: int
    ends: bytes
    times: bytes
    data_checksum: int
    checksum: int
    data: bytes


COLUMNS = ", ".join(ChunkRow._fields)


def decode_chunk(row: ChunkRow, read_data: Callable[[], bytes] | None = None) -> Chunk:
    """Verify and decode a row. If its data was not read with it, `read_data` reads it."""
    chunk = outline(row)
    data = row.data if read_data is None else read_data()
    if not isinstance(data, bytes) or len(data) != row.size or data_checksum(data) != row.data_checksum:
        raise DamagedDataError(f"{_name(row)} is damaged in the index")
    return chunk._replace(data=data)


def outline(row: ChunkRow) -> Chunk:
    """Verify and decode a row, except its data."""
    check_row(_name(row), row.checksum, "chunks", *row[:7])
    ends = array("I", row.ends)
    if not row.times:
        return Chunk(row.start, ends, row.at_ms, None, row.data)
    wide = len(row.times) > ends.itemsize * len(ends)
    return Chunk(row.start, ends, row.at_ms, array("Q" if wide else "I", row.times), row.data)


def _name(row: ChunkRow) -> str:
    return f"the chunk of stream {row.stream_id} at {row.start}"


def cut(stream_id: int, start: int, ends: Sequence[int], times: Sequence[int], data: bytes) -> Iterator[ChunkRow]:
    """Split records that begin at `start` into rows of whole records, about CHUNK_BYTES each."""
    first = index = 0
    while index < len(ends):
        last = max(index, bisect_right(ends, first + limits.CHUNK_BYTES, lo=index) - 1)
        stop = ends[last]
        own = array("I", [end - first for end in ends[index : last + 1]])
        part = data[first:stop]
        head = (
            stream_id,
            start + first,
            stop - first,
            times[index],
            own.tobytes(),
            _encode_times(times[index : last + 1]),
            data_checksum(part),
        )
        yield ChunkRow(*head, row_checksum("chunks", *head), part)
        first, index = stop, last + 1


def _encode_times(times: Sequence[int]) -> bytes:
    first, last = times[0], times[-1]
    if first == last:
        return b""
    return array("I" if last - first < 1 << 32 else "Q", [time - first for time in times]).tobytes()
