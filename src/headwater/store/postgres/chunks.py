"""Chunks made from many rows at once. PostgreSQL joins the columns of the rows of a stream, so they are verified and
joined without an object for each row or record."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from operator import add, ne
from typing import NamedTuple

from headwater import limits
from headwater.store.postgres.rows import (
    COLUMNS_SUMMED,
    OUTLINE,
    ByteRow,
    damaged,
    digest,
    encode_row,
    times_of,
)

_ENDS = OUTLINE.size  # where the ends of several records are in an outline
_NUMBER = {"I": struct.Struct("<I").pack, "Q": struct.Struct("<Q").pack}


class JoinedRows(NamedTuple):
    """Rows of a stream, in the order of their positions: an array or a text for each column."""

    stream_id: int
    starts: array[int]
    sizes: array[int]
    times: array[int]  # of the last record of each row
    outline_sizes: array[int]
    outlines: bytes
    data: bytes

    def followed_by(self, others: JoinedRows) -> JoinedRows:
        return JoinedRows(self.stream_id, *map(add, self[1:], others[1:]))


def bigint_array(data: bytes) -> array[int]:
    """The numbers that PostgreSQL has joined with string_agg(int8send(…), '')."""
    numbers = array("q", data)
    numbers.byteswap()
    return numbers


def first_merged(sizes: Sequence[int], size: int) -> int:
    """From which of the last chunks of a stream on, given their sizes, they are merged with new bytes. A small
    chunk is written again only into one that is several times as large, or large enough, so each byte is written a few
    times, however small the steps are in which they come. `size` is that of the new bytes."""
    enough = limits.POSTGRES_CHUNK_BYTES // 2
    first, largest = len(sizes), 0
    for index in reversed(range(len(sizes))):
        if sizes[index] >= enough:
            break
        size += sizes[index]
        largest = max(largest, sizes[index])
        if size >= min(enough, limits.POSTGRES_MERGE_FACTOR * largest):
            first = index
    return first


def pack_rows(rows: JoinedRows) -> list[ByteRow]:
    """Verify rows, and make chunks of them: whole rows, about POSTGRES_CHUNK_BYTES. There is a gap where bytes were
    removed that nobody reads."""
    verified = _verify(rows)
    ends = array("q", map(add, rows.starts, rows.sizes))
    gaps = [index for index, is_gap in enumerate(map(ne, ends, rows.starts[1:]), 1) if is_gap]
    return [
        verified.chunk(first, stop)
        for low, high in pairwise([0, *gaps, len(ends)])
        for first, stop in _portions(rows.starts, ends, low, high)
    ]


def _portions(starts: Sequence[int], ends: Sequence[int], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Rows that follow each other, in portions that fit into a chunk; a row that does not fit is a portion."""
    while low < high:
        stop = max(low + 1, bisect_right(ends, starts[low] + limits.POSTGRES_CHUNK_BYTES, lo=low, hi=high))
        yield low, stop
        low = stop


def _verify(rows: JoinedRows) -> _VerifiedRows:
    outlines = _slices(rows.outlines, rows.outline_sizes)
    if min(rows.outline_sizes) < OUTLINE.size:
        raise damaged(rows.stream_id, rows.starts[[len(one) < OUTLINE.size for one in outlines].index(True)])
    checksums, data_checksums, first_times, counts = zip(*map(OUTLINE.unpack_from, outlines), strict=True)
    columns = map(COLUMNS_SUMMED.pack, repeat(rows.stream_id), rows.starts, rows.sizes, rows.times)
    sums = map(digest, map(add, columns, [one[8:] for one in outlines]))
    data_sums = map(digest, _slices(rows.data, rows.sizes))
    for actual, expected in ((sums, checksums), (data_sums, data_checksums)):
        for index, is_damaged in enumerate(map(ne, actual, expected)):
            if is_damaged:
                raise damaged(rows.stream_id, rows.starts[index])
    return _VerifiedRows(rows, outlines, first_times, counts, [*accumulate(rows.sizes, initial=0)])


def _slices(data: bytes, sizes: Iterable[int]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]


class _VerifiedRows(NamedTuple):
    """Rows whose checksums were compared."""

    rows: JoinedRows
    outlines: list[bytes]
    first_times: tuple[int, ...]  # to which those of the records are relative
    counts: tuple[int, ...]  # of records
    offsets: list[int]  # of the bytes of each row, and their end

    def chunk(self, first: int, stop: int) -> ByteRow:
        """One row of some that follow each other."""
        rows = self.rows
        start, data = rows.starts[first], rows.data[self.offsets[first] : self.offsets[stop]]
        if stop - first == 1:
            return ByteRow(rows.stream_id, start, len(data), rows.times[first], self.outlines[first], data)
        counts, firsts = self.counts[first:stop], self.first_times[first:stop]
        count, low = sum(counts), min(firsts)
        if count == len(counts):
            ends = array("I", accumulate(rows.sizes[first:stop])).tobytes()
        else:
            ends = self._ends(first, stop)
        times = self._times(first, stop, low)
        return encode_row(rows.stream_id, start, rows.times[stop - 1], low, count, ends + times, data)

    def _ends(self, first: int, stop: int) -> bytes:
        """The end of each record of some rows, relative to the first row."""
        counts, base, pack = self.counts[first:stop], self.offsets[first], _NUMBER["I"]
        each = zip(self.outlines[first:stop], counts, self.rows.sizes[first:stop], strict=True)
        own = [outline[_ENDS : _ENDS + 4 * count] if count > 1 else pack(size) for outline, count, size in each]
        offsets = zip(self.offsets[first:stop], counts, strict=True)
        return _sums(own, [pack(offset - base) * count for offset, count in offsets])

    def _times(self, first: int, stop: int, low: int) -> bytes:
        """The time of each record of some rows, relative to the earliest; nothing if all are the same."""
        counts, firsts = self.counts[first:stop], self.first_times[first:stop]
        own: list[array[int] | None] = [None] * len(counts)
        if sum(self.rows.outline_sizes[first:stop]) > _ENDS * len(counts) + 4 * (sum(counts) - counts.count(1)):
            own = list(map(times_of, self.outlines[first:stop], counts))
        high = max(firsts)
        if any(own):
            high = max(one if times is None else one + max(times) for one, times in zip(firsts, own, strict=True))
        if low == high:
            return b""
        code = "I" if high - low < 1 << 32 else "Q"
        pack = _NUMBER[code]
        relative = [pack(one - low) * count for one, count in zip(firsts, counts, strict=True)]
        if not any(own):
            return b"".join(relative)
        each = zip(own, counts, strict=True)
        return _sums(
            (pack(0) * count if times is None else array(code, times).tobytes() for times, count in each), relative
        )


def _sums(some: Iterable[bytes], others: Iterable[bytes]) -> bytes:
    """The sums of many pairs of numbers. They are added as two large numbers: no sum needs more room than its parts, so
    nothing is carried from one to the next."""
    first, second = b"".join(some), b"".join(others)
    return (int.from_bytes(first, "little") + int.from_bytes(second, "little")).to_bytes(len(first), "little")
