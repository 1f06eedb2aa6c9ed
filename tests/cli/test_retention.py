"""What is kept of streams and tables, on the command line."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bench.servers import Server

from headwater.cli import failing
from tests.cli.test_streams import run


@pytest.fixture
def path() -> str:
    return f"cli/{uuid.uuid4().hex}"


def shown(server: Server, *arguments: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(run(server, *arguments, "--json").stdout)
    return values


def test_what_is_kept_of_a_stream(server: Server, path: str) -> None:
    run(server, "create", path, "--retain-seconds", "7d", "--retain-bytes", "10GB", "--compact")
    kept = {"seconds": 604_800, "bytes": 10_000_000_000, "compact": True}
    assert shown(server, "head", path)["retention"] == shown(server, "retain", path)["retention"] == kept
    assert shown(server, "list", path)["retention"] == kept
    assert b"7d, 10GB, compacted" in run(server, "head", path).stdout
    assert b"7d, 10GB, compacted" in run(server, "list", path).stdout
    said = run(server, "retain", path).stdout
    assert b"7d, 10GB, compacted" in said
    assert shown(server, "head", path)["first_offset"].encode() in said
    run(server, "append", path, "1", "2")
    run(server, "append", path, "3")
    ran = run(server, "retain", path, "--messages", "1", "--bytes", "none", "--no-compact")
    assert ran.stdout.startswith(b"keeps 7d, 1 messages of http://")
    assert shown(server, "retain", path)["retention"] == {"seconds": 604_800, "messages": 1}
    assert run(server, "read", path).stdout == b"3\n"
    info = shown(server, "head", path)
    assert info["first_offset"] < info["tail_offset"]
    ran = run(server, "read", path, "--offset", f"{info['first_offset'][:-1]}0", expect=failing.NOT_FOUND)
    assert b"trimmed" in ran.stderr
    assert shown(server, "retain", path, "--forever")["retention"] is None
    assert b"everything" in run(server, "retain", path).stdout
    run(server, "create", path, "--retain-seconds", "none")
    run(server, "create", path, "--retain-seconds", "60", expect=failing.CONFLICT)


def test_what_is_kept_of_a_table(server: Server, path: str) -> None:
    run(server, "table", "create", path, "--retain-messages", "2")
    run(server, "table", "append", path, stdin=b"+\ta\t1\n")
    run(server, "table", "append", path, stdin=b"+\tb\t1\n")
    assert shown(server, "table", "retain", path) == {"name": path, "first_seqno": 1, "retention": {"messages": 2}}
    run(server, "table", "retain", path, "--messages", "1")
    listed = shown(server, "table", "list", path)
    assert (listed["first_seqno"], listed["last_seqno"], listed["retention"]) == (2, 2, {"messages": 1})
    assert b"1 messages" in run(server, "table", "list", path).stdout
    run(server, "table", "append", path, stdin=b"+\tc\t1\n")
    assert shown(server, "table", "trim", path, "--before", "3")["first_seqno"] == 3
    assert b"begins with row 4" in run(server, "table", "trim", path, "--before", "now").stdout
    ran = run(server, "table", "read", path, "--since-id", "1", expect=failing.NOT_FOUND)
    assert b"view=active" in ran.stderr


def test_trims(server: Server, path: str) -> None:
    run(server, "create", path)
    second = shown(server, "append", path, "1")["offset"]
    run(server, "append", path, "2")
    for _ in range(2):
        assert shown(server, "trim", path, "--before", second)["first_offset"] == second
    assert run(server, "trim", path, "--before", "2d").stdout.endswith(f"begins at {second}\n".encode())
    later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    run(server, "trim", path, "--before", later)
    assert run(server, "read", path).stdout == b""
    run(server, "trim", path, "--before", "now")
    run(server, "trim", f"{path}-none", "--before", "now", expect=failing.NOT_FOUND)
    ran = run(server, "trim", path, "--before", "yesterday", expect=failing.WRONG_CALL)
    assert b"Invalid value for --before" in ran.stderr


def test_everything_below_a_prefix(server: Server, path: str) -> None:
    run(server, "create", f"{path}/a")
    run(server, "table", "create", f"{path}/b")
    run(server, "create", f"{path}x")
    ran = run(server, "retain", "--prefix", path, "--seconds", "1h", expect=failing.WRONG_CALL)
    assert f"Change what is kept of 2 streams and tables at and below '{path}'".encode() in ran.stderr
    done = shown(server, "retain", "--prefix", path, "--seconds", "1h", "--yes")
    assert done == {"prefix": path, "changed": 2, "failed": 0}
    assert shown(server, "retain", f"{path}/a")["retention"] == {"seconds": 3_600}
    assert shown(server, "table", "retain", f"{path}/b")["retention"] == {"seconds": 3_600}
    assert shown(server, "retain", f"{path}x")["retention"] is None
    run(server, "create", f"{path}/c", "-t", "text/plain")
    ran = run(server, "retain", "--prefix", path, "--compact", "--yes", expect=failing.FAILED)
    assert b"/c is not changed: Invalid retention" in ran.stderr
    assert ran.stdout.endswith(b"; 1 failed\n")


def test_bad_options_are_named(server: Server, path: str) -> None:
    for arguments in (("--seconds", "x"), ("--forever", "--seconds", "5"), ("--prefix", "cli")):
        ran = run(server, "retain", path, *arguments, expect=failing.WRONG_CALL)
        assert arguments[0].encode() in ran.stderr
        assert b"See: headwater retain --help" in ran.stderr


def test_a_value_that_the_server_refuses(server: Server, path: str) -> None:
    run(server, "create", path)
    ran = run(server, "retain", path, "--seconds", "0", expect=failing.FAILED)
    assert b"Stream-Retain-Seconds" in ran.stderr


def test_compaction(server: Server, path: str) -> None:
    event = '{"type":"t","key":"1","value":%d,"headers":{"operation":"upsert"}}'
    run(server, "create", path)
    run(server, "append", path, *[event % number for number in range(40)])
    assert run(server, "compact", path).stdout.startswith(b"compacted http://")
    first = shown(server, "head", path)["first_offset"]
    again = shown(server, "compact", path)["compaction"]
    assert again == {
        "compacted": False,
        "before_bytes": 0,
        "after_bytes": 0,
        "reason": "there is nothing new",
        "first_offset": first,
        "first_seqno": None,
    }
    assert b"was not compacted: there is nothing new" in run(server, "compact", path).stdout
    run(server, "table", "create", path)
    run(server, "table", "append", path, stdin="".join(f"+\tk\t{number}\n" for number in range(40)).encode())
    report = shown(server, "table", "compact", path)["compaction"]
    assert (report["compacted"], report["first_seqno"]) == (True, 1)
    run(server, "compact", f"{path}-none", expect=failing.NOT_FOUND)
