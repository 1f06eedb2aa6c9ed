"""The headers of a PUT that creates a view, parsed by the server and formatted by the client.

The entity type can be any text, so it is sent as percent-encoded UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote_to_bytes

import msgspec

from headwater.errors import InvalidHeaderError
from headwater.limits import HEADER_VALUE_BYTES_MAX
from headwater.protocol.state.as_events import RecordFormat
from headwater.protocol.streams import headers as streams
from headwater.protocol.tables import headers as tables


class ViewRequest(msgspec.Struct, frozen=True):
    source: str  # its URL path
    type: str
    record: RecordFormat | None = None  # of a view of a table


def parse_table_view(headers: Mapping[str, str]) -> ViewRequest | None:
    """The view that a PUT of a table creates; None for a plain table."""
    return _parse(headers, tables.VIEW_OF, tables.VIEW_TYPE)


def parse_stream_view(headers: Mapping[str, str]) -> ViewRequest | None:
    """The same for a stream."""
    request = _parse(headers, streams.VIEW_OF, streams.VIEW_TYPE)
    if request is None:
        return None
    record = headers.get(streams.VIEW_RECORD, RecordFormat.JSON.value)
    try:
        return msgspec.structs.replace(request, record=RecordFormat(record.strip().lower()))
    except ValueError:
        raise InvalidHeaderError(f"{streams.VIEW_RECORD} must be json or text, got {record[:80]!r}") from None


def _parse(headers: Mapping[str, str], of: str, of_type: str) -> ViewRequest | None:
    source, quoted = headers.get(of), headers.get(of_type)
    if source is None and quoted is None:
        return None
    if source is None or quoted is None:
        raise InvalidHeaderError(f"{of} and {of_type} must be sent together")
    try:
        entity_type = unquote_to_bytes(quoted.strip().encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise InvalidHeaderError(f"{of_type} is not UTF-8 after percent-decoding") from None
    if not entity_type or len(entity_type) > HEADER_VALUE_BYTES_MAX:
        raise InvalidHeaderError(f"{of_type} must be an entity type of 1 to {HEADER_VALUE_BYTES_MAX} characters")
    return ViewRequest(source.strip(), entity_type)


def format_table_view(source: str, entity_type: str) -> dict[str, str]:
    return {tables.VIEW_OF: source, tables.VIEW_TYPE: quote(entity_type, safe=" :/@")}


def format_stream_view(source: str, entity_type: str, record: RecordFormat) -> dict[str, str]:
    return {
        streams.VIEW_OF: source,
        streams.VIEW_TYPE: quote(entity_type, safe=" :/@"),
        streams.VIEW_RECORD: record.value,
    }
