"""`headwater top` on a terminal and for scripts, against a server that fails for a while and names that are hostile."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time

import pytest
from rich.cells import cell_len

from headwater.cli import failing
from tests.cli.stubs import HEADWATER, Answer, on_terminal, stub_server
from tests.edges import free_port
from tests.waiting import LIMIT_S

HOSTILE = "a[/x][red]\x1b[2J\x9b31m\n\u202e"
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def look(**more: object) -> Answer:
    stream = {"kind": "stream", "name": HOSTILE, "bytes": 5, "bytes_per_s": 1.5, "appends_per_s": 2.5, "readers": 1}
    report = {"at_ms": int(time.time() * 1000), "version": "9.9", "streams": [stream], **more}
    return 200, {"content-type": "application/json"}, json.dumps(report).encode()


def test_once_prints_a_board_and_ends() -> None:
    with stub_server(lambda method, path: look(full=HOSTILE)) as server:
        code, got = on_terminal(80, "top", "--once", "--by", "size", "--limit", "7", url=server.url)
        assert code == 0, got
        assert {path for _, path, _ in server.seen} == {"/v1/stream/__ds/top?by=size&limit=7"}
    assert "\nSTREAM  " in got
    for line in got.splitlines():
        assert line.isprintable()
        assert cell_len(line) <= 80


def test_json_is_what_the_server_answers() -> None:
    with stub_server(lambda method, path: look(new=1)) as server:
        ended = subprocess.run(
            [HEADWATER, "top", "--once", "--json", "--url", server.url], capture_output=True, timeout=LIMIT_S
        )
    assert json.loads(ended.stdout)["new"] == 1


def test_a_server_that_does_not_run_or_does_not_know_it_is_one_line() -> None:
    def refused(method: str, path: str) -> Answer:
        return 404, {"content-type": "text/plain"}, b"Not found"

    with stub_server(refused) as server:
        code, got = on_terminal(80, "top", url=server.url)
    assert (code, got.count("\n")) == (failing.NOT_FOUND, 1), got
    code, got = on_terminal(80, "top", url=f"http://127.0.0.1:{free_port()}")
    assert (code, got.count("\n")) == (failing.UNAVAILABLE, 1), got


@pytest.mark.parametrize("command", [["top", "--once"], ["usage"]])
def test_an_answer_that_is_nested_too_deeply_is_one_line(command: list[str]) -> None:
    body = b'{"prefixes":[{"new":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    with stub_server(lambda method, path: (200, {"content-type": "application/json"}, body)) as server:
        code, got = on_terminal(200, *command, url=server.url)
    assert (code, got.count("\n")) == (failing.FAILED, 1), got
    assert f"the server does not support headwater {command[0]}: JSON is nested too deeply" in got


@pytest.mark.usefixtures("default_signals")
def test_it_goes_on_after_a_failure_and_ends_with_ctrl_c() -> None:
    requests = 0

    def answer(method: str, path: str) -> Answer:
        nonlocal requests
        requests += 1
        return (503, {}, b"") if requests == 3 else look()

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with stub_server(answer) as server:
        process = subprocess.Popen(
            [HEADWATER, "top", "--every", "0.5", "--url", server.url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        got = ""
        while "trying again" not in got or got.rpartition("trying again")[2].count("STREAM") < 2:
            got += os.read(ours, 65_536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    os.close(ours)
    left = STYLE.sub("", got.replace("\x1b[2J", "CLEARED"))
    assert "Headwater 9.9" in left
    assert "CLEARED" not in left
    assert "\x9b" not in left
    assert "\u202e" not in left
