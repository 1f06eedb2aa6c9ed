"""Read-ahead: after a large piece of the index, a reader will most likely request the next one.

It is read while the first one is on its way to the client. What was read ahead and nobody asked for is dropped for
newer pieces, so few of them are in memory. The bytes of a stream never change, so a piece cannot become stale.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeAlias

from headwater.limits import READ_AHEAD_BYTES_MIN, READ_AHEAD_PIECES_MAX
from headwater.store.pieces import Piece

Ask: TypeAlias = Callable[[int, int, int, int], Coroutine[Any, Any, Piece]]  # stream id, start, end, most bytes


class _Ahead(NamedTuple):
    end: int  # the piece does not reach past it
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
            with contextlib.suppress(Exception):  # it may have passed: it is read again, and has its error then
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
    """Whoever reads that piece finds out for itself."""
    if not task.cancelled():
        task.exception()
