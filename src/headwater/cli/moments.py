"""Parses times on the command line: a span before now, or a timestamp."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def parse_moment(text: str, now: datetime) -> datetime:
    """Parse `30s`, `15m`, `1h` or `2d` (before now), or an RFC 3339 timestamp. ValueError otherwise."""
    try:
        if span := _SPAN.fullmatch(text):
            return now - timedelta(**{_UNITS[span[2]]: float(span[1])})
        if (stamp := _RFC3339.fullmatch(text.upper())) is None:
            raise ValueError(
                f"expected 30s, 15m, 1h, 2d or a timestamp such as 2030-01-01T00:00:00Z, got {text[:80]!r}"
            )
        if stamp[2] is None:
            raise ValueError(f"the timestamp needs a time zone: {text}Z for UTC, or {text}+01:00")
        return _timestamp(text)
    except OverflowError:
        raise ValueError(f"too far from now: {text[:80]!r}") from None


def parse_span(text: str) -> float:
    """Parse `30s`, `15m`, `1h` or `2d` to seconds. ValueError otherwise."""
    if (span := _SPAN.fullmatch(text)) is None:
        raise ValueError(f"expected a span of time such as 30s, 15m, 1h or 2d, got {text[:80]!r}")
    try:
        return timedelta(**{_UNITS[span[2]]: float(span[1])}).total_seconds()
    except OverflowError:
        raise ValueError(f"too long: {text[:80]!r}") from None


def _timestamp(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except ValueError as error:
        raise ValueError(f"no such moment: {text!r} ({error})") from None
