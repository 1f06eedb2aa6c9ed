"""Batches of converted messages or rows, small enough for one append."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from headwater.limits import VIEW_BATCH_BYTES, VIEW_BATCH_RECORDS, VIEW_REASON_LENGTH_MAX


class Batch(msgspec.Struct):
    """Converted messages. `taken` counts the messages of the data that they, and all before them, came from."""

    taken: int
    records: list[bytes] = []
    size_bytes: int = 0
    skipped: int = 0  # invalid messages
    reason: str | None = None  # why the last one was skipped
    reset: bool = False  # the last message says that everything before it no longer holds
    last_seqno: int = 0  # of the last row, where the messages are rows
    last: bool = False  # nothing is left of the data

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= VIEW_BATCH_BYTES or len(self.records) >= VIEW_BATCH_RECORDS

    def add(self, record: bytes) -> None:
        self.records.append(record)
        self.size_bytes += len(record)

    def skip(self, reason: str) -> None:
        self.skipped += 1
        self.reason = reason[:VIEW_REASON_LENGTH_MAX]


class Converter(Protocol):
    """Converts stored data of whole messages, but for the first ones. The last batch, and no other, is `last`."""

    def convert(self, data: bytes, skip: int) -> Iterator[Batch]: ...
