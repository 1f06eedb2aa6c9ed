"""A large body as a response that stays open: written as the client takes it, so that its bytes can be counted."""

from __future__ import annotations

from headwater.limits import BODY_PIECE_BYTES
from headwater.server.http import Buffer, Frame, Sink
from headwater.server.turns import Turns


class BodyFeed:
    """`held` is what keeps the bytes counted, until the last of them is written."""

    def __init__(self, turns: Turns, body: tuple[Buffer, ...], held: object) -> None:
        self._turns = turns
        self._parts = [memoryview(part) for part in body]
        self._held: object | None = held
        self._position = 0  # in the first part
        self._sink: Sink | None = None
        self._waiting = False  # for its turn

    def open(self, sink: Sink, now_s: float) -> None:
        self._sink = sink
        self.drained()

    def drained(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._turns.ask(self._write_on)

    def tick(self, now_s: float) -> None:
        """A body needs no sign of life."""

    def finish(self) -> None:
        """A body has one end. A client that reads gets all of it."""

    def cancel(self) -> None:
        self._sink = self._held = None
        self._parts = []

    def _write_on(self) -> None:
        self._waiting = False
        sink = self._sink
        if sink is None or sink.blocked:
            return
        if not self._parts:
            self.cancel()
            sink.end()
            return
        part, start = self._parts[0], self._position
        self._position = start + BODY_PIECE_BYTES
        if self._position >= len(part):
            del self._parts[0]
            self._position = 0
        sink.write(Frame(bytes(part[start : start + BODY_PIECE_BYTES])))
        self.drained()
