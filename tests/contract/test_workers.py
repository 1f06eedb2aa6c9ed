"""Several server processes on one port, over one database."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bench.servers import Server, headwater

from headwater.server.supervising import reserve
from tests.certificates import make_pair
from tests.contract.native.test_activation import first_line, listening, passed
from tests.edges import free_port
from tests.postgres import postgres
from tests.waiting import LIMIT_S, wait_until

TEXT = {"content-type": "text/plain"}


@contextlib.contextmanager
def workers(count: int, *options: str) -> Iterator[Server]:
    with headwater("--store", postgres().new_database(), "--workers", str(count), *options) as server:
        yield server


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def answering(root: str, verify: bool = True) -> str:
    """The number of the process that answers on a new connection."""
    text = httpx.get(f"{root}/metrics", verify=verify, timeout=LIMIT_S).text
    match = re.search(r'headwater_info\{[^}]*worker="(\d+)"', text)
    assert match is not None
    return match[1]


def see_all(root: str, count: int) -> None:
    seen: set[str] = set()

    def is_complete() -> bool:
        seen.add(answering(root))
        return seen == {str(number) for number in range(1, count + 1)}

    wait_until(is_complete, "every process answers", pause_max_s=0.01)


def test_processes_share_a_port_and_a_store() -> None:
    with workers(2) as server:
        root = f"http://127.0.0.1:{server.port}"
        see_all(root, 2)
        assert httpx.put(f"{server.url}/a", headers=TEXT, content="one").status_code == 201
        for _ in range(10):  # each on a connection of its own
            assert httpx.get(f"{server.url}/a", params={"offset": "-1"}).text == "one"
        before = children(server.pid)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(children(server.pid)) == 2 and before[0] not in children(server.pid), "it starts again")
        see_all(root, 2)
        with pytest.raises(OSError, match="another program listens on port"):
            reserve("127.0.0.1", server.port)


@pytest.mark.slow
def test_the_end_of_the_supervisor_ends_all() -> None:
    with workers(2) as server:
        processes = children(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not any(is_running(pid) for pid in processes), "they end with it")


def is_running(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


@pytest.mark.slow
def test_a_stop_drains_all_and_exits_with_0() -> None:
    url = postgres().new_database()
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", "--store", url, "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert match is not None
        with httpx.stream(
            "GET", f"http://127.0.0.1:{match[1]}/v1/stream/none", params={"offset": "-1"}, timeout=LIMIT_S
        ) as answer:
            assert answer.status_code == 404
        process.send_signal(signal.SIGHUP)  # files are loaded again; nothing ends
        assert httpx.get(f"http://127.0.0.1:{match[1]}/healthz", timeout=LIMIT_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, "Traceback" in errors) == (0, False), errors


@pytest.mark.slow
def test_sockets_of_systemd_are_shared() -> None:
    with listening() as sock, passed(sock, "--store", postgres().new_database(), "--workers", "2") as process:
        port = sock.getsockname()[1]
        assert f"http://127.0.0.1:{port}/" in first_line(process)
        see_all(f"http://127.0.0.1:{port}", 2)


@pytest.mark.slow
def test_tls(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    with workers(2, "--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key)) as server:
        assert answering(f"https://127.0.0.1:{server.port}", verify=False) in ("1", "2")


@pytest.mark.parametrize("store", [("--memory",), ("--data-dir", "nowhere")])
def test_a_store_that_belongs_to_one_process_is_refused(store: tuple[str, ...]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "headwater", "serve", *store, "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (ran.returncode, "belongs to one process" in ran.stderr) == (2, True), ran.stderr
    assert not Path("nowhere").exists()


@pytest.mark.slow
def test_an_error_of_all_is_that_of_the_command() -> None:
    url = f"postgresql://headwater@127.0.0.1:{free_port()}/none"
    ran = subprocess.run(
        [sys.executable, "-m", "headwater", "serve", "--port", "0", "--store", url, "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr, ran.stderr
    assert "no connection to PostgreSQL" in ran.stderr


def test_reserved_addresses_are_free_for_servers() -> None:
    address = reserve("127.0.0.1", 0)
    with contextlib.closing(address), socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", address.port))
        other.listen()
