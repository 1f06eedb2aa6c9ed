"""The content type of a table: `text/sequence; charset=utf-8; schema=<schema_id>; version=<n>`.

The type of a table with escapes also has `escape=backslash`. Other parameters are ignored.

The Accept header of a read has media ranges (RFC 9110), of which the most specific one that matches decides. A range
with another schema, version or escape rule than the table's does not match. So a client that sends a schema gets
406 after the schema has changed, not records that it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from headwater import limits
from headwater.errors import (
    ContentTypeError,
    HeadwaterError,
    InvalidHeaderError,
    NotAcceptableError,
    ProtocolError,
    UnsupportedMediaTypeError,
)
from headwater.protocol.tables.escaping import Escape

MEDIA_TYPE = "text/sequence"
CHANGES_TYPE = "text/tab-separated-values"  # accepted for appends, from programs that do not know STP
EVENTS_TYPE = "text/event-stream"  # rows as server-sent events

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
    for name, (body_value, table_value) in own.items():
        if name in media.parameters and body_value != table_value:
            raise ContentTypeError(f"the table has {name}={table_value}, the body has {name}={body_value}")


# The Accept header


def check_accept(accept: str | None, table: TableType) -> None:
    """Raise an error unless the header accepts the rows of the table."""
    own = {
        "charset": "utf-8",
        "schema": table.schema,
        "version": str(table.version),
        "escape": table.escape.value,
    }
    if not _accepts(accept, MEDIA_TYPE, own):
        raise NotAcceptableError(f"the table is {format_table_type(table)}, which Accept does not allow")


def check_accept_events(accept: str | None) -> None:
    """The same for rows as server-sent events, which have no parameters."""
    if not _accepts(accept, EVENTS_TYPE, {}):
        raise NotAcceptableError(f"the response to live=sse is {EVENTS_TYPE}, which Accept does not allow")


def _accepts(accept: str | None, media_type: str, own: dict[str, str]) -> bool:
    """A header that is missing, or has no valid range, accepts everything."""
    accept = accept or ""
    if len(accept) > limits.HEADER_VALUE_BYTES_MAX:
        raise InvalidHeaderError(f"Accept is longer than {limits.HEADER_VALUE_BYTES_MAX} bytes")
    ranges = list(parse_ranges(accept))
    if not ranges:
        return True
    fitting = [(_specificity(media, own), _quality(media)) for media in ranges if _fits(media, media_type, own)]
    return bool(fitting) and max(fitting)[1] > 0


def _fits(media: Media, media_type: str, own: dict[str, str]) -> bool:
    if media.type not in (media_type, media_type.partition("/")[0] + "/*", "*/*"):
        return False
    return all(_same(name, media.parameters[name], own[name]) for name in own.keys() & media.parameters.keys())


def _same(name: str, parameter: str, value: str) -> bool:
    return parameter == value if name == "schema" else parameter.lower() == value


def _specificity(media: Media, own: dict[str, str]) -> tuple[int, int]:
    return 2 - media.type.count("*"), len(own.keys() & media.parameters.keys())


def _quality(media: Media) -> float:
    """The weight of a range; 1 if it is invalid."""
    weight = media.parameters.get("q", "1")
    return float(weight) if _QUALITY.fullmatch(weight) else 1.0


# Media types and ranges

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TYPE = re.compile(rf"\s*({_TOKEN}/{_TOKEN})\s*")
_PARAMETER = re.compile(rf";\s*(?:({_TOKEN})=({_TOKEN}|{_QUOTED}))?\s*")
# An unclosed quote extends to the end of the text. Searching its end at every quote would take quadratic time.
_ELEMENT = re.compile(r'(?:"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[^,"])+')
_WHOLE_TOKEN = re.compile(_TOKEN)
_QUALITY = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_QUOTED_PAIR = re.compile(r"\\(.)")


class Media(msgspec.Struct, frozen=True):
    """A media type or range in lower case, with its parameters: names in lower case, values without quotes."""

    type: str
    parameters: dict[str, str]


def parse_media(text: str) -> Media | None:
    """Parse a media type; None if it is invalid or has a parameter twice."""
    media_type = _TYPE.match(text)
    if media_type is None:
        return None
    parameters: dict[str, str] = {}
    position = media_type.end()
    while position < len(text):
        parameter = _PARAMETER.match(text, position)
        if parameter is None:
            return None
        position = parameter.end()
        if parameter[1] is None:  # an empty parameter
            continue
        name = parameter[1].lower()
        if name in parameters:
            return None
        parameters[name] = _unquoted(parameter[2])
    return Media(media_type[1].lower(), parameters)


def _unquoted(value: str) -> str:
    return _QUOTED_PAIR.sub(r"\1", value[1:-1]) if value.startswith('"') else value


def quoted(value: str) -> str:
    """Format the value of a parameter: in quotes unless it is a token."""
    if _WHOLE_TOKEN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def parse_ranges(accept: str) -> Iterator[Media]:
    """The valid media ranges of an Accept header."""
    for element in _ELEMENT.findall(accept):
        media = parse_media(element)
        if media is not None:
            yield media
