"""Freed memory, with C libraries that accept and refuse settings."""

from __future__ import annotations

import ctypes

import pytest

from headwater import limits
from headwater.freed_memory import keep_freed_memory, return_freed_memory

ARENAS, TRIM, MMAP = -8, -1, -3


class Glibc:
    """Its settings. A version before 2.35 refuses pieces above 32 MiB."""

    def __init__(self, piece_bytes_max: int) -> None:
        self._piece_bytes_max = piece_bytes_max
        self.settings: dict[int, int] = {}

    def mallopt(self, parameter: int, value: int) -> int:
        if parameter == MMAP and value > self._piece_bytes_max:
            return 0
        self.settings[parameter] = value
        return 1


@pytest.mark.parametrize(("piece_bytes_max", "piece_bytes"), [(1 << 40, 128 << 20), (32 << 20, 32 << 20), (0, None)])
def test_pieces_are_as_large_as_the_c_library_accepts(
    monkeypatch: pytest.MonkeyPatch, piece_bytes_max: int, piece_bytes: int | None
) -> None:
    glibc = Glibc(piece_bytes_max)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: glibc)
    keep_freed_memory(limits.FOLD_FREE_BYTES_KEPT, limits.FOLD_FREE_BYTES_KEPT)
    wanted = {ARENAS: 1, TRIM: 128 << 20, MMAP: piece_bytes}
    assert glibc.settings == {name: value for name, value in wanted.items() if value is not None}


def test_the_number_of_arenas_may_stay_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    glibc = Glibc(1 << 40)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: glibc)
    keep_freed_memory(1 << 20, 1 << 20, arenas=None)
    assert glibc.settings == {TRIM: 1 << 20, MMAP: 1 << 20}


def test_another_c_library_has_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries: list[object] = []

    def load(_: object) -> object:
        libraries.append(object())
        return libraries[-1]

    monkeypatch.setattr(ctypes, "CDLL", load)
    keep_freed_memory(1 << 20, 1 << 20)
    return_freed_memory()
    assert len(libraries) == 2
