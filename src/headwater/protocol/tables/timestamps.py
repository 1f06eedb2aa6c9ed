"""The timestamps of rows: RFC 3339 in UTC.

This server always writes milliseconds with three digits, so that its timestamps have one length and sort as text.
Timestamps of other servers may have other forms. They are informational, and a mirror keeps them as text;
`parse_timestamp` converts them.
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
    """Milliseconds since 1970, rounded down. A leap second counts as the second after it."""
    match = _SYNTAX.fullmatch(text)
    if match is None:
        raise InvalidRowError(f"a timestamp is RFC 3339 in UTC, as 2026-01-08T00:00:00Z, got {text[:80]!r}")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    leap = second == 60
    try:
        moment = datetime(year, month, day, hour, minute, second - leap, tzinfo=UTC)
    except ValueError:
        raise InvalidRowError(f"the timestamp {text[:80]!r} is not a valid time") from None
    return (int(moment.timestamp()) + leap) * 1000 + int((match[7] or "")[:3].ljust(3, "0"))
