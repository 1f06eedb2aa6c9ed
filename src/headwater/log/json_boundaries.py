"""Find positions at which a long JSON array can be split between elements, without creating an object per element.

Regular expressions skip elements in steps of bounded size, so that other threads can run in between. The positions are
correct for valid JSON. They do not validate it: a parser does. If every part between two positions is valid, the array
is valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headwater import limits

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'\[(?:[^][{}"]++|%b)*+\]|\{(?:[^][{}"]++|%b)*+\}' % (_STRING, _STRING)  # without nested ones
_ITEM = rb'[^][{}",]++|%b|%b' % (_STRING, _FLAT)

_items = re.compile(rb"(?:%b)*+" % _ITEM, re.DOTALL)
_elements = re.compile(rb"(?:(?:%b)*+,)++" % _ITEM, re.DOTALL)
_inside = re.compile(rb'(?:[^][{}"]++|%b|%b)*+' % (_STRING, _FLAT), re.DOTALL)
_text = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

_QUOTE = ord('"')
_COMMA = ord(",")
_OPENING = b"[{"
_CLOSING = b"]}"


class _NotJsonError(Exception):
    """The text is not JSON, so no further boundary can be found."""


def boundaries(data: bytes, start: int = 0) -> Iterator[int]:
    """Positions after commas between elements, at least `JSON_STEP_BYTES` apart. The data has no outer brackets, and an
    element begins at `start`."""
    position = last = start
    try:
        while position < len(data):
            match = _elements.match(data, position, position + limits.JSON_STEP_BYTES)
            if match is None:
                position = _skip_element(data, position)
                continue
            position = match.end()
            if position - last >= limits.JSON_STEP_BYTES:
                yield position
                last = position
    except (_NotJsonError, IndexError):
        return


def elements(data: bytes) -> list[bytes]:
    """Split an array at its commas, without validating the elements. The nesting may be of any depth. Raises ValueError
    if quotes or brackets do not match. The data has no outer brackets."""
    if not data.strip():
        return []
    data += b","  # so that each element is followed by a comma
    texts = []
    position = start = 0
    try:
        while position < len(data):
            if data[position] == _COMMA:
                texts.append(data[start:position])
                position = start = position + 1
            else:
                position = _skip_element(data, position)
    except (_NotJsonError, IndexError):
        raise ValueError(f"not JSON at byte {position}") from None
    return texts


def _skip_element(data: bytes, position: int) -> int:
    """The end of a long or nested element, which a comma follows."""
    start, position = position, _step(_items, data, position)
    if data[position] == _QUOTE:
        return _skip_string(data, position)
    if data[position] in _OPENING:
        return _skip_container(data, position)
    if position == start:
        raise _NotJsonError
    return position


def _skip_container(data: bytes, position: int) -> int:
    depth = 0
    while True:
        byte = data[position]
        if byte in _OPENING:
            depth += 1
            position += 1
        elif byte in _CLOSING:
            depth -= 1
            position += 1
        elif byte == _QUOTE:
            position = _skip_string(data, position)
        if not depth:
            return position
        position = _step(_inside, data, position)


def _skip_string(data: bytes, position: int) -> int:
    position += 1
    while data[position] != _QUOTE:
        after = _step(_text, data, position)
        if after == position:
            raise _NotJsonError
        position = after
    return position + 1


def _step(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    match = pattern.match(data, position, position + limits.JSON_STEP_BYTES)
    return position if match is None else match.end()
