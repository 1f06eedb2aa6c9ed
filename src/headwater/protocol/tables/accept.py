"""The Accept header (RFC 9110) of a read of a table.

The most specific matching range decides. A range with another schema, version or escape rule than the table's does not
match. So a client that sends a schema gets 406 after the schema has changed, not records that it cannot read.
"""

from __future__ import annotations

import re

from headwater import limits
from headwater.errors import InvalidHeaderError, NotAcceptableError
from headwater.protocol.tables.content_type import MEDIA_TYPE, TableType, format_table_type
from headwater.protocol.tables.media import Media, parse_ranges

EVENTS_TYPE = "text/event-stream"

_QUALITY = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


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


def _same(name: str, asked: str, value: str) -> bool:
    return asked == value if name == "schema" else asked.lower() == value


def _specificity(media: Media, own: dict[str, str]) -> tuple[int, int]:
    return 2 - media.type.count("*"), len(own.keys() & media.parameters.keys())


def _quality(media: Media) -> float:
    """The weight of a range; 1 if it is invalid."""
    weight = media.parameters.get("q", "1")
    return float(weight) if _QUALITY.fullmatch(weight) else 1.0
