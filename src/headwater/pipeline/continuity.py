"""Whether the rows of an archive are all data of a stream: no row is missing, and no two rows differ at one position.

If the offsets of a server count stored bytes, as Headwater's do, each row ends where the next one begins. Rows of other
servers are numbered within a range, and the last row of a range has the position at which the next range begins, in the
column `continues_at`. It is empty in the other rows of such a server, and null in rows of a server that counts bytes.

A compacted stream that was archived late begins with rows of a snapshot, which stand for the data before the position
after them. That data is missing too.

Rows that are missing at the end cannot be told from rows that are not archived yet, unless the stream is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from headwater.positions import BEGINNING, byte_position
from headwater.spark.positions import StreamPlace, parse_place

CONTINUES_AT = "continues_at"

Row = Mapping[str, Any]


class Faults(msgspec.Struct):
    """What is wrong with the rows of a stream, in words. Gaps can be accepted, a conflict cannot."""

    gaps: list[str] = []
    conflict: str | None = None


class _Walk(Protocol):
    """Follows the rows of a stream in order."""

    def fault(self, row: Row) -> str | None:
        """The data that is missing before a row; None if none is. Raises _ConflictError."""

    def fault_at_end(self, tail: str) -> str | None:
        """The data that is missing before the end of a closed stream."""


class _ConflictError(Exception):
    """Two rows have different data at one position."""


def faults_of(rows: Iterable[Row], *, is_json: bool, tail: str | None = None) -> Faults:
    """Check the rows of a stream, which are in order. `tail` is the end of a closed stream."""
    faults = Faults()
    walk: _Walk | None = None
    try:
        for row in rows:
            if walk is None:
                walk = _ByBytes(is_json) if _counts_bytes(row) else _ByRanges(is_json)
            if gap := walk.fault(row):
                faults.gaps.append(gap)
    except _ConflictError as error:
        faults.conflict = str(error)
    else:
        if tail is not None and (gap := (walk or _ByBytes(is_json)).fault_at_end(tail)):
            faults.gaps.append(gap)
    return faults


def after_snapshot(row: Row) -> int | None:
    """The byte at which the stream continues after the snapshot that a row is of; None for any other row."""
    order = row["order"]
    following = None if order is None else byte_position(row["offset"])
    return following if following is not None and following == order + 1 else None


def _counts_bytes(row: Row) -> bool:
    return row["order"] is not None and row.get(CONTINUES_AT) is None


class _ByBytes:
    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._begin = -1  # of the last row
        self._reached = 0
        self._held = b""  # the data from the begin of the last row to where the rows have reached

    def fault(self, row: Row) -> str | None:
        if not _counts_bytes(row):
            raise _ConflictError(f"rows from two servers, at {row['offset']}")
        if (following := after_snapshot(row)) is not None:
            return self._stand_in(following)
        begin: int = row["order"]
        data: bytes = row["value"] + b"," if self._is_json else row["value"]
        gap = self._gap(begin) if begin > self._reached else None
        known = b"" if gap else self._known(begin)
        same = min(len(known), len(data))
        if known[:same] != data[:same] or (self._is_json and known and len(known) != len(data)):
            raise _ConflictError(f"two rows with different data at byte {begin}")
        self._begin, self._held = begin, known + data[same:]
        self._reached = begin + len(self._held)
        return gap

    def _stand_in(self, following: int) -> str | None:
        """Rows of a snapshot take the place of the data before a position, if that is not there."""
        if following <= self._reached:
            return None
        gap = f"{self._gap(following)}, of which it has only the state after them"
        self._begin = self._reached = following
        self._held = b""
        return gap

    def fault_at_end(self, tail: str) -> str | None:
        end = byte_position(tail)
        return self._gap(end) if end is not None and end > self._reached else None

    def _known(self, begin: int) -> bytes:
        """The data that earlier rows have from a position on."""
        if self._is_json and self._begin < begin < self._reached:
            raise _ConflictError(f"a row inside another one, at byte {begin}")
        return self._held[begin - self._begin :] if begin < self._reached else b""

    def _gap(self, end: int) -> str:
        return f"bytes {self._reached} to {end}" if self._reached else f"its first {end} bytes"


class _ByRanges:
    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._last: Row | None = None
        self._next = StreamPlace(BEGINNING)

    def fault(self, row: Row) -> str | None:
        place, last = StreamPlace(row["offset"], row["position"]), self._last
        if last is not None and place == StreamPlace(last["offset"], last["position"]):
            if any(row[name] != last[name] for name in ("value", CONTINUES_AT)):
                raise _ConflictError(f"two rows with different data at {place}")
            return None
        gap = None if place.is_at(self._next) else f"the data between {self._next} and {place}"
        self._last = row
        end = row.get(CONTINUES_AT)
        self._next = parse_place(end) if end else place.after(1 if self._is_json else len(row["value"]))
        return gap

    def fault_at_end(self, tail: str) -> str | None:
        return None if self._next.is_at(StreamPlace(tail)) else f"the data between {self._next} and {tail}"
