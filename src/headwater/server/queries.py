"""Query parameters that several handlers share."""

from __future__ import annotations

from headwater.errors import InvalidQueryError


def parse_integer(query: dict[str, str], name: str, default: int, most: int) -> int:
    given = query.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > len(str(most)) or not 1 <= int(given) <= most:
        raise InvalidQueryError(f"{name} must be from 1 to {most}, got {given[:80]!r}")
    return int(given)


def parse_flag(query: dict[str, str], name: str) -> bool:
    given = query.get(name, "false")
    if given not in ("true", "false"):
        raise InvalidQueryError(f"{name} must be true or false, got {given[:80]!r}")
    return given == "true"
