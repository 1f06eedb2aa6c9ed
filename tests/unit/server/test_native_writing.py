"""The writer of responses: which clients read too slowly."""

from __future__ import annotations

import itertools
import socket
from types import SimpleNamespace
from typing import Any

from headwater.limits import Limits
from headwater.server.budgets import Budget
from headwater.server.native.writing import ResponseHeads, ResponseWriter
from headwater.server.observing import Observer
from tests.waiting import wait_until


class FullTransport:
    """A transport whose own buffer stays full while the kernel's is read."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def get_extra_info(self, name: str) -> Any:
        return self._sock if name == "socket" else None

    def get_write_buffer_size(self) -> int:
        return 1000

    def write(self, data: bytes) -> None: ...


def test_a_client_that_reads_from_the_kernel_is_not_stalled() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        with listener.accept()[0] as accepted:
            accepted.setblocking(False)
            sent = 0
            try:
                while True:
                    sent += accepted.send(bytes(65536))
            except BlockingIOError:
                pass
            limits = Limits(write_stall_s=10)
            outlet = SimpleNamespace(
                limits=limits, heads=ResponseHeads(), responses=Budget(10_000), observer=Observer()
            )
            writer = ResponseWriter(FullTransport(accepted), outlet, lambda: None)  # type: ignore[arg-type]
            writer.pause(100.0)
            assert not writer.stalled(109.0)
            client.recv(sent // 2, socket.MSG_WAITALL)
            wait_until(lambda: not writer.stalled(111.0), "the kernel has noticed what was read")
            later_s = itertools.count(200.0, 100.0)
            wait_until(lambda: writer.stalled(next(later_s)), "nothing was read since")
