"""Rows: the changes of a table, stored as the bytes that are served.

A row is `SeqNo TAB Timestamp TAB change LF`, where a change is `action TAB key TAB record`. A read is a slice of the
stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache

from headwater.errors import SeqNoRegressionError
from headwater.log.content import ContentKind


def stored(kind: ContentKind, body: bytes, last_seqno: int, at_ms: int) -> tuple[bytes, int]:
    """The bytes to store for an append to a table whose last row is `last_seqno`, and the SeqNo of their last row.

    For a mirror, the body consists of whole rows; for any other table, of one change per line. The caller has checked
    the syntax.
    """
    if kind is ContentKind.MIRROR:
        return body, check_order(body, last_seqno)
    first_seqno, timestamp = last_seqno + 1, format_timestamp(at_ms)
    body = body.removesuffix(b"\n")
    if b"\n" not in body:
        return b"%d\t%b\t%b\n" % (first_seqno, timestamp.encode(), body), first_seqno
    return numbered(body, first_seqno, timestamp)


def numbered(changes: bytes, first_seqno: int, timestamp: str) -> tuple[bytes, int]:
    """Put a SeqNo and the timestamp before each line, without creating an object per line. Returns the last SeqNo."""
    before = b"%d\t" + timestamp.encode() + b"\t"
    text = changes.replace(b"%", b"%%") if b"%" in changes else changes
    rows = text.replace(b"\n", b"\n" + before)
    last_seqno = first_seqno + (len(rows) - len(text)) // len(before)  # faster than counting lines
    return b"%b%b\n" % (before, rows) % tuple(range(first_seqno, last_seqno + 1)), last_seqno


def format_rows(changes: Sequence[bytes], first_seqno: int, timestamp: str) -> bytes:
    """Format changes as rows, with SeqNos from `first_seqno` on."""
    return numbered(b"\n".join(changes), first_seqno, timestamp)[0] if changes else b""


@lru_cache(maxsize=16)  # many rows have the same millisecond
def format_timestamp(ms: int) -> str:
    """Milliseconds since 1970 as `2026-01-08T00:00:00.123Z`."""
    return f"{_second(ms // 1000)}{ms % 1000:03d}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.")


def check_order(rows: bytes, last_seqno: int) -> int:
    """Refuse rows unless their SeqNos increase and are above `last_seqno`. Returns the last SeqNo."""
    before = last_seqno
    for seqno in [int(line.partition(b"\t")[0]) for line in rows[:-1].split(b"\n")]:
        if seqno <= before:
            raise SeqNoRegressionError(f"row {seqno} does not come after row {before}")
        before = seqno
    return before


def seqno_of(row: bytes) -> int:
    """The SeqNo of the first row in stored bytes."""
    return int(row[: row.index(b"\t")])


def last_seqno_of(rows: bytes) -> int:
    """The SeqNo of the last row in stored bytes."""
    start = rows.rfind(b"\n", 0, len(rows) - 1) + 1
    return int(rows[start : rows.index(b"\t", start)])


def position_after(rows: bytes, seqno: int) -> int:
    """The position of the first row with a larger SeqNo in stored bytes; their end if there is none."""
    first, end = 0, len(rows)  # bounds of the search; both are row boundaries
    while first < end:
        middle = (first + end) // 2
        start = rows.rfind(b"\n", first, middle) + 1 or first
        if int(rows[start : rows.index(b"\t", start)]) > seqno:
            end = start
        else:
            first = rows.index(b"\n", start) + 1
    return first
