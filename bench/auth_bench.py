"""The cost of access control for an append: servers with and without it, loaded alternately in one run.

In addition to the rate, the processor time of an append is measured, which depends less on other work of the machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import tempfile
from pathlib import Path

import uvloop

from bench.load import append_load, request
from bench.report import Row
from bench.server_bench import BODY, Bench
from bench.servers import Server, headwater
from headwater.server.auth.editing import add_token

PAIRS = 41  # many short pairs, so that the machine is in the same state for both runs of a pair
PART = 0.1  # of the seconds of a load, for each
CONNECTIONS = 64
NAMES = [f"bench/{number}" for number in range(CONNECTIONS)]
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def run_auth(bench: Bench) -> None:
    for what in ("in memory", "durable"):
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as servers:
            file = Path(directory, "auth.toml")
            token, _ = add_token(file, "bench", ["append:bench/**", "create:bench/**"], None)
            kept = [
                ("--memory",) if what == "in memory" else ("--data-dir", f"{directory}/{name}")
                for name in ("open", "guarded")
            ]
            open_ = servers.enter_context(headwater(*kept[0]))
            guarded = servers.enter_context(headwater(*kept[1], "--auth", str(file)))
            _compare(bench, what, {open_: "", guarded: f"authorization: Bearer {token}\r\n"})


def _compare(bench: Bench, what: str, servers: dict[Server, str]) -> None:
    for server, headers in servers.items():
        _create(server, headers)
    rates: dict[Server, list[float]] = {server: [] for server in servers}
    costs: dict[Server, list[float]] = {server: [] for server in servers}
    for turn in range(PAIRS):
        for server in list(servers)[:: 1 if turn % 2 else -1]:
            before_s = processor_s(server)
            load = append_load(server, [[name] for name in NAMES], BODY, PART * bench.seconds, headers=servers[server])
            done = uvloop.run(load)
            rates[server].append(done.per_second)
            costs[server].append((processor_s(server) - before_s) / done.count * 1e6)
    open_, guarded = servers
    ratio = statistics.median(a / b for a, b in zip(rates[guarded], rates[open_], strict=True))
    cost = statistics.median(a / b for a, b in zip(costs[guarded], costs[open_], strict=True))
    for server, name, note in (
        (open_, "without auth", f"{statistics.median(costs[open_]):.1f} µs of processor each"),
        (guarded, "with auth", f"{statistics.median(costs[guarded]):.1f} µs of processor each, {cost:.3f} x"),
    ):
        value = statistics.median(rates[server])
        bench.note(
            Row(
                f"appends, {CONNECTIONS} connections, {what}",
                name,
                value,
                "appends/s",
                note=note,
                ratio=ratio if server is guarded else None,
                goal="at least 0.95" if server is guarded else "",
            )
        )


def _create(server: Server, headers: str) -> None:
    with socket.create_connection((server.host, server.port)) as sock:
        for name in NAMES:
            sock.sendall(request("PUT", server, name, headers=headers))
            answer = sock.recv(1 << 16)
            if not answer.startswith(b"HTTP/1.1 201"):
                raise RuntimeError(f"not created: {answer[:200]!r}")


def processor_s(server: Server) -> float:
    """The processor time that a server has used, in all its threads."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S
