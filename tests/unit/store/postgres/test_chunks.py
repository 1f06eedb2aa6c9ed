"""Chunks that are made from many rows at once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.store.postgres.chunks import JoinedRows, bigint_array, first_merged, pack_rows
from headwater.store.postgres.rows import ByteRow, decode_run, encode_run

STREAM = 7
Record = tuple[bytes, int]  # and its time

times = st.one_of(st.integers(1_000, 1_003), st.integers(0, 2**20), st.integers(0, 2**50))
records = st.lists(st.tuples(st.binary(min_size=1, max_size=40), times), min_size=1, max_size=12)
# Rows, and how many bytes are missing before each.
rows_with_gaps = st.lists(st.tuples(records, st.sampled_from((0, 0, 0, 0, 5))), min_size=1, max_size=20)


def row_of(start: int, some: Sequence[Record]) -> ByteRow:
    ends, data = [], b""
    for record, _ in some:
        data += record
        ends.append(len(data))
    return encode_run(STREAM, start, ends, [at_ms for _, at_ms in some], data)


def rows_of(some: Sequence[tuple[Sequence[Record], int]], start: int = 2**40) -> list[ByteRow]:
    rows = []
    for own, gap in some:
        rows.append(row_of(start + gap, own))
        start = rows[-1].start + rows[-1].size
    return rows


def joined(rows: Sequence[ByteRow]) -> JoinedRows:
    return JoinedRows(
        STREAM,
        array("q", [row.start for row in rows]),
        array("q", [row.size for row in rows]),
        array("q", [row.last_ms for row in rows]),
        array("q", [len(row.outline) for row in rows]),
        b"".join(row.outline for row in rows),
        b"".join(row.data for row in rows),
    )


def records_of(rows: Sequence[ByteRow]) -> list[tuple[int, bytes, int]]:
    """The position, the bytes and the time of each record."""
    found = []
    for run in map(decode_run, rows):
        first = 0
        for index, end in enumerate(run.ends):
            found.append((run.start + first, run.data[first:end], run.time(index)))
            first = end
    return found


@given(rows_with_gaps, st.sampled_from((1, 50, 300, 10**6)))
def test_chunks_have_the_same_records_as_their_rows(some: list[tuple[list[Record], int]], chunk_bytes: int) -> None:
    rows = rows_of(some)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "POSTGRES_CHUNK_BYTES", chunk_bytes)
        chunks = pack_rows(joined(rows))
    assert records_of(chunks) == records_of(rows)
    assert all(chunk.size <= chunk_bytes or chunk in rows for chunk in chunks)
    for chunk in chunks:
        own = [(data, at_ms) for _, data, at_ms in records_of([chunk])]
        assert chunk == row_of(chunk.start, own)  # byte for byte what the records alone are encoded as
    following = [chunk.start for chunk in chunks[1:]]
    for chunk, start in zip(chunks, following, strict=False):
        is_gap = chunk.start + chunk.size != start
        assert is_gap or chunk.size + max(row.size for row in rows) > chunk_bytes  # no more fits


@given(rows_with_gaps, rows_with_gaps)
def test_chunks_are_packed_again_with_the_rows_that_follow(
    some: list[tuple[list[Record], int]], others: list[tuple[list[Record], int]]
) -> None:
    rows = rows_of([*some, *others])
    chunks = joined(pack_rows(joined(rows[: len(some)])))
    assert records_of(pack_rows(chunks.followed_by(joined(rows[len(some) :])))) == records_of(rows)


@given(rows_with_gaps, st.data())
def test_damage_is_noticed_and_named(some: list[tuple[list[Record], int]], choice: st.DataObject) -> None:
    rows = rows_of(some)
    index = choice.draw(st.integers(0, len(rows) - 1))
    row = rows[index]
    column = choice.draw(st.sampled_from(("outline", "data", "size", "last_ms", "stream", "short")))
    if column in ("outline", "data"):
        changed = bytearray(getattr(row, column))
        bit = choice.draw(st.integers(0, 8 * len(changed) - 1))
        changed[bit // 8] ^= 1 << bit % 8
        columns: dict[str, Any] = {column: bytes(changed)}
        rows[index] = row._replace(**columns)
    elif column == "short":
        rows[index] = row._replace(outline=row.outline[:20])
    elif column == "stream":
        ends = decode_run(row).ends
        rows[index] = encode_run(STREAM + 1, row.start, ends, [row.last_ms] * len(ends), row.data)
    else:
        rows[index] = row._replace(**{column: getattr(row, column) + 1})
    with pytest.raises(DamagedDataError, match=f"the bytes of stream 7 at {row.start} are damaged in the database"):
        pack_rows(joined(rows))


def test_numbers_of_postgresql_are_decoded() -> None:
    numbers = [1, -2, 2**40]
    assert list(bigint_array(b"".join(number.to_bytes(8, "big", signed=True) for number in numbers))) == numbers
    assert not bigint_array(b"")


@pytest.mark.parametrize("step", [1, 128, 12_800, 25_000, 70_000])
def test_each_byte_is_written_a_few_times_and_chunks_become_large(step: int) -> None:
    """Chunks of a stream to which the same number of bytes is added again and again."""
    sizes: list[int] = []
    written, most = 0, 0
    steps = min(20_000, 4 * limits.POSTGRES_CHUNK_BYTES // step)
    for _ in range(steps):
        first = first_merged(sizes, step)
        sizes[first:] = [sum(sizes[first:]) + step]
        written += sizes[-1]
        most = max(most, sum(size < limits.POSTGRES_CHUNK_BYTES // 2 for size in sizes))
    times_written = 1
    while step * limits.POSTGRES_MERGE_FACTOR**times_written < limits.POSTGRES_CHUNK_BYTES // 2:
        times_written += 1
    assert written <= (1 + times_written) * step * steps
    assert most <= limits.POSTGRES_MERGE_FACTOR * (times_written + 1) < limits.POSTGRES_MERGED_CHUNKS
    assert max(sizes) <= limits.POSTGRES_CHUNK_BYTES
