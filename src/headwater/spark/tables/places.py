"""Positions in tables, as the checkpoint of a query stores them, and ranges between them.

A place is the SeqNo of the row before it and a hash of that row. The hash shows whether the table is still the same: a
table that was deleted and created again has the same SeqNos but other rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.rows import Row, format_row


class RowPlace(msgspec.Struct, frozen=True):
    seqno: int = 0
    row: str | None = None  # None: not known, or there is no such row

    def __str__(self) -> str:
        return f"row {self.seqno}" if self.seqno else "the beginning"


BEGINNING = RowPlace()


def place_after(row: Row) -> RowPlace:
    return RowPlace(row.seqno, hashlib.sha256(format_row(row)).hexdigest()[:16])


def to_json(place: RowPlace) -> dict[str, Any]:
    """The text for the checkpoint. The order of the keys is fixed, because Spark compares it as text."""
    return {"seqno": place.seqno} if place.row is None else {"row": place.row, "seqno": place.seqno}


def from_json(offset: Mapping[str, Any]) -> RowPlace:
    return msgspec.convert(offset, RowPlace)


class RowRange(msgspec.Struct, frozen=True):
    """The range of one task: the rows with SeqNos above `since`, up to `until`."""

    table_type: TableType
    gapless: bool  # the server promises that no SeqNo is left out
    since: int
    until: int
    active: bool = False  # instead of a range: the active view at the time of the task
