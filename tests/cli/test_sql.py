"""`headwater sql` as a script and as a person sees it: formats, errors, exit codes, --follow and the prompt."""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from bench.servers import Server

from headwater.cli import failing
from headwater.client import Client, Put
from tests.cli.test_streams import run
from tests.edges import memory_server
from tests.waiting import LIMIT_S, wait_until

READ_S = 0.1  # how long to wait for output before the condition is checked again
MESSAGES = [
    {"n": 1, "text": 'a "b", ü', "tree": {"x": [1]}, "part": 0.5},
    {"n": 2**60, "text": "line\nend\x1b[2J", "tree": None, "part": None},
]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def path(client: Client) -> str:
    path = f"sql/{uuid.uuid4().hex}"
    client.stream(path).create(messages=MESSAGES)
    return path


def test_a_table_for_people(server: Server, path: str) -> None:
    out = run(server, "sql", f"SELECT n, text, part FROM '{path}'").stdout.decode()
    assert out.splitlines() == [
        f"{'n':>19}  {'text':<18}  part",
        f"{1:>19}  " + 'a "b", ü'.ljust(18) + "   0.5",
        f"{2**60:>19}  " + r"line\nend\u001b[2J".ljust(18) + "     -",
    ]
    cut = run(server, "sql", f"SELECT n FROM '{path}'", "--rows", "1")
    assert cut.stdout.split() == [b"n", b"1"]
    assert b"only the first 1 rows are shown" in cut.stderr
    assert b"UNNEST" in run(server, "sql", f"EXPLAIN SELECT n FROM '{path}'").stdout.upper()


