"""The content type of a table: `text/sequence; charset=utf-8; schema=<schema_id>; version=<n>`.

The type of a table with escapes also has `escape=backslash`. Other parameters are ignored.
"""

from __future__ import annotations

import re

import msgspec

from headwater import limits
from headwater.errors import (
    ContentTypeError,
    HeadwaterError,
    InvalidHeaderError,
    ProtocolError,
    UnsupportedMediaTypeError,
)
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.media import Media, parse_media, quoted

MEDIA_TYPE = "text/sequence"
CHANGES_TYPE = "text/tab-separated-values"  # accepted for appends, from programs that do not know STP

_SCHEMA = re.compile(rf"[ -~]{{1,{limits.SCHEMA_LENGTH_MAX}}}")
_VERSION = re.compile(rf"0|[1-9][0-9]{{0,{limits.SCHEMA_VERSION_DIGITS_MAX - 1}}}")
_ESCAPES = {kind.value: kind for kind in Escape}


class TableType(msgspec.Struct, frozen=True):
    """The schema of a table's records, its version, and whether fields are escaped.

    The defaults apply to tables that are created without a schema, whose records are plain text.
    """

    schema: str = "text"
    version: int = 1
    escape: Escape = Escape.NONE


def format_table_type(table: TableType) -> str:
    text = f"{MEDIA_TYPE}; charset=utf-8; schema={quoted(table.schema)}; version={table.version}"
    return text if table.escape is Escape.NONE else f"{text}; escape={table.escape.value}"


def parse_table_type(value: str | None) -> TableType:
    """Parse the Content-Type of a request. Missing parameters have their defaults."""
    return TableType() if value is None else _table_type(_media(value, InvalidHeaderError), InvalidHeaderError)


def parse_answer_type(value: str | None) -> TableType:
    """Parse the Content-Type of a response. Schema and version are required."""
    if value is None:
        raise ProtocolError(f"the response has no Content-Type; that of a table is {MEDIA_TYPE}")
    media = _media(value, ProtocolError)
    missing = [name for name in ("schema", "version") if name not in media.parameters]
    if missing:
        raise ProtocolError(f"the Content-Type of the response has no {' and no '.join(missing)}: {value[:200]!r}")
    return _table_type(media, ProtocolError)


def _media(value: str, error: type[HeadwaterError]) -> Media:
    media = parse_media(value) if len(value) <= limits.HEADER_VALUE_BYTES_MAX else None
    if media is None or media.type != MEDIA_TYPE:
        raise error(f"the Content-Type of a table is {MEDIA_TYPE}; schema=<id>; version=<n>, got {value[:80]!r}")
    return media


def _table_type(media: Media, error: type[HeadwaterError]) -> TableType:
    default = TableType()
    charset = media.parameters.get("charset", "utf-8")
    if charset.lower() != "utf-8":
        raise error(f"the charset of a table is utf-8, got {charset[:80]!r}")
    schema = media.parameters.get("schema", default.schema)
    if not _SCHEMA.fullmatch(schema):
        raise error(f"a schema has 1 to {limits.SCHEMA_LENGTH_MAX} printable ASCII characters, got {schema[:80]!r}")
    version = media.parameters.get("version", str(default.version))
    if not _VERSION.fullmatch(version):
        raise error(
            f"a version is an integer of at most {limits.SCHEMA_VERSION_DIGITS_MAX} digits, got {version[:80]!r}"
        )
    escape = _ESCAPES.get(media.parameters.get("escape", default.escape.value).lower())
    if escape is None:
        raise error(f"escape must be none or backslash, got {media.parameters['escape'][:80]!r}")
    return TableType(schema, int(version), escape)


def check_changes_type(value: str | None, table: TableType) -> None:
    """Refuse a body whose Content-Type does not match the table. A body without one is accepted."""
    if value is None:
        return
    media = parse_media(value)
    if media is None or media.type not in (MEDIA_TYPE, CHANGES_TYPE):
        raise UnsupportedMediaTypeError(f"changes are sent as {MEDIA_TYPE} or {CHANGES_TYPE}, got {value[:80]!r}")
    if media.type == CHANGES_TYPE:
        return
    named = _table_type(media, InvalidHeaderError)
    own = {"schema": (named.schema, table.schema), "version": (named.version, table.version)}
    own["escape"] = (named.escape.value, table.escape.value)
    for name, (asked, has) in own.items():
        if name in media.parameters and asked != has:
            raise ContentTypeError(f"the table has {name}={has}, the body has {name}={asked}")
