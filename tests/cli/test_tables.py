"""The commands for tables, as a script sees them: output, exit codes, standard input."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.cli import failing
from tests.commands import run_command
from tests.table_servers import NOW, TableServer, head, hostile_server, lines, table_server
from tests.waiting import LIMIT_S, wait_until

HEADWATER = Path(sys.executable).parent / "headwater"


@pytest.fixture
def server() -> Iterator[TableServer]:
    with table_server() as running:
        yield running


def run(
    server: TableServer, *arguments: str, stdin: bytes = b"", expect: int = 0
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "HEADWATER_URL": server.url, "HEADWATER_TOKEN": "secret"}
    ran = run_command(*arguments, stdin=stdin, environment=environment)
    assert ran.returncode == expect, ran.stderr.decode()
    assert b"Traceback" not in ran.stderr
    return ran


def rows(*changes: str, first: int = 1) -> bytes:
    return b"".join(f"{number}\t{NOW}\t{change}\n".encode() for number, change in enumerate(changes, first))


def test_a_table_from_create_to_delete(server: TableServer, tmp_path: Path) -> None:
    assert run(server, "table", "create", "prices", "--schema", "price", "--version", "2").stdout.startswith(b"created")
    assert json.loads(
        run(server, "table", "create", "prices", "--schema", "price", "--version", "2", "--json").stdout
    ) == {
        "url": f"{server.url}/v1/table/prices",
        "created": False,
    }
    run(server, "table", "create", "prices", expect=failing.CONFLICT)
    done = run(server, "table", "append", "prices", stdin=b"+\ttea\t2.40\n+\tcoffee\t3.10\n")
    assert done.stdout == b"appended 2 changes, now at row 2\n"
    (tmp_path / "changes").write_bytes(b"-\tcoffee\n+\ttea\t2.50")
    done = run(server, "table", "append", "prices", str(tmp_path / "changes"), "--json")
    assert json.loads(done.stdout) == {"changes": 2, "last_seqno": 4}
    whole = rows("+\ttea\t2.40", "+\tcoffee\t3.10", "-\tcoffee\t", "+\ttea\t2.50")
    assert run(server, "table", "read", "prices").stdout == whole
    assert run(server, "table", "read", f"{server.url}/v1/table/prices", "--since-id", "3").stdout == rows(
        "+\ttea\t2.50", first=4
    )
    assert run(server, "table", "read", "prices", "--since-id", "-2", "--until-id", "3").stdout.count(b"\n") == 1
    assert run(server, "table", "read", "prices", "--active").stdout == rows("+\ttea\t2.50", first=4)
    [row] = run(server, "table", "read", "prices", "--key", "tea", "--json").stdout.splitlines()
    assert json.loads(row) == {"seqno": 4, "timestamp": NOW, "action": "+", "key": "tea", "record": "2.50"}
    run(server, "table", "read", "prices", "--key", "coffee", expect=failing.NOT_FOUND)
    run(server, "table", "read", "prices", "--active", "--since-id", "1", expect=failing.WRONG_CALL)
    [listed] = run(server, "table", "list", "pri", "--json").stdout.splitlines()
    assert json.loads(listed)["last_seqno"] == 4
    assert b"prices" in run(server, "table", "list").stdout
    run(server, "table", "delete", "prices")
    run(server, "table", "delete", "prices", expect=failing.NOT_FOUND)


def test_an_invalid_change_is_named_by_its_line(server: TableServer) -> None:
    run(server, "table", "create", "prices")
    ran = run(server, "table", "append", "prices", stdin=b"+\ta\t1\n*\tb\t2\n", expect=failing.WRONG_CALL)
    assert b"line 2: a change begins with + or -" in ran.stderr
    assert b"Nothing was appended" in ran.stderr
    assert run(server, "table", "read", "prices").stdout == b""


@pytest.mark.usefixtures("default_signals")
def test_tail_and_follow_print_what_comes(server: TableServer) -> None:
    server.put("prices", "+ a 1", "+ b 2")
    for arguments, expected in (
        (("table", "tail", "prices"), rows("+\tc\t3", first=3)),
        (("table", "tail", "prices", "--since-id", "-1"), rows("+\tc\t3", "+\td\t4", first=3)),
        (("follow", f"{server.url}/v1/table/prices"), rows("+\ta\t1", "+\tb\t2", "+\tc\t3", "+\td\t4", "+\te\t5")),
    ):
        with subprocess.Popen(
            [HEADWATER, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "HEADWATER_URL": server.url, "HEADWATER_TOKEN": "secret"},
        ) as process:
            seen = len(server.requests)
            wait_until(lambda seen=seen: "GET" in {request[:3] for request in server.requests[seen:]})  # type: ignore[misc]
            number = len(server.tables["prices"].rows)
            server.put("prices", f"+ {'abcde'[number]} {number + 1}")
            assert process.stdout is not None
            got = b""
            while got.count(b"\n") < expected.count(b"\n"):
                got += process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=LIMIT_S)
            assert process.returncode == failing.INTERRUPTED
        assert got == expected
        assert b"Traceback" not in said
        if arguments[0] == "follow":
            assert b"stopped after row 5; continue with --since-id 5" in said
            assert "authorization" not in server.headers_seen[-1]  # HEADWATER_TOKEN is for another server


def test_a_status_line_on_a_terminal(server: TableServer) -> None:
    server.put("prices", "+ a 1", "+ b 2")
    server.tables["prices"].closed = True
    ours, theirs = pty.openpty()
    ran = subprocess.run(
        [HEADWATER, "follow", f"{server.url}/v1/table/prices", "--since-id", "1"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=LIMIT_S,
        check=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )
    os.close(theirs)
    shown = os.read(ours, 100_000)
    os.close(ours)
    assert ran.stdout == rows("+\tb\t2", first=2)
    assert b"row 2, up to date" in shown


def test_a_table_that_breaks_its_promise_ends_the_command(server: TableServer) -> None:
    def missing(number: int, path: str) -> Iterator[bytes]:
        yield head(STP_Gapless="true") + lines(1, 3)

    with hostile_server(missing) as hostile:
        ran = run(server, "follow", hostile.url, expect=failing.FAILED)
    assert ran.stdout == lines(1)
    assert b"row 2 is missing" in ran.stderr
    run(server, "follow", "ftp://host/table", expect=failing.WRONG_CALL)


# Import

CSV = '\ufeffsku,name,price\r\n1,tea,2.40\r\n2,"coffee, black",3.10\r\n3,"two\nlines",1\r\n'


def records(server: TableServer, table: str = "prices") -> dict[str, str]:
    shown = run(server, "table", "read", table, "--active", "--json").stdout.splitlines()
    return {row["key"]: row["record"] for row in map(json.loads, shown)}


def test_importing_appends_only_what_changed(server: TableServer, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(CSV, newline="")
    run(server, "table", "create", "prices")
    dry = run(server, "table", "import", "prices", str(file), "--key", "sku", "--dry-run")
    assert dry.stdout.startswith(b'+\t1\t{"name":"tea","price":"2.40"}\n')
    assert b"3 added, 0 changed, 0 deleted, 0 unchanged; nothing was sent" in dry.stderr
    assert records(server) == {}
    done = run(server, "table", "import", "prices", str(file), "--key", "sku")
    assert done.stdout == b"3 added, 0 changed, 0 deleted, 0 unchanged\n"
    assert records(server) == {
        "1": '{"name":"tea","price":"2.40"}',
        "2": '{"name":"coffee, black","price":"3.10"}',
        "3": '{"name":"two\\nlines","price":"1"}',
    }
    file.write_text('price,sku,name\n2.50,1,tea\n3.10,2,"coffee, black"\n9,4,milk\n')
    done = run(server, "table", "import", "prices", str(file), "--key", "sku", "--json")
    assert json.loads(done.stdout) == {"added": 1, "changed": 1, "deleted": 1, "unchanged": 1, "dry_run": False}
    assert [*records(server)] == ["2", "1", "4"]
    done = run(server, "table", "import", "prices", str(file), "--key", "sku")
    assert done.stdout == b"0 added, 0 changed, 0 deleted, 3 unchanged\n"
    assert len(server.tables["prices"].rows) == 6


def test_a_dry_run_prints_what_append_takes(server: TableServer, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(CSV, newline="")
    for table, options in (("plain", ()), ("escaped", ("--escape",))):
        run(server, "table", "create", table, *options)
        dry = run(server, "table", "import", table, str(file), "--key", "sku", "--dry-run")
        run(server, "table", "append", table, stdin=dry.stdout)
        done = run(server, "table", "import", table, str(file), "--key", "sku")
        assert done.stdout == b"0 added, 0 changed, 0 deleted, 3 unchanged\n"


def test_importing_other_formats(server: TableServer, tmp_path: Path) -> None:
    run(server, "table", "create", "prices")
    (tmp_path / "prices.tsv").write_text("sku\tprice\na\t1\nb\t2\n")
    run(server, "table", "import", "prices", str(tmp_path / "prices.tsv"), "--key", "sku")
    assert records(server) == {"a": '{"price":"1"}', "b": '{"price":"2"}'}
    text = b'{"sku": 7, "price": 1.5, "tags": ["x"]}\n\n{"price": null, "sku": "b"}\n'
    run(server, "table", "import", "prices", "-", "--key", "sku", "--format", "jsonl", stdin=text)
    assert records(server) == {"7": '{"price":1.5,"tags":["x"]}', "b": '{"price":null}'}


def test_a_lost_answer_does_not_double_what_is_imported(server: TableServer, tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(CSV, newline="")
    run(server, "table", "create", "prices")
    server.lose = 2
    run(server, "table", "import", "prices", str(file), "--key", "sku")
    assert len(server.tables["prices"].rows) == 3


def test_a_file_that_cannot_be_imported_changes_nothing(server: TableServer, tmp_path: Path) -> None:
    server.put("prices", "+ old record")
    for name, text, said in (
        ("a.csv", b"sku,name\n1,a\n1,b\n", b"a.csv, line 3: the key '1' is in line 2 as well. Nothing was changed."),
        ("a.csv", b"sku,name\n1,\xff\n", b"not UTF-8"),
        ("a.txt", b"", b"Add --format csv, tsv or jsonl"),
    ):
        (tmp_path / name).write_bytes(text)
        options = ("import", "prices", str(tmp_path / name), "--key", "sku")
        assert said in run(server, "table", *options, expect=failing.WRONG_CALL).stderr
    assert len(server.tables["prices"].rows) == 1


def test_an_empty_file_deletes_every_key_only_if_told_so(server: TableServer, tmp_path: Path) -> None:
    server.put("prices", "+ old record")
    (tmp_path / "a.csv").write_text("sku,name\n")
    empty = ("table", "import", "prices", str(tmp_path / "a.csv"), "--key", "sku")
    assert b"add --allow-empty" in run(server, *empty, expect=failing.FAILED).stderr
    assert len(server.tables["prices"].rows) == 1
    done = run(server, *empty, "--allow-empty")
    assert done.stdout == b"0 added, 0 changed, 1 deleted, 0 unchanged\n"
    assert records(server) == {}
