"""Which connections are let in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from headwater.errors import OverloadedError
from headwater.limits import CONNECTIONS_SPARED_MAX, Limits
from headwater.server.dispatch import Dispatcher
from headwater.server.memory import MemoryMark
from headwater.server.native.connection import Connection
from headwater.server.native.shared import Shared
from headwater.server.observing import Observer


class Peer:
    peer = "127.0.0.1"


def test_without_memory_a_few_connections_are_let_in_for_health_checks() -> None:
    memory = SimpleNamespace(exhausted=False, reason="no memory")
    dispatcher: Any = SimpleNamespace(service=SimpleNamespace(observer=Observer()))
    shared = Shared(cast(Dispatcher, dispatcher), Limits(), cast(MemoryMark, memory))

    def come() -> tuple[Connection, bool]:
        connection = cast(Connection, Peer())
        shared.add(connection)
        return connection, not isinstance(shared.connection_refusal(connection), OverloadedError)

    assert all(came for _, came in (come() for _ in range(3 * CONNECTIONS_SPARED_MAX)))
    memory.exhausted = True
    let_in = [connection for connection, came in (come() for _ in range(3 * CONNECTIONS_SPARED_MAX)) if came]
    assert len(let_in) == CONNECTIONS_SPARED_MAX
    shared.forget(let_in[0])
    assert [come()[1], come()[1]] == [True, False]
    memory.exhausted = False
    assert come()[1]
    memory.exhausted = True
    assert come()[1]
