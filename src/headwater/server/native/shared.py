"""What the connections of one edge share."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError, OverloadedError, StoppingError, TooManyRequestsError
from headwater.limits import AHEAD_SHARE, CONNECTIONS_SPARED_MAX, RECEIVE_BYTES, RETRY_AFTER_S, Limits
from headwater.server.budgets import Budget
from headwater.server.dispatch import Dispatcher
from headwater.server.forwarding import counted_address
from headwater.server.http import Request
from headwater.server.memory import MemoryMark
from headwater.server.native.parsing import KnownHeads
from headwater.server.native.states import ConnectionClock
from headwater.server.native.turns import Turn
from headwater.server.native.writing import ResponseHeads
from headwater.server.observing.probes import PROBES
from headwater.server.turns import Turns

if TYPE_CHECKING:
    from headwater.server.native.connection import Connection


class Shared:
    def __init__(self, dispatcher: Dispatcher, limits: Limits, memory: MemoryMark | None = None) -> None:
        self.dispatcher = dispatcher
        self.limits = limits
        self.observer = dispatcher.service.observer
        self.observer.connections = self
        self.successes = self.observer.successes
        self.clock = ConnectionClock(limits)
        self.heads = ResponseHeads()
        self.known = KnownHeads()  # of requests
        self.accepted = 0  # connections, since the start
        self.requests = Budget(limits.request_bytes_in_flight_max)
        self.ahead = Budget(int(limits.request_bytes_in_flight_max * AHEAD_SHARE))  # a part of it, without bodies
        self.parsing = Turns()  # of connections that send many small pieces
        self.responses = Budget(limits.response_bytes_in_flight_max)
        self.received = memoryview(bytearray(RECEIVE_BYTES))
        self.connections: set[Connection] = set()
        self.refused: set[Connection] = set()  # those of them that were refused and are being closed
        self._spared: set[Connection] = set()  # admitted although memory was short
        self.one_lost = asyncio.Event()  # set whenever a connection is lost
        self.tls: ssl.SSLContext | None = None  # of new connections
        self.draining = False  # the server is stopping
        self.memory = memory
        self.turn = Turn(limits.request_wait_s_max)
        self._of_address: dict[str, int] = {}  # connections per address, if limited

    def add(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self.limits.connections_per_address_max and not self.dispatcher.trusts(connection.peer):
            key = counted_address(connection.peer)
            self._of_address[key] = self._of_address.get(key, 0) + 1

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._of_address and not self.dispatcher.trusts(connection.peer):
            key = counted_address(connection.peer)
            left = self._of_address.pop(key, 0) - 1
            if left > 0:
                self._of_address[key] = left
        self.refused.discard(connection)
        self._spared.discard(connection)
        self.one_lost.set()

    # Metrics

    @property
    def open(self) -> int:
        return len(self.connections)

    @property
    def request_bytes(self) -> int:
        return self.requests.held_bytes

    @property
    def unread_bytes(self) -> int:
        return self.responses.held_bytes

    def connection_refusal(self, connection: Connection) -> HeadwaterError | None:
        """The error for a new connection that cannot be served, or None. The connection is already counted."""
        most = self.limits.connections_max
        if len(self.connections) - len(self.refused) > most:
            return OverloadedError(f"{most} connections are open, and no more may be; try again shortly")
        if self.memory is not None and not self._has_room(connection, self.memory):
            return OverloadedError(self.memory.reason)
        each = self.limits.connections_per_address_max
        if each and self._of_address.get(counted_address(connection.peer), 0) > each:
            return TooManyRequestsError(
                f"{each} connections of this address are open, and no more may be (connections_per_address_max)",
                retry_after_s=RETRY_AFTER_S,
            )
        return None

    def _has_room(self, connection: Connection, memory: MemoryMark) -> bool:
        """Whether a new connection is accepted. If memory is exhausted a few are, so that health checks still get a
        response."""
        if not memory.exhausted:
            self._spared.clear()
            return True
        if len(self._spared) >= CONNECTIONS_SPARED_MAX:
            return False
        self._spared.add(connection)
        return True

    def check_serving(self, request: Request) -> None:
        """Refuse reads while clients leave too much unread."""
        if request.method == "GET" and request.path not in PROBES:  # others are small
            raise OverloadedError(f"clients have not read {self.responses.held_bytes} bytes; try again shortly")

    @property
    def is_short(self) -> bool:
        """Whether there is no memory for the bodies of requests."""
        return self.memory is not None and self.memory.short

    def stopping(self) -> HeadwaterError:
        return StoppingError("the server is stopping; try again shortly")

    def too_many_bytes(self) -> HeadwaterError:
        if self.is_short:
            return OverloadedError(self.memory.reason if self.memory is not None else "")
        full = self.requests if self.requests.exhausted else self.ahead
        return OverloadedError(
            f"{full.held_bytes} bytes of requests are waiting, and {full.bytes_max} may; try again shortly"
        )
