"""A position in a stream: an offset from the server, and a number of messages after it.

A position is written `offset` or `offset+count`. The count is needed because a reader can stop inside a batch, and the
server gives an offset only for the end of each response.
"""

from __future__ import annotations

from typing import Self

import msgspec

BEGINNING = "-1"
NOW = "now"


class Position(msgspec.Struct, frozen=True, order=True):
    """The position `skip` messages after `offset` (bytes, for streams that are not JSON).

    ```python
    position = Position("0000000000000001_0000000000000064", 2)
    assert Position.parse(str(position)) == position
    ```
    """

    offset: str = BEGINNING
    skip: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `str`; ValueError if it is not a position."""
        offset, plus, count = text.rpartition("+")
        if not (offset if plus else text) or (plus and not (count.isascii() and count.isdigit())):
            raise ValueError(f"a position is an offset or offset+count, got {text[:80]!r}")
        return cls(offset, int(count)) if plus else cls(text)

    @classmethod
    def at(cls, offset: str | Self) -> Self:
        """The position of an offset; a position is returned unchanged."""
        if isinstance(offset, str):
            return cls(offset)
        if not isinstance(offset, cls):
            raise TypeError(f"an offset is a text from the server, '-1' or 'now', or a Position, got {offset!r:.80}")
        return offset

    def after(self, count: int) -> Self:
        """The position after this many more messages."""
        return type(self)(self.offset, self.skip + count)

    def __str__(self) -> str:
        return f"{self.offset}+{self.skip}" if self.skip or "+" in self.offset else self.offset
