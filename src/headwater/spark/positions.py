"""Places in streams, as the checkpoint of a query keeps them.

A place is an offset the server gave and how many messages after it are meant to be behind it, written `offset` or
`offset+count`. The count is needed where a server ends its answers only now and then, and inside a large append. The
end of a closed stream is written `offset ended`: nothing can come after it, so a deletion of the stream loses nothing.
"""

from __future__ import annotations

import re

import msgspec

from headwater.errors import OptionError
from headwater.protocol.streams.offsets import BEGINNING, NOW

_NUMBERED = re.compile(r"([0-9]+)_([0-9]+)")


class Place(msgspec.Struct, frozen=True, order=True):
    offset: str = BEGINNING
    skip: int = 0
    ended: bool = False

    def __str__(self) -> str:
        counted = f"{self.offset}+{self.skip}" if self.skip else self.offset
        return f"{counted}{_ENDED}" if self.ended else counted

    def is_at(self, other: Place) -> bool:
        return (self.offset, self.skip) == (other.offset, other.skip)


_ENDED = " ended"
EARLIEST_PLACE = Place()


def parse_place(text: str) -> Place:
    offset, plus, count = text.removesuffix(_ENDED).partition("+")
    if not offset or offset == NOW or (plus and not (count.isascii() and count.isdigit())):
        raise OptionError(
            f"a position is earliest, latest, an offset the server gave, or offset+count, got {text[:80]!r}"
        )
    return Place(offset, int(count) if plus else 0, text.endswith(_ENDED))


def incarnation(offset: str) -> str | None:
    """The part of an offset that a stream made again does not share, where the server has such offsets."""
    match = _NUMBERED.fullmatch(offset)
    return match[1] if match else None


def byte_position(offset: str) -> int | None:
    """How many bytes of the stream are before an offset, on servers whose offsets count them."""
    if offset == BEGINNING:
        return 0
    match = _NUMBERED.fullmatch(offset)
    return int(match[2]) if match else None


class Range(msgspec.Struct, frozen=True):
    """What one task reads of one stream: from a place to an offset, and some messages after that."""

    path: str
    content_type: str
    start: Place
    until: str
    extra: int = 0
    exact: bool = False  # offsets count stored bytes, so every message has a position of its own
