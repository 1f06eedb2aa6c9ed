"""The rows of streams and their bytes, and their checksums.

The state of a stream is a checksum and msgpack. A row of bytes (of the tables `fresh` and `chunks`) has whole
records of one stream:

    stream_id, start    where the records begin in the stream
    size                how many bytes they have
    last_ms             the time of the last record, which is indexed
    outline             checksum of all columns but the data, checksum of the data, time of the first record, number of
                        records; the end of each (4 bytes, only if there are several); its time, relative to the first
                        (4 or 8 bytes, only if they differ)
    data                the bytes
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.log.state import StreamState, without_producers

OUTLINE = struct.Struct("<QQqI")
_TAIL = struct.Struct("<QqI")  # of the outline, after its first checksum
COLUMNS_SUMMED = struct.Struct("<qqqq")  # stream_id, start, size, last_ms
_SUM = struct.Struct("<Q")
digest = xxhash.xxh3_64_intdigest
_states = msgspec.msgpack.Decoder(StreamState)
_encode = msgspec.msgpack.Encoder().encode


def encode_state(state: StreamState) -> bytes:
    """The column of a state, without its producers, which have rows of their own."""
    if state.producers or state.expired_producers:
        state = without_producers(state)
    data = _encode(state)
    return _SUM.pack(digest(data)) + data


def decode_state(stream_id: int, column: bytes) -> StreamState:
    if len(column) < _SUM.size or _SUM.unpack_from(column)[0] != digest(column[_SUM.size :]):
        raise DamagedDataError(f"the row of stream {stream_id} is damaged in the database")
    state = _states.decode(column[_SUM.size :])
    if state.id != stream_id:
        raise DamagedDataError(f"the row of stream {stream_id} has the state of stream {state.id}")
    return state


class StoredRun(NamedTuple):
    """Consecutive whole records of a stream (see `pieces.Run`)."""

    start: int
    ends: Sequence[int]
    at_ms: int
    times: array[int] | None
    data: bytes

    def slice(self, first: int, stop: int) -> bytes:
        return self.data if stop - first == len(self.data) else self.data[first:stop]

    def time(self, index: int) -> int:
        return self.at_ms if self.times is None else self.at_ms + self.times[index]


class ByteRow(NamedTuple):
    """The columns of `fresh` and `chunks`."""

    stream_id: int
    start: int
    size: int
    last_ms: int
    outline: bytes
    data: bytes


COLUMNS = "stream_id, start, size, last_ms, outline, data"
OUTLINE_COLUMNS = "stream_id, start, size, last_ms, outline, ''::bytea"


def encode_run(stream_id: int, start: int, ends: Sequence[int], times: Sequence[int], data: bytes) -> ByteRow:
    """The row of records. `ends` are relative to `start`."""
    first_ms, count = times[0], len(ends)
    rest = b""
    if count > 1:
        rest = array("I", ends).tobytes()
        low, high = min(times), max(times)
        if low != high:
            first_ms = low
            rest += array("I" if high - low < 1 << 32 else "Q", [one - low for one in times]).tobytes()
    return encode_row(stream_id, start, times[-1], first_ms, count, rest, data)


def encode_row(
    stream_id: int, start: int, last_ms: int, first_ms: int, count: int, rest: bytes, data: bytes
) -> ByteRow:
    """A row with its checksums. `rest` is what follows the number of records in the outline."""
    tail = _TAIL.pack(digest(data), first_ms, count) + rest
    checksum = digest(COLUMNS_SUMMED.pack(stream_id, start, len(data), last_ms) + tail)
    return ByteRow(stream_id, start, len(data), last_ms, _SUM.pack(checksum) + tail, data)


def decode_run(row: ByteRow) -> StoredRun:
    """Verify and decode a row."""
    run = outline_of(row)
    if len(row.data) != row.size or OUTLINE.unpack_from(row.outline)[1] != digest(row.data):
        raise damaged(row.stream_id, row.start)
    return run


def outline_of(row: ByteRow) -> StoredRun:
    """Verify and decode a row, but for its data."""
    outline = row.outline
    if len(outline) < OUTLINE.size:
        raise damaged(row.stream_id, row.start)
    checksum, _, at_ms, count = OUTLINE.unpack_from(outline)
    if checksum != digest(COLUMNS_SUMMED.pack(row.stream_id, row.start, row.size, row.last_ms) + outline[8:]):
        raise damaged(row.stream_id, row.start)
    if count == 1:
        return StoredRun(row.start, (row.size,), at_ms, None, row.data)
    return StoredRun(row.start, ends_of(outline, count), at_ms, times_of(outline, count), row.data)


def ends_of(outline: bytes, count: int) -> array[int]:
    """The ends of several records."""
    return array("I", outline[OUTLINE.size : OUTLINE.size + 4 * count])


def times_of(outline: bytes, count: int) -> array[int] | None:
    """The times of several records, relative to the first. None: all are the same."""
    times = outline[OUTLINE.size + 4 * count :]
    if not times:
        return None
    return array("I" if len(times) == 4 * count else "Q", times)


def cut(stream_id: int, start: int, ends: Sequence[int], times: Sequence[int], data: bytes) -> Iterator[ByteRow]:
    """Rows of whole records, about POSTGRES_CHUNK_BYTES each."""
    if len(data) <= limits.POSTGRES_CHUNK_BYTES:
        yield encode_run(stream_id, start, ends, times, data)
        return
    first = index = 0
    while index < len(ends):
        last = max(index, bisect_right(ends, first + limits.POSTGRES_CHUNK_BYTES, lo=index) - 1)
        stop = ends[last]
        own = [end - first for end in ends[index : last + 1]]
        yield encode_run(stream_id, start + first, own, times[index : last + 1], data[first:stop])
        first, index = stop, last + 1


def damaged(stream_id: int, start: int) -> DamagedDataError:
    return DamagedDataError(f"the bytes of stream {stream_id} at {start} are damaged in the database")
