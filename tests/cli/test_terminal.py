"""What reaches a terminal: names and records of hostile servers as text, tables within its columns."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import pytest
from bench.servers import Server
from rich.cells import cell_len

from headwater.cli import failing
from headwater.client import Client
from headwater.protocol.problems import PROBLEM_TYPE_PREFIX
from tests.cli.stubs import Answer, Stub, on_terminal, stub_server
from tests.commands import run_command

# A closing tag of markup, an escape sequence, a line of its own, a bell, a C1 sequence, and bidi overrides.
HOSTILE = "a[/x][red]\x1b[2J\x1b]0;title\x07\nheadwater: all is well\r\x9b31m\u202etxt\u2066\u2028"
STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")  # what the command itself sends: bold, progress, cursor
OFFSET = {"stream-next-offset": "0000000000000001_0000000000000009"}


@pytest.fixture
def hostile() -> Iterator[Stub]:
    def answer(method: str, path: str) -> Answer:
        where = unquote(urlsplit(path).path)
        if where.endswith("__ds/streams"):
            named = {"path": HOSTILE, "content_type": HOSTILE, "tail_offset": HOSTILE, "created_at": HOSTILE}
            return 200, {"content-type": "application/json"}, json.dumps({"streams": [named]}).encode()
        if where.endswith("__stp/tables"):
            table = {"name": HOSTILE, "schema": HOSTILE, "version": 1, "created_at": HOSTILE}
            return 200, {"content-type": "application/json"}, json.dumps({"tables": [table]}).encode()
        if where.endswith("/text"):
            headers = {"content-type": "text/plain", **OFFSET, "stream-up-to-date": "true"}
            return 200, headers, b"" if method == "HEAD" else HOSTILE.encode("latin-1", "ignore") + b"\xff\n"
        problem = {"type": f"{PROBLEM_TYPE_PREFIX}stream-not-found", "detail": HOSTILE}
        return 404, {"content-type": "application/problem+json"}, json.dumps(problem).encode()

    with stub_server(answer) as server:
        yield server


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("list",), 0),
        (("list", "--json"), 0),
        (("table", "list"), 0),
        (("read", "text"), 0),
        (("read", "text", "--json"), 0),
        (("read", "other"), failing.NOT_FOUND),
        (("table", "read", "other"), failing.NOT_FOUND),
        (("delete", "other"), failing.NOT_FOUND),
    ],
)
def test_control_characters_never_reach_a_terminal(hostile: Stub, arguments: tuple[str, ...], code: int) -> None:
    ended, got = on_terminal(80, *arguments, url=hostile.url)
    assert ended == code, got
    assert "Traceback" not in got
    left = STYLE.sub("", got.replace("\x1b[2J", "CLEARED"))
    assert "CLEARED" not in left
    for char in "\x1b\x07\r\x9b\u202e\u2066\u2028":
        assert char not in left, repr(char)
    if "text" not in arguments:  # whose line ends are its own
        assert "\nheadwater: all is well" not in left
    if arguments[0] in ("list", "delete"):
        assert "[/x]" in re.sub(r"\s", "", got)


def test_a_pipe_gets_data_as_it_is(hostile: Stub) -> None:
    def piped(*arguments: str) -> bytes:
        ran = run_command(*arguments, "--url", hostile.url)
        ran.check_returncode()
        return ran.stdout

    assert b"\x1b[2J\x1b]0;title\x07\nheadwater: all is well\r\x9b" in piped("read", "text")
    assert json.loads(piped("list", "--json"))["path"] == HOSTILE
    assert piped("list").count(b"\n") == 2  # a table is for people: a line for the titles, one for the stream


def test_a_character_that_begins_in_one_batch_and_ends_in_the_next(server: Server) -> None:
    path = f"cli/{uuid.uuid4().hex}"
    with Client(server.url) as client:
        stream = client.stream(path)
        stream.create(content_type="text/plain")
        stream.append("gr\u00fc\u00df".encode()[:3])
        middle = stream.head().tail_offset
        stream.append("gr\u00fc\u00df dich \u0645\u06cc\u200c\u0631\u0648\u0645\n".encode()[3:])
        stream.close()
    assert middle
    _, got = on_terminal(80, "read", path, url=server.url)
    assert "gr\u00fc\u00df dich \u0645\u06cc\u200c\u0631\u0648\u0645\n" in got


# The list


@pytest.fixture(scope="module")
def prefix(server: Server) -> str:
    path = f"list-{uuid.uuid4().hex[:8]}"
    with Client(server.url) as client:
        client.stream(f"{path}/orders").create()
        client.stream(f"{path}/orders").append({"id": 1})
        client.stream(f"{path}/prices[/europe]/west/amsterdam/2026/quotes").create()
        client.stream(f"{path}/\u4ef7\u683c").create(content_type="text/plain; charset=utf-8", ttl_s=4000)
        client.stream(f"{path}/done").create(closed=True)
    return path


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_the_list_fits_a_terminal(server: Server, prefix: str, columns: int) -> None:
    code, got = on_terminal(columns, "list", prefix, url=server.url)
    plain = STYLE.sub("", got)
    assert code == 0
    assert max(map(cell_len, plain.splitlines())) <= columns
    for part in ("orders", "europe]", "amsterdam/", "\u4ef7\u683c", "done", "text/plain;", "charset=utf-8", "yes"):
        assert part in plain
    is_table = "path" in plain.splitlines()[0]
    assert is_table == (columns == 80)


def test_the_list_has_sizes(server: Server, prefix: str) -> None:
    def listed(*more: str) -> str:
        ran = run_command("list", f"{prefix}/orders", "--url", server.url, *more)
        ran.check_returncode()
        return ran.stdout.decode()

    info = json.loads(listed("--json"))
    assert info["bytes"] == int(info["tail_offset"].partition("_")[2]) == len('{"id":1},')
    assert {"path", "content_type", "tail_offset", "closed", "created_at", "expires_at"} <= {*info}
    titles, row = listed().splitlines()
    assert titles.split()[:2] == ["path", "bytes"]
    assert row.split()[:2] == [f"{prefix}/orders", "9"]
