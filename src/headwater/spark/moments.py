"""Parses times in options: RFC 3339, or milliseconds since 1970."""

from __future__ import annotations

import msgspec

from headwater.errors import InvalidQueryError, OptionError
from headwater.protocol.streams.headers import parse_instant

_MS_MAX = 253_402_300_799_000  # the year 9999


def parse_times(name: str, text: str, streams: tuple[str, ...]) -> int | dict[str, int]:
    """Parse a time for all streams, or JSON with a time for each, to milliseconds."""
    if not text.startswith("{"):
        return _parse_time(name, text)
    try:
        times = msgspec.json.decode(text, type=dict[str, str | int])
    except msgspec.MsgspecError:
        raise OptionError(f'{name} must be a time, or JSON such as {{"orders": "2026-11-15T08:00:00Z"}}') from None
    by_path = {path.strip("/"): _parse_time(name, str(time)) for path, time in times.items()}
    if streams and (unknown := sorted(by_path.keys() - set(streams))):
        raise OptionError(f"{name} names {', '.join(unknown)}, which the option streams does not name")
    return by_path


def _parse_time(name: str, text: str) -> int:
    if text.isascii() and text.isdigit():
        ms = int(text[: len(str(_MS_MAX)) + 1])
    else:
        try:
            ms = parse_instant(name, text, InvalidQueryError)
        except InvalidQueryError:
            ms = -1
    if not 0 <= ms <= _MS_MAX:
        raise OptionError(
            f"{name} must be a time such as 2026-11-15T08:00:00Z, or milliseconds since 1970, got {text[:80]!r}"
        )
    return ms
