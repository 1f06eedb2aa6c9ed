"""A position in a stream: an offset that the server gave, and a count of messages after it.

A position is written `offset` or `offset+count`. The count is needed where no answer ends: a reader can stop inside a
batch, and some servers end their answers only now and then.
"""

from __future__ import annotations

from typing import Self

import msgspec

BEGINNING = "-1"
NOW = "now"


class Position(msgspec.Struct, frozen=True, order=True):
    """After `offset` and `skip` messages behind it (bytes, where a stream has no messages).

    ```python
    position = Position("0000000000000001_0000000000000064", 2)
    assert Position.parse(str(position)) == position
    ```
    """

    offset: str = BEGINNING
    skip: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position that `str` wrote; ValueError if it is none."""
        offset, plus, count = text.rpartition("+")
        if not (offset if plus else text) or (plus and not (count.isascii() and count.isdigit())):
            raise ValueError(f"a position is an offset or offset+count, got {text[:80]!r}")
        return cls(offset, int(count)) if plus else cls(text)

    def after(self, count: int) -> Self:
        """The position behind so many more messages."""
        return type(self)(self.offset, self.skip + count)

    def __str__(self) -> str:
        return f"{self.offset}+{self.skip}" if self.skip or "+" in self.offset else self.offset
