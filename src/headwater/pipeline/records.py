"""Splits runs of bytes at the ends of appends, so that a replay can repeat the same appends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from headwater.client import Client, RecordTimes
from headwater.errors import MissingExtensionError
from headwater.log.content import ContentKind, kind_of
from headwater.positions import byte_position

APPEND_END = "append_end"


class RecordCutter:
    """Adds the column `append_end` to rows, and splits rows of byte streams. Each task has one."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._at: tuple[str, str] | None = None  # the stream and where its range begins
        self._ends: _Ends | None = None

    def cut(self, rows: pa.Table) -> pa.Table:
        kinds = rows["content_type"].unique().to_pylist()
        if all(kind_of(kind) is ContentKind.JSON for kind in kinds):
            return rows.append_column(APPEND_END, pa.nulls(rows.num_rows, pa.int64()))
        pieces = [piece for row in rows.to_pylist() for piece in self._pieces(row)]
        return pa.Table.from_pylist(pieces, rows.schema.append(pa.field(APPEND_END, pa.int64())))

    def _pieces(self, row: dict[str, object]) -> Iterator[dict[str, object]]:
        begin, run = row["order"], row["value"]
        is_json = kind_of(str(row["content_type"])) is ContentKind.JSON
        if is_json or not isinstance(begin, int) or not isinstance(run, bytes) or not isinstance(row["position"], int):
            yield {**row, APPEND_END: None}
            return
        place = (str(row["stream"]), str(row["offset"]))
        if place != self._at or self._ends is None:
            self._at, self._ends = place, _Ends(self._client.stream(place[0]).record_times(offset=place[1]))
        done = 0
        while done < len(run):
            record = self._ends.after(begin + done)
            size = len(run) - done if record is None else min(record.end - begin - done, len(run) - done)
            piece = {"value": run[done : done + size], "order": begin + done, "position": row["position"] + done}
            known = {APPEND_END: None} if record is None else {APPEND_END: record.end, "timestamp": record.time}
            yield {**row, **piece, **known}
            done += size


class _Record(msgspec.Struct, frozen=True):
    end: int
    time: datetime


class _Ends:
    """The ends of the appends of a range, fetched in pages. Servers without record times have none."""

    def __init__(self, pages: Iterator[RecordTimes]) -> None:
        self._ends = _each(pages)
        self._next: _Record | None = None
        self._has_some = False

    def after(self, byte: int) -> _Record | None:
        """The append that contains a byte. The bytes must increase from call to call."""
        while self._next is None or self._next.end <= byte:
            try:
                self._next = next(self._ends, None)
            except MissingExtensionError:
                if self._has_some:  # a server that has record times has to tell all of them
                    raise
                return None
            if self._next is None:
                return None
            self._has_some = True
        return self._next


def _each(pages: Iterator[RecordTimes]) -> Iterator[_Record]:
    for page in pages:
        first = byte_position(page.offset)
        if first is not None:
            for end, time_ms in zip(page.ends, page.times_ms, strict=True):
                yield _Record(first + end, datetime.fromtimestamp(time_ms / 1000, UTC))
