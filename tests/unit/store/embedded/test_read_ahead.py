"""Read-ahead: each piece is read once, and no read gets more than it requested."""

from __future__ import annotations

import asyncio

import pytest

from headwater.limits import READ_AHEAD_BYTES_MIN, READ_AHEAD_PIECES_MAX
from headwater.store.embedded.read_ahead import ReadAhead
from headwater.store.pieces import Piece
from tests import virtual_time

SIZE = READ_AHEAD_BYTES_MIN


class Index:
    """An index of endless streams that records its reads."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.damaged: int | None = None

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        self.asked.append((stream_id, start))
        await asyncio.sleep(0)
        if start == self.damaged:
            raise LookupError("damaged")
        size = min(bytes_max, end - start)
        return Piece(bytes(size), start, start + size)


def test_each_piece_is_read_once_and_ahead() -> None:
    async def main() -> None:
        index = Index()
        ahead = ReadAhead(index.read)
        for number in range(4):
            piece = await ahead.read(1, number * SIZE, 4 * SIZE, SIZE)
            assert (piece.start, piece.next) == (number * SIZE, (number + 1) * SIZE)
            await asyncio.sleep(0.01)
            assert index.asked == [(1, at * SIZE) for at in range(min(number + 2, 4))]

    virtual_time.run(main())


def test_small_reads_do_not_read_ahead() -> None:
    async def main() -> None:
        index = Index()
        await ReadAhead(index.read).read(1, 0, 10 * SIZE, SIZE - 1)
        await asyncio.sleep(0.01)
        assert index.asked == [(1, 0)]

    virtual_time.run(main())


@pytest.mark.parametrize(("end", "bytes_max"), [(SIZE + 10, SIZE), (9 * SIZE, SIZE - 10)])
def test_no_read_gets_more_than_it_requested(end: int, bytes_max: int) -> None:
    async def main() -> None:
        ahead = ReadAhead(Index().read)
        await ahead.read(1, 0, 9 * SIZE, SIZE)
        await asyncio.sleep(0.01)
        piece = await ahead.read(1, SIZE, end, bytes_max)
        assert piece.next <= end
        assert len(piece.data) <= bytes_max

    virtual_time.run(main())


def test_few_pieces_are_kept_and_the_oldest_are_dropped() -> None:
    async def main() -> None:
        index = Index()
        ahead = ReadAhead(index.read)
        for stream_id in range(READ_AHEAD_PIECES_MAX + 1):
            await ahead.read(stream_id, 0, 9 * SIZE, SIZE)
        await asyncio.sleep(0.01)
        index.asked.clear()
        await ahead.read(0, SIZE, 2 * SIZE, SIZE)  # it was dropped
        await ahead.read(1, SIZE, 9 * SIZE, SIZE)
        assert index.asked == [(0, SIZE)]
        ahead.close()

    virtual_time.run(main())


def test_a_temporary_error_is_not_kept() -> None:
    async def main() -> None:
        index = Index()
        index.damaged = SIZE
        ahead = ReadAhead(index.read)
        assert (await ahead.read(1, 0, 9 * SIZE, SIZE)).next == SIZE
        await asyncio.sleep(0.01)
        index.damaged = None
        assert (await ahead.read(1, SIZE, 9 * SIZE, SIZE)).next == 2 * SIZE
        index.damaged = 3 * SIZE
        assert (await ahead.read(1, 2 * SIZE, 9 * SIZE, SIZE)).next == 3 * SIZE
        with pytest.raises(LookupError, match="damaged"):
            await ahead.read(1, 3 * SIZE, 9 * SIZE, SIZE)

    virtual_time.run(main())
