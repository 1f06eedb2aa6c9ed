"""Leaves out events that a later event of the same entity replaces, before they leave the task that reads them.

Most events of a long range are replaced in it, and each that goes on costs the JVM, a shuffle and a merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater import limits
from headwater.errors import SchemaError

_NEEDED = ("type", "key", "control")
_ROWS = 65_536  # of a batch for the JVM


def check_columns(names: Sequence[str]) -> None:
    """Refuse a schema without the columns that tell which event replaces which."""
    if missing := [name for name in _NEEDED if name not in names]:
        raise SchemaError(f"latestOnly needs the columns {', '.join(_NEEDED)}; the schema lacks {', '.join(missing)}")


def latest(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The events of a range without those that are replaced, as far as they fit into memory together.

    Its first event, control events and bad events stay.
    """
    held: list[pa.RecordBatch] = []
    size, is_first = 0, True
    for batch in batches:
        if is_first and batch.num_rows:
            yield batch.slice(0, 1)
            batch, is_first = batch.slice(1), False
        held.append(batch)
        size += batch.nbytes
        if size > limits.SPARK_LATEST_BYTES:
            kept = _last_of_each(held)
            if kept.nbytes > limits.SPARK_LATEST_BYTES // 2:
                yield from kept.to_batches(_ROWS)
                kept = kept.slice(0, 0)
            held, size = kept.to_batches(), kept.nbytes
    if held:
        yield from _last_of_each(held).to_batches(_ROWS)


def _last_of_each(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    events = pa.Table.from_batches(batches)
    is_plain = pc.is_null(events.column("control"))
    if "bad" in events.column_names:
        is_plain = pc.and_(is_plain, pc.is_null(events.column("bad")))
    plain = np.flatnonzero(is_plain.combine_chunks().to_numpy(zero_copy_only=False))
    kinds, keys = _numbered(events.column("type")), _numbered(events.column("key"))
    ids = kinds[0][plain] * keys[1] + keys[0][plain]
    if kinds[1] * keys[1] > 4 * max(len(ids), 1024):  # many types, and hardly a key in more than one of them
        distinct, ids = np.unique(ids, return_inverse=True)
        last = np.empty(len(distinct), np.int64)
    else:
        last = np.full(kinds[1] * keys[1], -1)
    last[ids] = plain  # of several events with one number, numpy keeps the last
    kept = np.ones(events.num_rows, np.bool_)
    kept[plain] = last[ids] == plain
    return events.filter(pa.array(kept))


def _numbered(column: pa.ChunkedArray) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """A number for each value, and how many numbers there are."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
