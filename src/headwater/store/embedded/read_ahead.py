"""Read-ahead: after a read of a large piece from the index, the next piece is read in the background.

A reader will most likely request it next. Only a few pieces are kept: unused ones are dropped for newer ones. The bytes
of a stream never change, so a piece cannot become stale.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias

from headwater.limits import READ_AHEAD_BYTES_MIN, READ_AHEAD_PIECES_MAX
from headwater.store.pieces import Piece

Ask: TypeAlias = Callable[[int, int, int, int], Coroutine[Any, Any, Piece]]  # stream id, start, end, bytes_max


class _Ahead(NamedTuple):
    end: int  # upper bound of the piece
    bytes_max: int
    piece: asyncio.Task[Piece]


class ReadAhead:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._pieces: dict[tuple[int, int], _Ahead] = {}

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        ahead = self._pieces.pop((stream_id, start), None)
        piece = None
        if ahead is not None and ahead.end <= end and ahead.bytes_max <= bytes_max:
            with contextlib.suppress(Exception):  # the error may have been temporary, so read again
                piece = await ahead.piece
        if piece is None:
            piece = await self._ask(stream_id, start, end, bytes_max)
        if piece.next < end and READ_AHEAD_BYTES_MIN <= len(piece.data) <= bytes_max:
            self._begin(stream_id, piece.next, end, bytes_max)
        return piece

    def _begin(self, stream_id: int, start: int, end: int, bytes_max: int) -> None:
        if (stream_id, start) in self._pieces:
            return
        if len(self._pieces) >= READ_AHEAD_PIECES_MAX:
            self._drop(next(iter(self._pieces)))  # the oldest
        task = asyncio.create_task(self._ask(stream_id, start, end, bytes_max))
        task.add_done_callback(_retrieve)
        self._pieces[stream_id, start] = _Ahead(end, bytes_max, task)

    def _drop(self, key: tuple[int, int]) -> None:
        self._pieces.pop(key).piece.cancel()

    def close(self) -> None:
        for key in tuple(self._pieces):
            self._drop(key)


def _retrieve(task: asyncio.Task[Piece]) -> None:
    """Ignore the error of a read-ahead. The actual read will report it."""
    if not task.cancelled():
        task.exception()
