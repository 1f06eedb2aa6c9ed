"""Conditional requests (RFC 9110): the entity tags of reads, and the tails that `If-Match` of a write allows.

The entity tag of a read is `"{version}:{start}:{end}"`, with `:c` if the response says that the stream is closed. The
version identifies the stream and its bytes up to the end: another stream at the same path has another one, and so has
data that was appended after a restore. The start, and an end that no `If-Match` needs, also name the snapshot that they
are in: `"{version}:{snapshot}.{start}:{end}"`.

A tag in `If-Match` is the tail offset of a stream, the SeqNo of a table's last row, or the entity tag of a response to
HEAD or to a read that reached the tail. Weak tags and tags of any other form never match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from headwater.errors import InvalidHeaderError, InvalidOffsetError
from headwater.log.offsets import BEGINNING, Offset
from headwater.protocol.encodings import ENCODINGS
from headwater.protocol.streams.headers import IF_MATCH
from headwater.protocol.streams.offsets import parse_offset
from headwater.protocol.tables.rows import is_seqno

_ELEMENT = re.compile(r'[ \t]*+(?:(W/)?"([^"\x00-\x20\x7f]*+)")?[ \t]*+(?:,|\Z)')
_ENTITY_TAG = re.compile(r"([0-9]{1,20}):[0-9.]{1,40}:([0-9]{1,20})(?::[a-z]+)*")


def etag(version: int, start: str | int, end: str | int, *, closed: bool) -> str:
    return f'"{version}:{start}:{end}{":c" if closed else ""}"'


def encoded(tag: str, encoding: str) -> str:
    """The tag of a read with a content encoding. Its bytes differ, so its strong tag must differ."""
    return f'{tag[:-1]}:{encoding}"'


def matched(if_none_match: str, tag: str) -> str | None:
    """The tag in `If-None-Match` that matches this read in any content encoding; None if no tag does."""
    if if_none_match.strip() == "*":
        return tag
    variants = {tag, *[encoded(tag, encoding) for encoding in ENCODINGS]}
    for candidate in if_none_match.split(","):
        known = candidate.strip().removeprefix("W/")
        if known in variants:
            return known
    return None


def parse_stream_ends(headers: Mapping[str, str]) -> tuple[Offset, ...] | None:
    """The tails that a request allows; None if it allows any. An offset of all zeros and -1 mean an empty stream."""
    value = headers.get(IF_MATCH)
    return None if value is None else _ends(value, _tail)


def parse_table_ends(headers: Mapping[str, str]) -> tuple[Offset, ...] | None:
    """The same for a table: its id (0: any) and the SeqNo of its last row."""
    value = headers.get(IF_MATCH)
    return None if value is None else _ends(value, _last_row)


def check_unconditional(headers: Mapping[str, str]) -> None:
    if IF_MATCH in headers:
        raise InvalidHeaderError("If-Match is only supported with POST and DELETE; remove it")


def _ends(value: str, read: Callable[[str], Offset | None]) -> tuple[Offset, ...] | None:
    if value.strip(" \t") == "*":
        return None
    ends = [_entity_tag(tag) or read(tag) for tag in _strong_tags(value)]
    return tuple([end for end in ends if end is not None])


def _strong_tags(value: str) -> list[str]:
    tags, count, position = [], 0, 0
    while position < len(value):
        element = _ELEMENT.match(value, position)
        if element is None:
            raise InvalidHeaderError(f"If-Match must be * or a list of tags in double quotes, got {value[:80]!r}")
        position = element.end()
        weak, tag = element.groups()
        if tag is not None:
            count += 1
            if weak is None:
                tags.append(tag)
    if not count:
        raise InvalidHeaderError("If-Match must be * or have at least one tag")
    return tags


def _entity_tag(tag: str) -> Offset | None:
    match = _ENTITY_TAG.fullmatch(tag)
    return None if match is None else Offset(int(match[1]), int(match[2]))


def _tail(tag: str) -> Offset | None:
    try:
        offset = parse_offset(tag)
    except InvalidOffsetError:
        return None
    return offset if offset is not None and (offset.id or offset == BEGINNING) else None


def _last_row(tag: str) -> Offset | None:
    return Offset(0, int(tag)) if is_seqno(tag) else None
