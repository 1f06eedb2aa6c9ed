"""A large body, written in pieces as the client reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.limits import BODY_PIECE_BYTES
from headwater.server.compression import Encoder
from headwater.server.http import Buffer, Frame, Sink
from headwater.server.turns import Turns


class BodyFeed:
    """`held` keeps the bytes of the body in the memory budget until they are written."""

    def __init__(self, turns: Turns, pieces: Iterator[bytes], held: object = None) -> None:
        self._turns = turns
        self._pieces = pieces
        self._held: object | None = held
        self._sink: Sink | None = None
        self._waiting = False  # until its turn

    def open(self, sink: Sink, now_s: float) -> None:
        self._sink = sink
        self.drained()

    def drained(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._turns.ask(self._write_on)

    def tick(self, now_s: float) -> None:
        """Nothing to do: a body has no keep-alive."""

    def finish(self) -> None:
        """Nothing to do: a client that reads gets the whole body."""

    def cancel(self) -> None:
        self._sink = self._held = None
        self._pieces = iter(())

    def _write_on(self) -> None:
        self._waiting = False
        sink = self._sink
        if sink is None or sink.blocked:
            return
        piece = next(self._pieces, None)
        if piece is None:
            self.cancel()
            sink.end()
        else:
            sink.write(Frame(piece))
            self.drained()


def cut(body: tuple[Buffer, ...]) -> Iterator[bytes]:
    """The pieces of a body in memory."""
    for part in body:
        view = memoryview(part)
        for start in range(0, len(view), BODY_PIECE_BYTES):
            yield bytes(view[start : start + BODY_PIECE_BYTES])


def gathered(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Join many small parts into pieces."""
    first = 0
    while first < len(parts):
        size_bytes, last = 0, first
        while last < len(parts) and size_bytes < BODY_PIECE_BYTES:
            size_bytes += len(parts[last])
            last += 1
        yield b"".join(parts[first:last])
        first = last


def encoded(pieces: Iterator[bytes], encoder: Encoder) -> Iterator[bytes]:
    """Compress pieces. Empty ones are dropped, because an empty chunk would end the body."""
    for piece in pieces:
        if data := encoder.encode(piece):
            yield data
    if data := encoder.finish():
        yield data
