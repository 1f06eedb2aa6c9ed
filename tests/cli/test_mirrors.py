"""`headwater follow --into` and `headwater table notify`, as a script and a terminal see them."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from bench.servers import Server, headwater

from headwater.cli import failing
from headwater.client import Client, Put, Table
from tests.commands import run_command
from tests.edges import free_port
from tests.waiting import LIMIT_S

HEADWATER = Path(sys.executable).parent / "headwater"


@pytest.fixture(scope="module")
def remote() -> Iterator[Server]:
    with headwater("--memory") as running:
        yield running


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with headwater("--data-dir", str(tmp_path_factory.mktemp("local") / "data")) as running:
        yield running


@pytest.fixture
def source(remote: Server) -> Iterator[Table]:
    with Client(base(remote)) as client:
        table = client.table(uuid.uuid4().hex)
        table.create(schema="price", version=2)
        yield table


def base(server: Server) -> str:
    return f"http://{server.host}:{server.port}"


def rows(server: Server, name: str) -> bytes:
    return httpx.get(f"{base(server)}/v1/table/{name}", params={"timeout": "0"}).raise_for_status().content


def surl_rows(source: Table) -> bytes:
    return httpx.get(source.url, params={"timeout": "0"}).content


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "HEADWATER_URL": base(server)}


class Ran(NamedTuple):
    """The output of a command."""

    stdout: str
    stderr: str


def run(server: Server, *arguments: str, expect: int = 0) -> Ran:
    ran = run_command(*arguments, environment=environment(server))
    assert ran.returncode == expect, ran.stderr
    assert b"Traceback" not in ran.stderr
    return Ran(ran.stdout.decode(), ran.stderr.decode())


def test_a_mirror_in_plain_lines_and_in_json(source: Table, local: Server) -> None:
    name = uuid.uuid4().hex
    source.append_all([Put(f"k{number}", "r") for number in range(20_000)])
    source.close()
    lines = run(local, "follow", source.url, "--into", name).stdout.splitlines()
    assert rows(local, name) == surl_rows(source)
    assert lines[0].startswith(f"{name}: catching up, row ")
    assert lines[-1].startswith(f"{name}: closed, row 20,000, 20,000 new at ")
    assert lines[-1].endswith(" rows/s, 0 behind")
    again = [
        json.loads(line) for line in run(local, "follow", source.url, "--into", name, "--json").stdout.splitlines()
    ]
    assert again[-1] == {
        "table": name,
        "state": "closed",
        "last_seqno": 20_000,
        "rows": 0,
        "rows_per_s": 0.0,
        "lag_rows": 0,
    }


@pytest.mark.slow
def test_kills_at_any_moment_double_and_lose_nothing(source: Table, local: Server) -> None:
    """The command is killed again and again while rows come, and once while two of it run."""
    name, dice = uuid.uuid4().hex, random.Random(7)
    done = threading.Event()

    def write() -> None:
        for batch in range(400):
            source.append([Put(f"{batch}-{number}", "r" * dice.randrange(300)) for number in range(50)])
            time.sleep(0.01)  # a writer that takes longer than several kills; a slow machine has more of them
        source.close()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    command = [str(HEADWATER), "follow", source.url, "--into", name]
    kills = 0
    while not done.is_set():
        followers = [
            subprocess.Popen(command, env=environment(local), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(1 + kills % 2)
        ]
        time.sleep(0.4 + dice.random())  # killed at any moment
        for follower in followers:
            follower.kill()
            follower.wait()
        kills += 1
    writer.join()
    assert kills > 2
    run(local, "follow", source.url, "--into", name)
    assert rows(local, name) == surl_rows(source)
    assert rows(local, name).count(b"\n") == 20_000


@pytest.mark.usefixtures("default_signals")
def test_a_line_on_a_terminal_and_ctrl_c(source: Table, local: Server) -> None:
    name = uuid.uuid4().hex
    source.append([Put("a", "1"), Put("b", "2")])
    ours, theirs = pty.openpty()
    with (
        subprocess.Popen(
            [HEADWATER, "follow", source.url, "--into", name],
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**environment(local), "TERM": "xterm", "COLUMNS": "200"},
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)
        os.close(theirs)
        shown = b""
        while b"up to date, row 2" not in shown:
            shown += os.read(ours, 100_000)
        source.append([Put("c", "3")])
        while b"row 3, 3 new" not in shown:
            shown += os.read(ours, 100_000)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(LIMIT_S) == failing.INTERRUPTED
    os.close(ours)
    assert b"stopped after row 3; the same command continues there" in said


def test_what_cannot_be_mirrored(source: Table, local: Server) -> None:
    name = uuid.uuid4().hex
    run(local, "table", "create", name)
    ran = run(local, "follow", source.url, "--into", name, expect=failing.CONFLICT)
    assert f"table '{name}' exists and is not a mirror" in ran.stderr
    run(local, "follow", source.url, "--into", f"{name}-2", "--since-id", "0", expect=failing.WRONG_CALL)
    missing = run(local, "follow", f"{source.url}-missing", "--into", f"{name}-3", expect=failing.NOT_FOUND)
    assert "does not exist" in missing.stderr
    nobody = f"http://127.0.0.1:{free_port()}"
    for arguments in (
        ("follow", source.url, "--into", name, "--url", nobody),
        ("follow", f"{nobody}/t", "--into", f"{name}-4"),
    ):
        ran = run(local, *arguments, expect=failing.UNAVAILABLE)
        assert nobody in ran.stderr.splitlines()[-1]


def test_the_nurls_of_a_table(source: Table, remote: Server) -> None:
    name, nurl = source.url.rpartition("/")[2], f"http://127.0.0.1:{free_port()}/nurl"
    assert run(remote, "table", "notify", name).stdout.split() == ["event", "url", "since"]
    assert run(remote, "table", "notify", name, "--add", nurl).stdout == f"added {nurl}\n"
    added = run(remote, "table", "notify", name, "--add", f"{nurl}/2", "--event", "changed", "--json").stdout
    assert json.loads(added) == {"url": source.url, "nurl": f"{nurl}/2", "added": True}
    shown = run(remote, "table", "notify", name, "--json").stdout.splitlines()
    assert [(one["event"], one["url"]) for one in map(json.loads, shown)] == [("rows", nurl), ("changed", f"{nurl}/2")]
    assert nurl in run(remote, "table", "notify", name).stdout
    assert run(remote, "table", "notify", name, "--remove", nurl).stdout == f"removed {nurl}\n"
    assert [one.url for one in source.nurls()] == [f"{nurl}/2"]
    run(remote, "table", "notify", name, "--add", nurl, "--remove", nurl, expect=failing.WRONG_CALL)
    run(remote, "table", "notify", name, "--event", "rows", expect=failing.WRONG_CALL)
    run(remote, "table", "notify", name, "--add", "http://10.0.0.1/", expect=failing.REFUSED)
    run(remote, "table", "notify", f"{name}-missing", expect=failing.NOT_FOUND)
