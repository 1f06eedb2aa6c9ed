"""Finds where the messages of a JSON array end, without parsing them: 64 bytes at a time, with numpy.

A bitmap has a bit for each byte of the text: one for quotes, one for commas and so on. A running parity of the quotes
tells which bytes are inside strings, and a running count of the brackets how deeply a byte is nested. (This is the
first stage of simdjson.) A parser takes longer, and makes an object for each message.

The ends are exact for every valid JSON array. Whether it is valid is not checked beyond what is needed for that.
"""

from __future__ import annotations

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
_FIRSTS, _LASTS = (b"{", b"["), (b"}", b"]")


def ends_of(text: bytes | bytearray) -> Numbers | None:
    """Where each message of an array ends: at a comma, the last one at the closing bracket.

    None if this way does not apply: to messages that are no objects or arrays, to an array with white space between
    messages, and to a text whose quotes and brackets do not match. The parser knows what these are.
    """
    if text[:1] != b"[" or text[-1:] != b"]" or text[1:2] not in _FIRSTS or text[-2:-1] not in _LASTS:
        return None
    if b"\\" in text:  # hide escaped quotes; of a run of backslashes, each pair is one character
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    quotes, opens, closes, commas, spaces = _bitmaps(np.frombuffer(text, np.uint8))
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


def _bitmaps(data: Bytes) -> tuple[Bits, Bits, Bits, Bits, Bits]:
    """The quotes, opening brackets, closing brackets, commas, and white space."""
    maps = np.zeros((5, -(-len(data) // 64)), "<u8")
    packed = maps.view(np.uint8)
    for begin in range(0, len(data), limits.CUT_STEP_BYTES):  # which stay in the processor's cache
        step = data[begin : begin + limits.CUT_STEP_BYTES]
        folded = step | np.uint8(_CASE)
        flags = (step == _QUOTE, folded == _OPENING, folded == _CLOSING, step == _COMMA, step <= _SPACE)
        for row, chosen in enumerate(flags):
            bits = np.packbits(chosen, bitorder="little")
            packed[row, begin // 8 : begin // 8 + len(bits)] = bits
    quotes, opens, closes, commas, spaces = maps.astype(np.uint64, copy=False)
    return quotes, opens, closes, commas, spaces


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
