"""Parses headers that name a stream or table by its URL path."""

from __future__ import annotations

from headwater.errors import InvalidHeaderError
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
    if address.notify:
        raise InvalidHeaderError(f"the NURLs of a table cannot be forked or viewed, got {reference[:80]!r}")
    return log_path(address.name)


def _below(reference: str, mount: str, root: str, kind: str) -> str:
    name = reference.removeprefix(mount)
    if not name.startswith(root):
        raise InvalidHeaderError(f"expected the URL path of a {kind}, {mount}{root}…, got {reference[:80]!r}")
    return name[len(root) :]
