"""Finds where the messages of a JSON array end, without parsing them: with numpy, many bytes at a time.

Most messages are objects, and the text of most objects shows what it is at its first bytes. In `},{"x` the brace is not
inside a string: it would be the last but one character of that string, and what follows a string is a comma, a colon, a
bracket or white space, and not an `x`. So an array is cut at these places if the rest of it has nothing that could be
an end too. For this, only the braces have to be found.

Any other text is scanned as a whole. A bitmap has a bit for each byte of the text: one for quotes, one for commas and
so on. A running parity of the quotes tells which bytes are inside strings, and a running count of the brackets how
deeply a byte is nested. (This is the first stage of simdjson.) A parser takes longer, and makes an object for each
message.

The ends are exact for every valid JSON array. Whether it is valid is not checked beyond what is needed for that.
"""

from __future__ import annotations

import re
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from headwater import limits

Bytes: TypeAlias = npt.NDArray[np.uint8]
Bits: TypeAlias = npt.NDArray[np.uint64]  # the lowest bit of a word is its first byte
Numbers: TypeAlias = npt.NDArray[np.int64]

_ONE = np.uint64(1)
_LAST = np.uint64(63)
_SHIFTS = [np.uint64(1 << power) for power in range(6)]
_QUOTE, _COMMA = ord('"'), ord(",")
_OPENING, _CLOSING = ord("{"), ord("}")
_CASE = 0x20  # set in braces, and not in the brackets that are otherwise the same
_SPACE = ord(" ")
_SAMPLE_BYTES = 4096
_BOUNDARY = int.from_bytes(b'},{"', "little")
_AFTER_STRING = np.isin(np.arange(256), list(b",:]} \t\n\r"))  # the bytes that may follow the end of a string
_SPACED_BRACE = re.compile(rb"[ \t\n\r]\{")
_FIRSTS, _LASTS = (b"{", b"["), (b"}", b"]")

Wanted: TypeAlias = tuple[np.ufunc, int, bool]  # how to compare, with which byte, and whether brackets count as braces
_QUOTES: Wanted = (np.equal, _QUOTE, False)
_OPENING_BRACES: Wanted = (np.equal, _OPENING, False)
_CLOSING_BRACES: Wanted = (np.equal, _CLOSING, False)
_OPENS: Wanted = (np.equal, _OPENING, True)
_CLOSES: Wanted = (np.equal, _CLOSING, True)
_COMMAS: Wanted = (np.equal, _COMMA, False)
_SPACES: Wanted = (np.less_equal, _SPACE, False)
_OF_OBJECTS = (_QUOTES, _OPENING_BRACES, _CLOSING_BRACES, _COMMAS, _SPACES)


def ends_of(text: bytes | bytearray) -> Numbers | None:
    """Where each message of an array ends: at a comma, the last one at the closing bracket.

    None if this way does not apply: to messages that are no objects or arrays, to an array with white space between
    messages, and to a text whose quotes and braces do not match. The parser knows what these are.
    """
    if text[:1] != b"[" or text[-1:] != b"]" or text[1:2] not in _FIRSTS or text[-2:-1] not in _LASTS:
        return None
    if b"\\" in text:  # hide escaped quotes; of a run of backslashes, each pair is one character
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    data = np.frombuffer(text, np.uint8)
    if (ends := _object_ends(text, data)) is not None:
        return ends
    quotes, opens, closes, commas, spaces = _bitmaps(data, _QUOTES, _OPENS, _CLOSES, _COMMAS, _SPACES)
    outside = _outside(quotes)
    if outside is None:
        return None
    opens, closes, commas = opens & outside, closes & outside, commas & outside
    depths = np.cumsum(np.bitwise_count(opens).astype(np.int64) - np.bitwise_count(closes))
    if depths[-1] != 0 or (commas & _after(spaces)).any():
        return None
    follows, precedes = commas & _after(closes), commas & _before(opens)
    ends = _at_depth(1, follows & precedes, opens, closes, depths)
    if len(_at_depth(1, follows ^ precedes, opens, closes, depths)):
        return None
    return np.append(ends, len(text) - 1)