def test_formats_for_programs(server: Server, path: str, tmp_path: Path) -> None:
    query = f"SELECT n, text, tree, part, sum(n) OVER () AS total FROM '{path}' ORDER BY n"
    lines = run(server, "sql", query, "--format", "json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{**message, "total": 2**60 + 1} for message in MESSAGES]
    rows = list(csv.DictReader(io.StringIO(run(server, "sql", query, "-f", "csv").stdout.decode(), newline="")))
    assert [row["text"] for row in rows] == [message["text"] for message in MESSAGES]
    assert rows[0]["total"] == str(2**60 + 1)
    table = pa.ipc.open_stream(run(server, "sql", query, "-f", "arrow").stdout).read_all()
    assert table["n"].to_pylist() == [1, 2**60]
    file = tmp_path / "out.parquet"
    assert run(server, "sql", query, "--format", "parquet", "--output", str(file)).stdout == b""
    assert pa.parquet.read_table(file).equals(table)
    run(server, "sql", query, "--output", str(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text().count("\n") == 3
    assert json.loads(run(server, "sql", "-f", "json", stdin=f"SELECT count(*) AS n\nFROM '{path}';\n".encode()).stdout)


@pytest.mark.parametrize(
    ("query", "code", "wording"),
    [
        ("SELEC 1", failing.WRONG_CALL, b'headwater: syntax error at or near "SELEC"'),
        ("FROM 'no/such'", failing.WRONG_CALL, b"there is no stream, table or file 'no/such'"),
        ("SELECT nothing FROM (SELECT 1 AS n)", failing.WRONG_CALL, b"there is no column 'nothing'"),
        ("SELECT CAST(t AS INT) FROM (VALUES ('x')) v(t)", failing.FAILED, b"Could not convert string 'x'"),
        ("FROM 'missing.parquet'", failing.WRONG_CALL, b"there is no stream, table or file 'missing.parquet'"),
        ("FROM './missing.parquet'", failing.FAILED, b"missing.parquet"),
    ],
)
def test_errors_are_one_line(server: Server, query: str, code: int, wording: bytes) -> None:
    failed = run(server, "sql", query, expect=code)
    assert wording in failed.stderr
    assert failed.stderr.count(b"\n") == 1
    assert failed.stdout == b""


@pytest.mark.parametrize(
    ("value", "text", "json_text"),
    [
        ("DATE '20000-01-02'", "20000-01-02", "20000-01-02"),
        ("DATE 'infinity'", "infinity", "infinity"),
        ("TIMESTAMP '-infinity'", "-infinity", "-infinity"),
        ("TIMESTAMP '20000-01-02 03:04:05.67'", "20000-01-02T03:04:05.67", "20000-01-02T03:04:05.67"),
        ("to_timestamp(1767225600000)", "57971-02-25T00:00:00Z", "57971-02-25T00:00:00Z"),
        ("[DATE '20000-01-02']", '["20000-01-02"]', ["20000-01-02"]),
        ("{'a': DATE '20000-01-02', 'b': 1}", '{"a":"20000-01-02","b":1}', {"a": "20000-01-02", "b": 1}),
        ("INTERVAL 14 MONTH", "1 year 2 months", "1 year 2 months"),
        ("INTERVAL '-1 day 90061.25 seconds'", "-1 day 25:01:01.25", "-1 day 25:01:01.25"),
        ("INTERVAL '-1 month -0.5 seconds'", "-1 month -00:00:00.5", "-1 month -00:00:00.5"),
        ("INTERVAL 0 DAY", "00:00:00", "00:00:00"),
    ],
)
def test_values_that_python_does_not_have(server: Server, value: str, text: str, json_text: object) -> None:
    query = f"SELECT {value} AS x, ({value})::VARCHAR AS y"
    lines = run(server, "sql", query, "--rows", "0").stdout.decode().splitlines()
    assert lines[1].startswith(text + "  ")
    (row,) = csv.DictReader(io.StringIO(run(server, "sql", query, "-f", "csv").stdout.decode(), newline=""))
    assert row["x"] == text
    assert json.loads(run(server, "sql", query, "-f", "json").stdout)["x"] == json_text
    if value.startswith("INTERVAL"):
        assert row["y"] == text


def test_parquet_has_no_intervals(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    query = "SELECT INTERVAL 1 DAY AS x"
    failed = run(server, "sql", query, "-f", "parquet", "-o", str(out), expect=failing.WRONG_CALL)
    assert b"Parquet cannot hold a column of the result; cast it to VARCHAR" in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_message_that_does_not_fit(server: Server, client: Client, path: str, tmp_path: Path) -> None:
    client.stream(path).append_many([{"n": 3}] * 1000)
    client.stream(path).append({"n": "many"})
    out = tmp_path / "out.csv"
    failed = run(server, "sql", f"SELECT n FROM '{path}'", "-f", "csv", "-o", str(out), expect=failing.FAILED)
    assert b"the field n is BIGINT in the sample, and a message has many" in failed.stderr
    assert list(tmp_path.iterdir()) == []


def test_calls_that_cannot_work(server: Server, path: str) -> None:
    followed = ("sql", f"FROM '{path}'", "--follow")
    for more in (("-f", "parquet"), ("-o", "x.csv")):
        assert b"--follow prints table, csv or json" in run(server, *followed, *more, expect=failing.WRONG_CALL).stderr
    nothing = run(server, "sql", "SELECT 1", "--follow", expect=failing.WRONG_CALL)
    assert b"there is nothing to follow" in nothing.stderr


def test_a_server_that_dies_in_the_middle() -> None:
    """The exit code says that the rows that were printed are not all."""
    with memory_server() as dying:
        with Client(dying.url) as client:
            client.stream("long").create()
            body = b"[" + b",".join([b'{"pad":"%s"}' % (b"x" * 100)] * 5000) + b"]"
            for _ in range(60):
                client.stream("long").append_body(body)
        process = _start(dying, "SELECT pad FROM 'long'", "-f", "csv", "--patience", "0.5")
        assert process.stdout is not None
        assert process.stdout.read(1000)
        os.kill(dying.pid, signal.SIGKILL)
        rest, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == failing.UNAVAILABLE, errors
    assert "Traceback" not in errors
    assert rest.count("\n") < 300_000


def _interruptible() -> None:
    """A process that a shell started in the background ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _start(server: Server, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HEADWATER_URL": f"http://{server.host}:{server.port}"}
    command = [sys.executable, "-m", "headwater", "sql", *arguments]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_follow_prints_the_rows_that_are_new(server: Server, client: Client) -> None:
    path = f"sql/{uuid.uuid4().hex}"
    client.stream(path).create(messages=[{"kind": "a"}, {"kind": "b"}])
    process = _start(
        server, f"SELECT kind, count(*) AS n FROM '{path}' GROUP BY ALL ORDER BY ALL", "-f", "csv", "--follow"
    )
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(3)] == ['"kind","n"\n', '"a",1\n', '"b",1\n']
        client.stream(path).append({"kind": "b"})
        assert process.stdout.readline() == '"b",2\n'
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (process.returncode, out, errors) == (failing.INTERRUPTED, "", "")


def test_follow_knows_rows_whose_column_has_become_wider(server: Server, client: Client) -> None:
    path = f"sql/{uuid.uuid4().hex}"
    client.stream(path).create(messages=[{"n": 1}, {"n": 2}])
    process = _start(server, f"SELECT n FROM '{path}'", "-f", "json", "--follow")
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(2)] == ['{"n":1}\n', '{"n":2}\n']
        for more, line in ((2.5, '{"n":2.5}\n'), ("many", '{"n":"many"}\n'), ([1], '{"n":[1]}\n')):
            client.stream(path).append({"n": more})
            assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (process.returncode, out, errors) == (failing.INTERRUPTED, "", "")


def test_follow_prints_a_table_again(server: Server, client: Client) -> None:
    name = f"sql-{uuid.uuid4().hex}"
    client.table(name).create()
    client.table(name).append([Put("a", "1")])
    process = _start(server, f"SELECT key, record FROM '{name}'", "--follow")
    assert process.stdout is not None
    try:
        assert [process.stdout.readline().split() for _ in range(2)] == [["key", "record"], ["a", "1"]]
        client.table(name).append([Put("a", "2")])
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[0].startswith("-- 20")
        assert lines[2].split() == ["a", "2"]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == failing.INTERRUPTED


class Terminal:
    """`headwater sql` on a terminal."""

    def __init__(self, server: Server, home: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = {
            **os.environ,
            "HEADWATER_URL": f"http://{server.host}:{server.port}",
            "XDG_STATE_HOME": str(home),
            "TERM": "dumb",
            "COLUMNS": "200",
        }
        command = [sys.executable, "-m", "headwater", "sql", *arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdin=slave, stdout=slave, stderr=slave, preexec_fn=_interruptible
        )
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""

    def expect(self, wanted: str) -> str:
        """Read until a text appears, and return what came before it."""
        wait_until(lambda: self._shows(wanted), wanted)
        before, _, self.text = self.text.partition(wanted)
        return before

    def _shows(self, wanted: str) -> bool:
        if wanted not in self.text and select.select([self._master], [], [], READ_S)[0]:
            text = self._decoder.decode(os.read(self._master, 65536))
            self.text += text.replace("\r\n", "\n")
        return wanted in self.text

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt_until(self, wanted: str) -> None:
        """Send SIGINT, again if need be: readline misses one that comes while it handles a key."""

        def is_interrupted() -> bool:
            self.process.send_signal(signal.SIGINT)
            return any(self._shows(wanted) for _ in range(30))

        wait_until(is_interrupted, wanted)
        self.text = ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(server: Server, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(server, tmp_path)
    yield terminal
    terminal.close()


def test_the_prompt(terminal: Terminal, path: str, tmp_path: Path) -> None:
    terminal.expect("headwater> ")
    terminal.type(".help\n")
    assert "A query ends with a semicolon" in terminal.expect("headwater> ")
    terminal.type("SELECT n\n")
    terminal.expect("-> ")
    terminal.type(f"FROM '{path}' LIMIT 1;\n")
    assert "(1 row)" in terminal.expect("headwater> ")
    terminal.type("SELEC 1;\n")
    assert "syntax error" in terminal.expect("headwater> ")
    terminal.type(f".tables {path}\n")
    assert "application/json" in terminal.expect("headwater> ")
    terminal.type(f".columns '{path}'\n")
    assert "BIGINT" in terminal.expect("headwater> ")
    terminal.type(".format json\n")
    terminal.expect("headwater> ")
    terminal.type("SELECT 7 AS seven;\n")
    assert '{"seven":7}' in terminal.expect("headwater> ")
    terminal.type(".format parquet\n")
    assert "the formats of the prompt are table, csv, json" in terminal.expect("headwater> ")
    terminal.type(".nothing\n")
    assert "there is no command .nothing" in terminal.expect("headwater> ")
    terminal.type(f"SELECT count(*) AS n FROM '{path[:-3]}\t;\n")
    assert '{"n":2}' in terminal.expect("headwater> ")
    terminal.type("SELECT 'not yet")
    terminal.expect("not yet")
    terminal.interrupt_until("headwater> ")
    terminal.type("\x04")
    assert terminal.process.wait(LIMIT_S) == 0
    history = tmp_path / "headwater" / "sql_history"
    assert "SELECT 7 AS seven;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_binary_is_not_for_a_terminal(server: Server, path: str, tmp_path: Path) -> None:
    terminal = Terminal(server, tmp_path, f"FROM '{path}'", "-f", "arrow")
    try:
        assert "headwater: arrow is not for a terminal" in terminal.expect("Give --output FILE")
        assert terminal.process.wait(LIMIT_S) == failing.WRONG_CALL
    finally:
        terminal.close()
