"""The script of docs/stp.md that follows a table with curl: resuming, duplicates, cut lines, changed tables."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.table_servers import head, hostile_server, lines, table_server
from tests.waiting import LIMIT_S, PROGRAM_LIMIT_S, wait_for

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stp.md"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    match = re.search(r"^cat > follow.sh <<'END'\n(.*?)^END$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None
    path = tmp_path / "follow.sh"
    path.write_text(match[1])
    return path


@contextlib.contextmanager
def following(script: Path, surl: str, file: Path, token: str = "") -> Iterator[subprocess.Popen[str]]:
    """The script in a process group of its own, which is killed."""
    process = subprocess.Popen(
        ["bash", str(script), surl, str(file)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TOKEN": token},
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def content_of(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def test_it_goes_on_where_it_was_killed(script: Path, tmp_path: Path) -> None:
    file = tmp_path / "prices.tsv"
    with table_server() as server:
        server.put("prices", "+ a 1", "+ b two words", "- a")
        surl, stored = f"{server.url}/v1/table/prices", server.tables["prices"].rows
        with following(script, surl, file):
            wait_for(lambda: content_of(file), b"".join(stored))
            server.put("prices", "+ c 3")
            wait_for(lambda: content_of(file), b"".join(stored))
        server.put("prices", "+ d 4")
        with file.open("ab") as cut:
            cut.write(stored[4][:9])  # as a crash of the machine may leave it
        with following(script, surl, file):
            wait_for(lambda: content_of(file), b"".join(stored))


def test_duplicates_and_lost_connections_are_harmless(script: Path, tmp_path: Path) -> None:
    file = tmp_path / "prices.tsv"
    answers = [
        head() + lines(1, 2) + lines(3)[:-4],  # cut off
        head("503 Busy") + b"no rows\n",
        head() + lines(1, 2, 2, 3),
        head() + lines(2, 3, 7),
    ]

    def answer(number: int, path: str) -> Iterator[bytes]:
        yield answers[number] if number < len(answers) else head()

    with hostile_server(answer) as server, following(script, server.url, file):
        wait_for(lambda: content_of(file), lines(1, 2, 3, 7))
        assert server.seen[:4] == [f"/?since_id={since}" for since in (0, 1, 1, 2)]


def test_a_table_that_was_created_again_is_noticed(script: Path, tmp_path: Path) -> None:
    file = tmp_path / "prices.tsv"
    file.write_bytes(lines(1, 2))

    def answer(number: int, path: str) -> Iterator[bytes]:
        yield head() + lines(2, 3, record="other")

    with hostile_server(answer) as server, following(script, server.url, file) as process:
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "row 2 is not the row that was read before" in said
    assert file.read_bytes() == lines(1, 2)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (head("404 Not Found"), "check the SURL"),
        (head("401 Unauthorized"), "TOKEN"),
        (head(content_type="text/html") + b"<html>\n", "not a row: <html>"),
        (head() + b"x[$(touch /dev/null)]\tt\t+\tk\tr\n", "not a row"),
        (head() + lines(1, 3, 2), "row 2 came after row 3"),
    ],
)
def test_a_wrong_surl_and_what_is_not_a_table_end_it(script: Path, tmp_path: Path, answer: bytes, reason: str) -> None:
    with (
        hostile_server(lambda *_: iter([answer])) as server,
        following(script, server.url, tmp_path / "prices.tsv") as process,
    ):
        _, said = process.communicate(timeout=PROGRAM_LIMIT_S)
    assert process.returncode == 1
    assert reason in said


def test_a_token_is_sent_and_empty_lines_are_skipped(script: Path, tmp_path: Path) -> None:
    file, sent = tmp_path / "prices.tsv", []

    class Table(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(self.headers["authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(lines(1) + b"\n" + lines(2))

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Table) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with following(script, f"http://127.0.0.1:{server.server_port}/t", file, token="secret"):
            wait_for(lambda: content_of(file), lines(1, 2))
        server.shutdown()
    assert sent[0] == "Bearer secret"
