"""A server that only writes and syncs what it receives, then answers: what a durable append over one connection costs
without parsing, deciding and keeping anything. `python -m bench.syncing_server DIRECTORY` serves one connection at a
time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.servers import Server, running
from headwater.store.embedded.journal import BATCH_OVERHEAD_BYTES

FILE_BYTES = 16 << 20
_ANSWER = b"HTTP/1.1 204 No Content\r\nstream-next-offset: %033d\r\n\r\n" % 0


class SyncedFile:
    """A file whose blocks are allocated, as the journal does with its segments."""

    def __init__(self, directory: str) -> None:
        self._file = tempfile.NamedTemporaryFile(dir=directory)  # noqa: SIM115 - closed with the process
        self._position = 0
        os.pwrite(self._file.fileno(), bytes(FILE_BYTES), 0)
        os.fsync(self._file.fileno())

    def append(self, data: bytes) -> None:
        """Write and sync as many bytes as a batch with this append has."""
        if self._position + len(data) + BATCH_OVERHEAD_BYTES > FILE_BYTES:
            self._position = 0
        self._position += os.pwrite(self._file.fileno(), data + bytes(BATCH_OVERHEAD_BYTES), self._position)
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _serve(directory: str) -> None:
    file = SyncedFile(directory)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"syncing server at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while received := connection.recv(65_536):
                    file.append(received[received.index(b"\r\n\r\n") + 4 :])
                    connection.send(_ANSWER)


@contextlib.contextmanager
def syncing_server() -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd()) as directory,
        running("a server that only syncs", [sys.executable, "-m", "bench.syncing_server", directory]) as server,
    ):
        yield server


if __name__ == "__main__":
    _serve(sys.argv[1])
