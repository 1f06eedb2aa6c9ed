"""A target of fuzzing: bytes in, an AssertionError or an error that nobody declared out. And bytes as choices.

`tests/fuzz/test_targets.py` gives each target random bytes and pieces of its seeds; `tools/fuzz.py` has a fuzzer look
for bytes that reach new code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Target(NamedTuple):
    """`seeds` are examples to begin with, `words` what an input of interest is made of."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...] = ()
    words: tuple[bytes, ...] = ()


class Choices:
    """Bytes that are used up by questions. When none are left, every answer is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, most: int) -> int:
        """From 0 to `most`."""
        size = max(1, (most.bit_length() + 7) // 8)
        piece = self._data[self._position : self._position + size]
        self._position += size
        return int.from_bytes(piece, "big") % (most + 1)

    def choice(self, among: Sequence[T]) -> T:
        return among[self.number(len(among) - 1)]

    def line(self) -> bytes:
        """Up to the next newline, which is left out."""
        line, _, _ = self._data[self._position :].partition(b"\n")
        self._position += len(line) + 1
        return line

    def rest(self) -> bytes:
        rest, self._position = self._data[self._position :], len(self._data)
        return rest

    def pieces(self, data: bytes) -> list[bytes]:
        """Data cut into up to five pieces, some of which may be empty."""
        cuts = sorted(self.number(min(len(data), 65535)) for _ in range(self.number(4)))
        bounds = [0, *cuts, len(data)]
        return [data[start:end] for start, end in itertools.pairwise(bounds)]
