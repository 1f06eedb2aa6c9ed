"""One connection without a network: a transport that keeps what is written, and handlers that answer when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from headwater import limits
from headwater.limits import Limits
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Frame, Request, Respond, Response, Sink
from headwater.server.native.connection import Connection
from headwater.server.native.shared import Shared
from headwater.server.native.turns import Turn
from headwater.server.observing import Observer
from headwater.server.turns import Turns


class MemoryTransport:
    """As a transport of uvloop behaves; `taken` is what the client has read."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._high = 0
        self._paused = False
        self.unread = bytearray()
        self.taken = bytearray()
        self.reading = True
        self.eof = False
        self.closing = False

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def write(self, data: bytes) -> None:
        if self.eof:
            raise RuntimeError("cannot write after EOF")
        self.unread += data
        if len(self.unread) > self._high and not self._paused:
            self._paused = True
            self._rig.connection.pause_writing()

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.write(b"".join(parts))

    def drain(self) -> None:
        """The client reads everything."""
        self.taken += self.unread
        self.unread.clear()
        if self._paused:
            self._paused = False
            self._rig.connection.resume_writing()
        if self.closing:
            self._rig.lose()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        if not self.reading:
            raise RuntimeError("already paused")
        self.reading = False

    def resume_reading(self) -> None:
        if self.reading:
            raise RuntimeError("not paused")
        self.reading = True

    def close(self) -> None:
        self.closing = True
        if not self.unread:
            self._rig.lose()

    def abort(self) -> None:
        self._rig.lose()


class _Feed:
    """Stands in for a `EventFeed`."""

    def open(self, sink: Sink, now_s: float) -> None:
        self._sink = sink
        sink.write(Frame(b"event: data\n\n"))

    def drained(self) -> None:
        pass

    def tick(self, now_s: float) -> None:
        if not self._sink.blocked:
            self._sink.write(Frame(b": keep-alive\n\n"))

    def finish(self) -> None:
        self._sink.end()

    def cancel(self) -> None:
        pass


class Rig:
    def __init__(self, limits: Limits | None = None, beside: Rig | None = None) -> None:
        self.requests: list[Request] = []
        self.lost = False
        self.ended = False  # the client has closed its sending side
        self._respond: Respond | None = None
        self.service = SimpleNamespace(observer=Observer())
        shared = Shared(cast(Dispatcher, self), limits or Limits()) if beside is None else beside.shared
        self.shared: Shared = shared
        self.shared.turn = Turn(1.0, soon=lambda _: None)  # there is no loop
        self.shared.parsing = cast(Turns, self)
        self._turns: list[Callable[[], None]] = []  # of the connection, to parse on
        self.refuse_heads_with: Response | None = None
        self.shared.heads.renew_date()
        self.connection = Connection(self.shared)
        self.transport = MemoryTransport(self)
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))

    def another(self) -> Rig:
        """Another connection of the same edge."""
        return Rig(beside=self)

    # As handlers

    engine: Any = None

    def check_head(self, request: Request) -> Response | None:
        return self.refuse_heads_with

    def body_bytes_max(self, head: Request) -> int:
        return self.shared.limits.body_bytes_max

    def dispatch(self, request: Request, respond: Respond) -> None:
        self.requests.append(request)
        if request.method == "GET":
            respond(Response(404))
        else:
            self._respond = respond

    def respond(self, response: Response) -> None:
        respond, self._respond = self._respond, None
        if respond is not None:
            respond(response)

    def respond_with_feed(self) -> None:
        self.respond(Response(200, feed=_Feed()))

    def end_feed(self) -> None:
        if self.connection._feed is not None:
            self.connection._feed.finish()

    # As client

    def send(self, data: bytes) -> None:
        if self.transport.reading and not (self.lost or self.ended or self.transport.closing):
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        """As a transport does: into the connection's buffer, as much as fits."""
        for start in range(0, len(data), limits.RECEIVE_BYTES):
            piece = data[start : start + limits.RECEIVE_BYTES]
            self.connection.get_buffer(len(piece))[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))

    def end_input(self) -> None:
        if self.lost or self.ended or self.transport.closing:
            return
        self.ended = True
        if not self.connection.eof_received():
            self.transport.close()

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.transport.unread.clear()
            self.connection.connection_lost(None)

    # As edge

    def drain(self) -> None:
        self.shared.draining = True
        for each in tuple(self.shared.connections):
            each.stop()

    def close_idle(self) -> None:
        for each in tuple(self.shared.connections):
            each.close_when_idle()

    def give_up(self) -> None:
        for each in tuple(self.shared.connections):
            each.give_up()

    # As turns

    def ask(self, parse_on: Callable[[], None]) -> None:
        self._turns.append(parse_on)

    def run_turns(self) -> int:
        """Give the connection its turns. Returns how many it needed."""
        count = 0
        while self._turns:
            self._turns.pop()()
            count += 1
        return count

    # As timer

    def pass_time(self, seconds: float) -> None:
        self.shared.clock.now_s += seconds
        for each in tuple(self.shared.connections):
            each.tick(self.shared.clock.now_s)
