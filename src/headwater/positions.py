"""A position in a stream: an offset from the server, and a number of messages after it.

A position is written `offset` or `offset+count`. The count is needed because a reader can stop inside a batch, and the
server gives an offset only for the end of each response. That end is kept too, as `offset+count@end`, if the server has
offsets of numbers as Headwater does: after a restore the offset may be valid while the counted messages are lost, and
the end shows it.
"""

from __future__ import annotations

import re
from typing import Self

import msgspec

BEGINNING = "-1"
NOW = "now"

NUMBERED = re.compile(r"([0-9]+)_([0-9]+)")  # an offset of a server whose offsets count incarnations and bytes
_SNAPSHOT_IDS = range(10**14, 15 * 10**14)  # the ids of streams are microseconds since 1970, less 10^15 for snapshots


class Position(msgspec.Struct, frozen=True, order=True):
    """The position `skip` messages after `offset` (bytes, for streams that are not JSON).

    `end` is an offset after these messages, if it is known.

    ```python
    position = Position("0000000000000001_0000000000000064", 2)
    assert Position.parse(str(position)) == position
    ```
    """

    offset: str = BEGINNING
    skip: int = 0
    end: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `str`; ValueError if it is not a position."""
        offset, plus, rest = text.rpartition("+")
        if not (offset if plus else text):
            raise _invalid(text)
        if not plus:
            return cls(text)
        count, at, end = rest.partition("@")
        if not (count.isascii() and count.isdigit()) or (at and not NUMBERED.fullmatch(end)):
            raise _invalid(text)
        return cls(offset, int(count), end)

    @classmethod
    def at(cls, offset: str | Self) -> Self:
        """The position of an offset; a position is returned unchanged."""
        if isinstance(offset, str):
            return cls(offset)
        if not isinstance(offset, cls):
            raise TypeError(f"an offset is a text from the server, '-1' or 'now', or a Position, got {offset!r:.80}")
        return offset

    def after(self, count: int, end: str = "") -> Self:
        """The position after this many more messages, which are before the offset `end`."""
        if not count:
            return self
        return type(self)(self.offset, self.skip + count, end if NUMBERED.fullmatch(end) else "")

    @property
    def reached(self) -> str:
        """An offset at or after the position; empty if none is known."""
        return self.end if self.skip else self.offset

    def __str__(self) -> str:
        if not (self.skip or "+" in self.offset):
            return self.offset
        return f"{self.offset}+{self.skip}@{self.end}" if self.end else f"{self.offset}+{self.skip}"


def incarnation(offset: str) -> str | None:
    """The incarnation in an offset, if the server has such offsets. It changes when a stream is created again, and is
    another one in the snapshot of a compacted stream."""
    match = NUMBERED.fullmatch(offset)
    return match[1] if match else None


def byte_position(offset: str) -> int | None:
    """The number of bytes before an offset, on servers whose offsets count bytes."""
    if offset == BEGINNING:
        return 0
    match = NUMBERED.fullmatch(offset)
    return int(match[2]) if match else None


def is_original(offset: str) -> bool:
    """Whether nothing can have been removed before an offset, because it is that of the first byte of a stream."""
    return byte_position(offset) == 0 and not is_in_snapshot(offset)


def is_in_snapshot(offset: str) -> bool:
    """Whether an offset of Headwater is in the snapshot with which a compacted stream begins."""
    number = incarnation(offset)
    return number is not None and int(number) in _SNAPSHOT_IDS


def _invalid(text: str) -> ValueError:
    return ValueError(f"a position is an offset or offset+count, got {text[:80]!r}")
