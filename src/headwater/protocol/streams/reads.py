"""Reads: the query of a GET, and the body and caching of its response.

Cursors are numbers of time intervals, by which caches share responses between live readers. They never decrease.
"""

from __future__ import annotations

import enum
from urllib.parse import unquote_plus

import msgspec

from headwater import limits
from headwater.errors import InvalidOffsetError, InvalidQueryError
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING as FIRST
from headwater.log.offsets import Offset
from headwater.positions import BEGINNING, NOW
from headwater.protocol.streams.offsets import parse_offset


class Live(enum.Enum):
    NO = "false"
    LONG_POLL = "long-poll"
    SSE = "sse"


class ReadQuery(msgspec.Struct, frozen=True):
    offset: Offset | None = FIRST  # None: the tail
    live: Live = Live.NO
    cursor: str | None = None
    until: Offset | None = None
    as_head: bool = False  # without an offset: the request has the URL of HEAD


_STALE = f", stale-while-revalidate={limits.CACHE_STALE_S}"
_KNOWN = frozenset({"offset", "live", "cursor", "until"})
_LIVE = {mode.value: mode for mode in Live}


def parse_query(query: str) -> dict[str, str]:
    """The parameters of a query string. A known parameter may be given once; unknown ones are ignored."""
    parameters: dict[str, str] = {}
    quoted = "%" in query or "+" in query
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if quoted:
            name, value = unquote_plus(name), unquote_plus(value)
        if name in parameters and name in _KNOWN:
            raise InvalidQueryError(f"{name} is given more than once")
        parameters[name] = value
    return parameters


def parse_read(query: str) -> ReadQuery:
    if not query:
        return ReadQuery(as_head=True)
    parameters = parse_query(query)
    mode = _LIVE.get(parameters.get("live", "false"))
    if mode is None:
        raise InvalidQueryError(f"live must be false, long-poll or sse, got {parameters['live'][:80]!r}")
    offset = parameters.get("offset")
    if offset is None and mode is not Live.NO:
        raise InvalidQueryError(f"live={mode.value} needs an offset")
    cursor = parameters.get("cursor")
    if cursor is not None and len(cursor) > limits.CURSOR_LENGTH_MAX:
        raise InvalidQueryError(f"cursor is longer than {limits.CURSOR_LENGTH_MAX} characters")
    until = parameters.get("until")
    if until in (BEGINNING, NOW):
        raise InvalidOffsetError("until must be an offset from the server")
    return ReadQuery(
        parse_offset(BEGINNING if offset is None else offset),
        mode,
        cursor,
        None if until is None else parse_offset(until),
        as_head=offset is None,
    )


def wrap(kind: ContentKind, data: bytes) -> tuple[bytes | memoryview, ...]:
    """The body of a read, as buffers to send in order."""
    if kind is not ContentKind.JSON:
        return (data,) if data else ()
    if not data:
        return (b"[]",)
    return b"[", memoryview(data)[:-1], b"]"


def cache_control(
    query: ReadQuery, deadline_ms: int | None, now_ms: int, *, at_tail: bool, kept_s: int | None = None
) -> str:
    """The `Cache-Control` of a read. No response is cached longer than the stream lives, or than its records are kept
    (`kept_s`).

    A response that reaches the tail is outdated by the next append, so caches must revalidate it. A response to a
    long-poll is cached while readers send the same cursor. A response between two offsets never changes, because the
    second one identifies all bytes before it. A response that only begins at an offset may end after the state to which
    the server is restored, and then other bytes follow that offset. A read from the beginning gets another stream if
    the stream is deleted and created again. A cache may use a response to GET for HEAD, which returns the tail. So if
    both have the same URL, only a response that reaches the tail may be stored.
    """
    if query.offset is None:
        return "no-store"
    polled = query.live is Live.LONG_POLL
    if at_tail and not polled:
        return "no-cache"
    if query.as_head:
        return "no-store"
    if at_tail or query.offset == FIRST:
        most_s, stale_s, more = limits.CACHE_MAX_AGE_S, limits.CACHE_STALE_S, _STALE
    elif query.until is None:
        most_s, stale_s, more = limits.CACHE_PAGE_S, 0, ""
    else:
        most_s, stale_s, more = limits.CACHE_LASTING_S, 0, ", immutable"
    left_s = most_s + stale_s if deadline_ms is None else max(0, (deadline_ms - now_ms) // 1000)
    if kept_s is not None:
        left_s = min(left_s, kept_s)
    if left_s < most_s + stale_s:
        return f"public, max-age={min(most_s, left_s)}"
    return f"public, max-age={most_s}{more}"


def interval_at(now_ms: int) -> int:
    return (now_ms // 1000 - limits.CURSOR_EPOCH_S) // limits.CURSOR_INTERVAL_S


def next_cursor(echoed: str | None, now_ms: int, entropy: float) -> int:
    """The cursor for a reader that sent `echoed`. `entropy` in [0, 1) is the source of the jitter."""
    current = interval_at(now_ms)
    if not echoed or not echoed.isascii() or not echoed.isdigit():
        return current
    if int(echoed) < current:
        return current
    jitter_s = 1 + int(entropy * limits.CURSOR_JITTER_MAX_S)
    return int(echoed) + max(1, -(-jitter_s // limits.CURSOR_INTERVAL_S))
