"""Joins bytes that arrive in pieces, so that many small pieces take no more memory than their bytes."""

from __future__ import annotations

from headwater.limits import JOINED_PIECE_BYTES


class Joined:
    """Collected pieces. A bytes object of two bytes takes 35, and its place in a list 8: therefore small pieces are
    joined as they arrive. Large ones are kept as they are, and joined once, at the end."""

    __slots__ = ("_pieces", "_small", "size")

    def __init__(self, first: bytes = b"") -> None:
        self._pieces: list[bytes] = []
        self._small = bytearray()
        self.size = 0
        if first:
            self.add(first)

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if len(piece) >= JOINED_PIECE_BYTES and not self._small:
            self._pieces.append(piece)
            return
        self._small += piece
        if len(self._small) >= JOINED_PIECE_BYTES:
            self._pieces.append(bytes(self._small))
            self._small = bytearray()

    def take(self) -> bytes:
        """Return everything as one bytes object, and start again."""
        pieces, small = self._pieces, self._small
        self._pieces, self._small, self.size = [], bytearray(), 0
        if small:
            pieces.append(bytes(small))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
