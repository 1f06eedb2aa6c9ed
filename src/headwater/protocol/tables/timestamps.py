"""The timestamps of rows: RFC 3339 in UTC.

Ours always have three digits of milliseconds. All are then of one length and sort as text in the order of time, and two
rows of one second can be told apart. Timestamps of other servers may look different. They are informational, so a
mirror keeps them as text; `parse_timestamp` is for those who need the time itself.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from headwater.errors import InvalidRowError
from headwater.log.row_framing import format_timestamp

__all__ = ["format_timestamp", "parse_timestamp"]

_SYNTAX = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:[Zz]|[+-]00:00)"
)


def parse_timestamp(text: str) -> int:
    """Milliseconds since 1970, finer fractions cut off. A leap second counts as the second after it."""
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise InvalidRowError(f"a timestamp is RFC 3339 in UTC, as 2026-01-08T00:00:00Z, got {text[:80]!r}")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, second - leap, tzinfo=UTC)
    except ValueError:
        raise InvalidRowError(f"the timestamp {text[:80]!r} names no moment") from None
    return (int(moment.timestamp()) + leap) * 1000 + int((match[7] or "")[:3].ljust(3, "0"))
