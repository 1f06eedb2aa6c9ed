"""The query of a GET of a table.

Invalid values are refused, because otherwise a client would get other rows than it requested. A `timeout` or `idle`
above the server's limit is lowered to the limit. Clients must be able to reconnect anyway, because a server may end a
response at any time, so they need not know the limits of a server.
"""

from __future__ import annotations

import enum
import re
from urllib.parse import unquote_plus

import msgspec

from headwater import limits
from headwater.errors import InvalidQueryError


class RowView(enum.Enum):
    ALL = "all"  # every row
    ACTIVE = "active"  # the last row of each key that is not deleted


class TableQuery(msgspec.Struct, frozen=True):
    """The query of a read. A positive `since_id` requests rows with a larger SeqNo, a negative one the last rows."""

    since_id: int = 0
    timeout_s: float = limits.TABLE_TIMEOUT_S
    idle_s: float = limits.TABLE_IDLE_S
    view: RowView = RowView.ALL
    key: str | None = None
    events: bool = False  # rows as server-sent events
    until_id: int | None = None  # no rows with a larger SeqNo


_KNOWN = frozenset({"since_id", "until_id", "timeout", "idle", "view", "key", "live"})
_SINCE_ID = re.compile(rf"-?[0-9]{{1,{limits.SEQNO_DIGITS_MAX}}}")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")


def parse_table_query(query: str, last_event_id: str | None = None) -> TableQuery:
    """Parse a query. The `Last-Event-ID` of an EventSource that reconnects replaces `since_id`."""
    if not query:
        return TableQuery()
    parameters = _parameters(query)
    live = parameters.get("live", "false")
    if live not in ("false", "sse"):
        raise InvalidQueryError(f"live must be sse or false, got {live[:80]!r}")
    view, key = _view(parameters)
    if view is RowView.ACTIVE and live == "sse":
        raise InvalidQueryError("live=sse does not work with view=active; read it first, then follow with since_id")
    if "until_id" in parameters and live == "sse":
        raise InvalidQueryError("until_id does not work with live=sse")
    since_id = parse_since_id(parameters.get("since_id", "0"))
    if last_event_id and live == "sse":
        since_id = parse_since_id(last_event_id, "Last-Event-ID")
    events = live == "sse"
    return TableQuery(
        since_id,
        _seconds("timeout", parameters, limits.TABLE_TIMEOUT_S, limits.TABLE_TIMEOUT_MAX_S, events=events),
        _seconds("idle", parameters, limits.TABLE_IDLE_S, limits.TABLE_IDLE_MAX_S, events=events),
        view,
        key,
        events,
        _until_id(parameters, view),
    )


def _parameters(query: str) -> dict[str, str]:
    """The known parameters of a query string, each at most once. Unknown ones are ignored."""
    parameters: dict[str, str] = {}
    for pair in query.split("&"):
        encoded, _, value = pair.partition("=")
        name = unquote_plus(encoded)
        if name not in _KNOWN:
            continue
        if name in parameters:
            raise InvalidQueryError(f"{name} is given more than once")
        try:
            parameters[name] = unquote_plus(value, errors="strict")
        except UnicodeDecodeError:
            raise InvalidQueryError(f"{name} is not UTF-8 after percent-decoding") from None
    return parameters


def parse_since_id(value: str, name: str = "since_id") -> int:
    if not _SINCE_ID.fullmatch(value) or abs(int(value)) > limits.SEQNO_MAX:
        raise InvalidQueryError(f"{name} must be an integer from -(2^63-1) to 2^63-1, got {value[:80]!r}")
    return int(value)


def _until_id(parameters: dict[str, str], view: RowView) -> int | None:
    value = parameters.get("until_id")
    if value is None:
        return None
    until_id = parse_since_id(value, "until_id")
    if until_id < 0:
        raise InvalidQueryError(f"until_id must not be negative, got {value[:80]!r}")
    if view is RowView.ACTIVE:
        raise InvalidQueryError("until_id does not work with view=active")
    return until_id


def _seconds(name: str, parameters: dict[str, str], default_s: float, most_s: float, *, events: bool) -> float:
    """A time in seconds. The default for an EventSource is the maximum, because it pauses before it reconnects."""
    value = parameters.get(name)
    if value is None:
        return most_s if events else default_s
    if not _SECONDS.fullmatch(value):
        raise InvalidQueryError(f"{name} must be a decimal number of seconds, as 30 or 0.5, got {value[:80]!r}")
    return min(float(value), most_s)


def _view(parameters: dict[str, str]) -> tuple[RowView, str | None]:
    """The view and the key. A key implies the active view: its history would need a read of the whole table."""
    key, view = parameters.get("key"), parameters.get("view")
    if view not in (None, "all", "active"):
        raise InvalidQueryError(f"view must be active or all, got {view[:80]!r}")
    if key is None:
        return RowView(view or "all"), None
    if view == "all":
        raise InvalidQueryError("key works with view=active only; leave view out")
    if not key or len(key.encode()) > limits.KEY_BYTES_MAX:
        raise InvalidQueryError(f"key must have 1 to {limits.KEY_BYTES_MAX} bytes")
    return RowView.ACTIVE, key