def _object_ends(text: bytes | bytearray, data: Bytes) -> Numbers | None:
    """The ends of messages that are objects, if either no other brace opens in any of them, or no bracket.

    Every brace that follows a comma must be in a `},{"x`, so it is outside of strings. It is then in an array, because
    what follows a comma in an object is a name. So a message ends there if there is no other array.

    If there are others, every brace must follow a comma. The object that ends before it has no brace in it but its
    first, and the object before that ended too. So it is a message.

    No end is missed: an element that is not an object, or has space around it, is followed by another one or by the
    bracket at the end, and there is no such brace before that.

    Texts with spaces before braces, as Python writes them, are recognised by their first bytes and scanned only once.
    """
    sample = bytes(text[:_SAMPLE_BYTES])
    if not sample.startswith(b"[{") or data[-2] != _CLOSING or sample.count(b"},{", 0, -1) > sample.count(b'},{"'):
        return None
    if sample.count(b"{") == sample.count(b"},{") + 1:
        quotes, opens, closes = _bitmaps(data, _QUOTES, _OPENING_BRACES, _CLOSING_BRACES)
        starts = _positions(opens)[1:]
    elif not _SPACED_BRACE.search(sample) and text.find(b"[", 1) < 0:
        quotes, opens, closes, commas, spaces = _bitmaps(data, *_OF_OBJECTS)
        if (opens & _after(spaces)).any():
            return None
        starts = _positions(opens & _after(commas))
    else:
        return None
    words = np.ndarray(len(data) - 3, "<u4", text, strides=(1,))  # the four bytes from each position on
    if (words[starts - 2] != _BOUNDARY).any() or _AFTER_STRING[data[starts + 2]].any():
        return None
    has_string_ends = int(np.bitwise_xor.reduce(quotes)).bit_count() % 2 == 0
    if not has_string_ends or np.bitwise_count(opens).sum() != np.bitwise_count(closes).sum():
        return None
    return np.append(starts - 1, len(data) - 1)


def _bitmaps(data: Bytes, *wanted: Wanted) -> Bits:
    """A bitmap for each of the wanted bytes."""
    maps = np.zeros((len(wanted), -(-len(data) // 64)), "<u8")
    packed = maps.view(np.uint8)
    size = min(len(data), limits.CUT_STEP_BYTES)
    folded, flags = np.empty(size, np.uint8), np.empty(size, np.bool_)
    for begin in range(0, len(data), limits.CUT_STEP_BYTES):  # which stay in the processor's cache
        step = data[begin : begin + limits.CUT_STEP_BYTES]
        chosen, is_folded = flags[: len(step)], False
        for row, (compare, byte, folds) in enumerate(wanted):
            if folds and not is_folded:
                np.bitwise_or(step, np.uint8(_CASE), out=folded[: len(step)])
                is_folded = True
            compare(folded[: len(step)] if folds else step, np.uint8(byte), out=chosen)
            bits = np.packbits(chosen, bitorder="little")
            packed[row, begin // 8 : begin // 8 + len(bits)] = bits
    return maps.astype(np.uint64, copy=False)


def _outside(quotes: Bits) -> Bits | None:
    """The bytes outside of strings, and opening quotes less. None if a string has no end."""
    inside = quotes.copy()
    for shift in _SHIFTS:
        inside ^= inside << shift
    odd = np.bitwise_xor.accumulate(inside >> _LAST)  # whether a string goes on after each word
    if odd[-1]:
        return None
    inside[1:] ^= np.uint64(0) - odd[:-1]
    return ~inside


def _after(bits: Bits) -> Bits:
    """The bytes that follow those of a bitmap."""
    moved = bits << _ONE
    moved[1:] |= bits[:-1] >> _LAST
    return moved


def _before(bits: Bits) -> Bits:
    """The bytes that precede those of a bitmap."""
    moved = bits >> _ONE
    moved[:-1] |= bits[1:] << _LAST
    return moved


def _positions(bits: Bits) -> Numbers:
    """The positions of all bytes of a bitmap."""
    positions: list[Numbers] = []
    words = np.flatnonzero(bits)
    left = bits[words]
    while len(words):
        lowest = left & (~left + _ONE)
        positions.append(words * 64 + np.bitwise_count(lowest - _ONE))
        left ^= lowest
        more = left != 0
        words, left = words[more], left[more]
    if len(positions) == 1:
        return positions[0]
    every: Numbers = np.concatenate(positions) if positions else np.empty(0, np.int64)
    return np.sort(every)


def _at_depth(depth: int, chosen: Bits, opens: Bits, closes: Bits, depths: Numbers) -> Numbers:
    """The positions of the chosen bytes at a depth of nesting. `depths` has the depth at the end of each word."""
    positions: list[Numbers] = []
    words = np.flatnonzero(chosen)
    left = chosen[words]
    while len(words):  # the lowest bit of each word that has more of them
        above = left ^ -left  # the bits above it
        at_end = np.bitwise_count(opens[words] & above).astype(np.int64) - np.bitwise_count(closes[words] & above)
        places = words * 64 + np.bitwise_count(~above)
        positions.append(places[depths[words] - at_end == depth] - 1)
        left &= above
        more = left != 0
        words, left = words[more], left[more]
    if len(positions) == 1:  # usually, if messages have more than 64 bytes
        return positions[0]
    every: Numbers = np.concatenate(positions) if positions else np.empty(0, np.int64)
    return np.sort(every)
