"""A server on a socket that another process keeps, as systemd does."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.client import Client, Retry
from headwater.errors import OptionError
from headwater.server.activation import address_of, inherited_sockets
from tests.waiting import LIMIT_S

# The number of the process is known to the shell only, which then becomes the server.
_SHELL = ("/bin/sh", "-c", 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "sh")


@contextlib.contextmanager
def passed(sock: socket.socket, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*_SHELL, sys.executable, "-m", "headwater", "serve", *options]
    with subprocess.Popen(
        command,
        pass_fds=(3,),
        preexec_fn=lambda: os.dup2(sock.fileno(), 3),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@contextlib.contextmanager
def listening(address: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.create_server((address, 0)) as sock:
        yield sock


@pytest.mark.slow
def test_a_restart_refuses_no_connection(tmp_path: Path) -> None:
    options = ("--data-dir", str(tmp_path / "data"), "--port", "1")  # the port is not used
    with listening() as sock, contextlib.ExitStack() as stack:
        port = sock.getsockname()[1]
        first = stack.enter_context(passed(sock, *options))
        assert f"http://127.0.0.1:{port}/" in first_line(first)
        once = Retry(attempts=1, patience_s=0)
        client = stack.enter_context(Client(f"http://127.0.0.1:{port}", retry=once))
        stream = client.stream("a")
        stream.create(content_type="text/plain")
        stream.append("before ")
        first.terminate()
        assert first.wait(LIMIT_S) == 0
        waiting = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
        waiting.sendall(b"POST /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n")
        waiting.sendall(b"content-length: 4\r\n\r\nwait")
        second = stack.enter_context(passed(sock, *options))
        assert f":{port}/" in first_line(second)
        assert waiting.recv(1000).startswith(b"HTTP/1.1 204 ")
        stream.append("ed")
        assert "".join(stream.read().all()) == "before waited"


@pytest.mark.slow
def test_a_socket_for_other_machines_needs_an_auth_file() -> None:
    with listening("0.0.0.0") as sock, passed(sock, "--memory") as process:
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 2
        assert "can be reached from other machines" in errors


def test_sockets_for_another_process_are_not_taken() -> None:
    environment = {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "a"}
    assert inherited_sockets(environment) == []
    assert environment == {}


@pytest.mark.parametrize("count", ["", "x"])
def test_an_invalid_number_of_sockets(count: str) -> None:
    with pytest.raises(OptionError, match="LISTEN_FDS"):
        inherited_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count})


def test_the_address_of_several_sockets_is_one_that_others_can_reach() -> None:
    with listening() as first, listening("0.0.0.0") as second:
        assert address_of([first]) == first.getsockname()
        assert address_of([first, second]) == second.getsockname()
