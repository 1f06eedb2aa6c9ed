"""The app behind every edge that can carry it, each as a process of its own."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.servers import Server, headwater, running

from tests.waiting import wait_until

AUTH = "HEADWATER_TEST_AUTH"  # where the apps find their auth file
LIMITS = "HEADWATER_TEST_LIMITS"  # and their limits

NATIVE, DURABLE = "native, in memory", "native, durable"
TOGETHER = "two servers over PostgreSQL, each gets every other request"
UVICORN, GRANIAN, MOUNTED = "uvicorn", "granian", "mounted in FastAPI"
# The quick tests run over the durable server alone; every edge carries the same handlers.
EDGES = (
    DURABLE,
    *(pytest.param(name, marks=pytest.mark.slow) for name in (NATIVE, UVICORN, GRANIAN, MOUNTED)),
)
# What holds for each server, such as metrics, is not tested there, nor what its proxy changes.
EDGES_OF_SHARED = (*EDGES, pytest.param(TOGETHER, marks=pytest.mark.slow))


# Below the ports that systems choose for clients and for servers on port 0. Otherwise another process could get the
# port before the server of a test listens on it, and the test would talk to that process.
_PORTS = range(20_000, 32_768)


def free_port() -> int:
    """A port that is not in use."""
    while True:
        port = secrets.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            return port


def memory_server(*options: str) -> contextlib.AbstractContextManager[Server]:
    """A process that accepts bodies of up to 1 MiB. Long-polls end after two seconds, unless the options say other."""
    return headwater("--memory", "--limit", "long_poll_s=2", "--limit", f"body_bytes_max={1 << 20}", *options)


@contextlib.contextmanager
def edge(name: str, auth: Path | None = None, **limits: float) -> Iterator[Server]:
    limits = {"long_poll_s": 5, "notify_retry_s": 0.1, **limits}
    if name in (NATIVE, DURABLE):
        with tempfile.TemporaryDirectory() as directory:
            # Small segments that are folded at once: reads come from the index as often as from memory.
            small = ("--limit", "segment_bytes=1000000", "--limit", "fold_idle_s=0.1")
            storage = ("--memory",) if name == NATIVE else ("--data-dir", f"{directory}/data", *small)
            guarded = () if auth is None else ("--auth", str(auth), "--allow-origin", "https://app.example")
            bounds = [word for key, value in limits.items() for word in ("--limit", f"{key}={value}")]
            with headwater(*storage, *guarded, *bounds) as server:
                yield server
        return
    if name == TOGETHER:
        guarded = () if auth is None else ("--auth", str(auth), "--allow-origin", "https://app.example")
        with together(
            *guarded, *(word for key, value in limits.items() for word in ("--limit", f"{key}={value}"))
        ) as one:
            yield one
        return
    port = free_port()
    app = "tests.asgi_apps:mounted" if name == MOUNTED else "tests.asgi_apps:app"
    if name == GRANIAN:
        command = ["granian", "--interface", "asgi", "--port", str(port), "--no-ws", app]
    else:
        # Node reuses a connection that uvicorn closes after 5 s without a request, and loses the request.
        command = ["uvicorn", app, "--port", str(port), "--log-level", "warning", "--timeout-keep-alive", "75"]
    # Neither prints its URL on standard output, so say it for them and wait until it is true.
    script = (
        f"import subprocess, sys; print('http://127.0.0.1:{port}', flush=True);"
        f"import os; os.environ |= { {LIMITS: json.dumps(limits), **({} if auth is None else {AUTH: str(auth)})}!r};"
        f"os.execv(sys.executable, [sys.executable, '-m', *{command!r}])"
    )
    with running(name, [sys.executable, "-c", script]) as server:
        wait_until(lambda: accepts(server), f"{name} accepts connections")
        yield server


@contextlib.contextmanager
def together(*options: str) -> Iterator[Server]:
    """Two servers that share a database, behind a proxy that sends each request to the other one than the last. Other
    tests need neither PostgreSQL nor a proxy."""
    from tests.postgres import postgres
    from tests.proxies import round_robin

    with contextlib.ExitStack() as stack:
        store = ("--store", postgres().new_database())
        servers = [stack.enter_context(headwater(*store, *options)) for _ in range(2)]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(round_robin(directory, [server.port for server in servers]))
        yield Server("two servers", "127.0.0.1", port, servers[0].pid)


def accepts(server: Server) -> bool:
    """Whether something listens on the port of a server."""
    with contextlib.suppress(OSError), socket.create_connection((server.host, server.port), 1):
        return True
    return False


def root_of(name: str, server: Server) -> str:
    mount = "/streams" if name == MOUNTED else ""
    return f"http://{server.host}:{server.port}{mount}/v1/stream"
