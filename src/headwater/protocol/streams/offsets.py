"""Offsets: `{incarnation}_{position}`, each 16 digits, so that text order is stream order.

A fork keeps its ancestors' offsets for what it inherited and numbers what it appends with its own incarnation,
which is always the larger: no offset ever names two positions, and one from before a stream was deleted and
made again is recognised.
"""

from __future__ import annotations

import re

from headwater import limits
from headwater.errors import InvalidOffsetError, OffsetGoneError
from headwater.log.values import Span, StreamState

BEGINNING = "-1"
NOW = "now"
ZERO = f"{'0' * limits.OFFSET_DIGITS}_{'0' * limits.OFFSET_DIGITS}"  # what other servers call the beginning

_SYNTAX = re.compile(rf"([0-9]{{{limits.OFFSET_DIGITS}}})_([0-9]{{{limits.OFFSET_DIGITS}}})")


def format_offset(incarnation: int, position: int) -> str:
    return f"{str(incarnation).zfill(limits.OFFSET_DIGITS)}_{str(position).zfill(limits.OFFSET_DIGITS)}"


def check_offset(token: str) -> str:
    """The token if it is well formed; whether it fits a stream is for `resolve` to say."""
    if token in (BEGINNING, NOW) or _SYNTAX.fullmatch(token):
        return token
    raise InvalidOffsetError(f"expected -1, now or an offset the server gave, got {token[:80]!r}")


def offset_at(state: StreamState, position: int) -> str:
    """The one name of a position in a stream."""
    for span in state.lineage:
        if position <= span.end:
            return format_offset(span.id, position)
    return format_offset(state.id, position)


def resolve(state: StreamState, token: str, tail: int) -> int:
    """The position that a token names in a stream whose visible end is `tail`."""
    if token in (BEGINNING, ZERO):
        return 0
    if token == NOW:
        return tail
    match = _SYNTAX.fullmatch(token)
    if match is None:
        raise InvalidOffsetError(f"expected -1, now or an offset the server gave, got {token[:80]!r}")
    incarnation, position = int(match[1]), int(match[2])
    first, last = _bounds(state, incarnation, tail)
    if not first <= position <= last:
        raise InvalidOffsetError(f"{token} is not an offset of this stream; its tail is {offset_at(state, tail)}")
    return position


def _bounds(state: StreamState, incarnation: int, tail: int) -> tuple[int, int]:
    if incarnation == state.id:
        return state.start, tail
    for span in state.lineage:
        if span.id == incarnation:
            return span.start, span.end
    if incarnation < state.id:
        raise OffsetGoneError("the offset belongs to a stream that was deleted; read again from offset=-1")
    raise InvalidOffsetError("the offset belongs to another stream")


def inherited(source: StreamState, position: int) -> tuple[Span, ...]:
    """The lineage of a fork that leaves `source` at a position."""
    spans = [Span(span.id, span.start, min(span.end, position)) for span in source.lineage if span.start < position]
    if position > source.start:
        spans.append(Span(source.id, source.start, position))
    return tuple(spans)
