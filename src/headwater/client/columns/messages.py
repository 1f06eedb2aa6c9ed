"""The columns of a stream, and how what a read delivers becomes Arrow batches of them.

A row is a message of a JSON stream, and an append of any other stream, so that the rows do not depend on how the bytes
arrive. On servers without record times a row of bytes is a run of them as it arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.columns.records import TIME, Numbers, RecordPart, Records
from headwater.client.columns.texts import text_column
from headwater.errors import MessageError
from headwater.joining import Joined
from headwater.log.content import ContentKind
from headwater.positions import Position

COLUMNS = ("offset", "time", "value")
DEFAULT_COLUMNS = ("offset", "value")


class _Texts:
    """Decodes the messages of a response to a column of JSON texts, as they were written."""

    def decode_array(self, text: bytes, /) -> pa.Array:
        return text_column(text)


class MessageColumns:
    """Makes the batches of one read. It is given what arrives, and the records of the same range as it needs them."""

    def __init__(self, columns: Sequence[str], kind: ContentKind) -> None:
        for name in columns:
            if name not in COLUMNS:
                raise ValueError(f"there is no column {name!r}; the columns of a stream are {', '.join(COLUMNS)}")
        self._is_json = kind is ContentKind.JSON
        self.type: Any = _Texts() if self._is_json else bytes
        types = {"offset": pa.string(), "time": TIME}
        types["value"] = pa.binary() if kind is ContentKind.BINARY else pa.string()
        self.schema = pa.schema([(name, types[name]) for name in columns])
        self.has_records = True  # whether the server has record times, as far as it is known
        self._records = Records()
        self._needs_records = not self._is_json or bool({"offset", "time"} & set(columns))
        self.is_started = False  # the first records were added
        self._at = 0  # the byte of the range at which the next row starts
        self._is_complete = False  # all records were added
        self._held = Joined()  # bytes of appends of which the end has not arrived

    def add(self, part: RecordPart | None) -> None:
        """Add the next records of the range. None: there are no more, or the server has none at all."""
        if part is None or not len(part.sizes):
            self.has_records, self._is_complete = self.is_started, True
            return
        self.is_started = True
        self._records.forget(self._at)
        self._records.add(part)

    def needs_records(self, items: Any) -> bool:
        """Whether the rows of these items need records that were not added yet."""
        if not (self._needs_records and self.has_records and len(items)) or self._is_complete:
            return False
        return self._records.reached < self._at + self._size(items)

    def _size(self, items: Any) -> int:
        if self._is_json:
            return len(items) + int(pc.sum(pc.binary_length(items)).as_py())
        return self._held.size + sum(map(len, items))

    def batch(self, items: Any, before: Position) -> pa.RecordBatch | None:
        """The rows of items that arrived after a position; None if there are none."""
        if not len(items):
            return None
        values, starts = self._messages(items) if self._is_json else self._appends(items)
        if not len(values):
            return None
        columns = {"value": values}
        for name in {"offset", "time"} & set(self.schema.names):
            columns[name] = self._of_records(name, starts, len(values), before)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _of_records(self, name: str, starts: Numbers, count: int, before: Position) -> pa.Array:
        if self.has_records:
            return self._records.offsets(starts) if name == "offset" else self._records.times(starts)
        return pa.repeat(pa.scalar(before.offset, pa.string()), count) if name == "offset" else pa.nulls(count, TIME)

    def _messages(self, items: pa.Array) -> tuple[pa.Array, Numbers]:
        if not (self._needs_records and self.has_records):
            return items, np.empty(0, np.int64)
        ends = self._at + np.cumsum(pc.binary_length(items).to_numpy().astype(np.int64) + 1)  # with the comma after it
        starts = np.concatenate([[self._at], ends[:-1]])
        self._at = int(ends[-1])
        return items, starts

    def _appends(self, runs: list[bytes]) -> tuple[pa.Array, Numbers]:
        """The appends that are complete. Their bytes are cut at the ends of records."""
        if not self.has_records:
            return self._typed(pa.array(runs, pa.binary())), np.empty(0, np.int64)
        for run in runs:
            self._held.add(run)
        data = self._held.take()
        ends = self._records.ends(self._at, self._at + len(data))
        bounds = np.concatenate([[self._at], ends]) - self._at
        self._held.add(data[int(bounds[-1]) :])
        offsets = pa.py_buffer(bounds.astype(np.int32))
        values = pa.Array.from_buffers(pa.binary(), len(ends), [None, offsets, pa.py_buffer(data)])
        starts = bounds[:-1] + self._at
        self._at += int(bounds[-1])
        return self._typed(values), starts

    def _typed(self, values: pa.Array) -> pa.Array:
        if "value" not in self.schema.names or self.schema.field("value").type == pa.binary():
            return values
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            raise MessageError("an append is not UTF-8 by itself; read the stream with read(type=bytes)") from None
