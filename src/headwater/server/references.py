"""Parses what several handlers share: query parameters, and headers that name a stream or table by its URL path."""

from __future__ import annotations

from headwater.errors import InvalidHeaderError, InvalidQueryError
from headwater.protocol.streams.paths import RESERVED, STREAM_ROOT, parse_path
from headwater.protocol.tables.paths import TABLE_ROOT, log_path, parse_address


def stream_path(reference: str, mount: str) -> str:
    """The path of the stream that a header names."""
    name = _below(reference, mount, STREAM_ROOT, "stream")
    if name == RESERVED or name.startswith(f"{RESERVED}/"):
        raise InvalidHeaderError(f"paths below {RESERVED} are reserved, got {reference[:80]!r}")
    return parse_path(name)


def table_path(reference: str, mount: str) -> str:
    """The path in the log of the table that a header names."""
    address = parse_address(_below(reference, mount, TABLE_ROOT, "table"))
    if address.below:
        raise InvalidHeaderError(f"only a table can be forked or viewed, not what is below it, got {reference[:80]!r}")
    return log_path(address.name)


def _below(reference: str, mount: str, root: str, kind: str) -> str:
    name = reference.removeprefix(mount)
    if not name.startswith(root):
        raise InvalidHeaderError(f"expected the URL path of a {kind}, {mount}{root}…, got {reference[:80]!r}")
    return name[len(root) :]


def parse_integer(query: dict[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise InvalidQueryError(f"{name} must be from 1 to {most}, got {text[:80]!r}")
    return int(text)


def parse_flag(query: dict[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidQueryError(f"{name} must be true or false, got {text[:80]!r}")
    return text == "true"
