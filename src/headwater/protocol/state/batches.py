"""Batches of converted messages or rows, small enough for one append."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec

from headwater.limits import VIEW_BATCH_BYTES, VIEW_BATCH_RECORDS, VIEW_REASON_LENGTH_MAX


class ConvertedBatch(msgspec.Struct):
    """Converted messages. `taken` counts the source messages of this batch and all batches before it."""

    taken: int
    records: list[bytes] = []
    size_bytes: int = 0
    skipped: int = 0  # invalid messages
    reason: str | None = None  # why the last one was skipped
    reset: bool = False  # the last message is a `reset`: all state before it is void
    last_seqno: int = 0  # of the last row, if the source is a table
    last: bool = False  # there is no further batch

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
    """Converts stored data, after the first `skip` messages, to batches. Only the last batch has `last` set."""

    def convert(self, data: bytes, skip: int) -> Iterator[ConvertedBatch]: ...
