"""The commands that talk to a server, as a script sees them: output, exit codes, standard input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from bench.servers import Server, headwater

from headwater.cli import failing
from tests.commands import run_command
from tests.edges import free_port
from tests.waiting import LIMIT_S, PROGRAM_LIMIT_S


def run(
    server: Server | None, *arguments: str, stdin: bytes = b"", expect: int = 0, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    url = f"http://{server.host}:{server.port}" if server else ""
    ran = run_command(*arguments, stdin=stdin, environment={**os.environ, "HEADWATER_URL": url, **environment})
    assert ran.returncode == expect, ran.stderr.decode()
    assert b"Traceback" not in ran.stderr
    return ran


@pytest.fixture
def path() -> str:
    return f"cli/{uuid.uuid4().hex}"


def test_a_stream_from_create_to_delete(server: Server, path: str) -> None:
    assert run(server, "create", path).stdout.startswith(b"created http://")
    assert json.loads(run(server, "create", path, "--json").stdout)["created"] is False
    run(server, "append", path, '{"a":1}', "[2]", '"three"')
    done = json.loads(run(server, "append", path, "--json", stdin=b'{"b": [\t1]}\n\n 5 \n').stdout)
    assert done["messages"] == 2
    assert run(server, "read", path).stdout == b'{"a":1}\n[2]\n"three"\n{"b": [\t1]}\n5\n'
    batch = json.loads(run(server, "read", path, "--json").stdout)
    assert batch["messages"][1:3] == [[2], "three"]
    assert batch["offset"] == done["offset"]
    assert (
        run(server, "read", path, "--offset", "-1", "--skip", "3", "--until", done["offset"]).stdout.count(b"\n") == 2
    )
    info = json.loads(run(server, "head", path, "--json").stdout)
    assert (info["path"], info["closed"], info["tail_offset"]) == (path, False, done["offset"])
    assert path.encode() in run(server, "list", path).stdout
    run(server, "fork", path, f"{path}-fork")
    assert run(server, "read", f"{path}-fork").stdout == run(server, "read", path).stdout
    run(server, "close", path)
    assert run(server, "tail", path, "--offset", "-1").stdout.count(b"\n") == 5
    run(server, "delete", path)
    run(server, "delete", path, expect=failing.NOT_FOUND)


def test_an_append_at_the_tail(server: Server, path: str, tmp_path: Path) -> None:
    run(server, "create", path)
    done = json.loads(run(server, "append", path, "1", "--if-tail", "-1", "--json").stdout)
    refused = run(server, "append", path, "2", "--if-tail", "-1", expect=failing.CONFLICT)
    assert b"The tail has moved" in refused.stderr
    batch = tmp_path / "batch.json"
    batch.write_text("[2, 3]")
    run(server, "append", path, "--array", str(batch), "--if-tail", done["offset"])
    run(server, "append", path, "--array", str(batch), "--if-tail", done["offset"], expect=failing.CONFLICT)
    run(server, "append", path, "--if-tail", "-1", stdin=b"4\n", expect=failing.WRONG_CALL)
    assert run(server, "read", path).stdout == b"1\n2\n3\n"


def test_a_small_file_may_have_more_changes_than_a_server_takes_at_once(
    server: Server, path: str, tmp_path: Path
) -> None:
    (tmp_path / "changes").write_bytes(b"-\tk\n" * 100_001)
    run(server, "table", "create", path)
    done = run(server, "table", "append", path, str(tmp_path / "changes"))
    assert done.stdout == b"appended 100,001 changes, now at row 100001\n"


def test_a_view_of_nothing_is_not_found(server: Server, path: str) -> None:
    run(server, "create", path, "--view-of", "nowhere", "--type", "t", expect=failing.NOT_FOUND)
    run(server, "table", "create", path, "--view-of", "nowhere", "--type", "t", expect=failing.NOT_FOUND)


def test_a_message_over_several_lines_is_printed_on_one(server: Server, path: str) -> None:
    run(server, "create", path)
    run(server, "append", path, '{\n  "a": 1\n}')
    assert run(server, "read", path).stdout == b'{"a":1}\n'


def test_a_hyphen_alone_is_standard_input(server: Server, path: str) -> None:
    run(server, "create", path, "-t", "text/plain")
    run(server, "append", path, "-", stdin=b"from a pipe")
    run(server, "append", path, "-", "-")
    assert run(server, "read", path).stdout == b"from a pipe--"


def test_bytes_pass_unchanged(server: Server, path: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 2_000
    (tmp_path / "data").write_bytes(data)
    run(server, "create", path, "-t", "application/octet-stream")
    run(server, "append", path, "--file", str(tmp_path / "data"))
    run(server, "append", path, stdin=data)
    assert run(server, "read", path).stdout == data * 2
    record = json.loads(run(server, "read", path, "--json").stdout.splitlines()[0])
    assert "base64" in record


def test_a_line_that_is_not_json_ends_it_and_says_where(server: Server, path: str) -> None:
    run(server, "create", path)
    ran = run(server, "append", path, stdin=b"1\n2\nthree\n4\n", expect=failing.FAILED)
    assert b"line 3" in ran.stderr
    assert run(server, "read", path).stdout == b"1\n2\n"
    ran = run(server, "append", path, "hello", expect=failing.WRONG_CALL)
    assert b"not one JSON value: hello. A text needs double quotes" in ran.stderr
    ran = run(server, "append", path, "--file", "/nowhere", expect=failing.FAILED)
    assert ran.stderr == b"headwater: /nowhere: No such file or directory. Check the path.\n"


def test_exit_codes(server: Server, path: str) -> None:
    run(server, "create", path)
    run(server, "create", path, "--ttl", "7", expect=failing.CONFLICT)
    run(server, "close", path)
    run(server, "append", path, "1", expect=failing.CONFLICT)
    ran = run(server, "read", f"{path}-missing", expect=failing.NOT_FOUND)
    assert ran.stderr.endswith(f", or create the stream with: headwater create {path}-missing\n".encode())
    run(server, "read", path, "--offset", "x", expect=failing.FAILED)
    run(server, "read", path, "--url", "nonsense", expect=failing.WRONG_CALL)
    run(server, "raed", path, expect=failing.WRONG_CALL)
    gone = f"http://127.0.0.1:{free_port()}"
    assert b"headwater serve" in run(None, "head", path, "--url", gone, expect=failing.UNAVAILABLE).stderr


def test_a_reader_that_has_had_enough_is_no_error(server: Server, path: str) -> None:
    run(server, "create", path)
    run(server, "append", path, stdin=b'"%b"\n' % (b"x" * 100) * 20_000)
    command = f"{sys.executable} -m headwater read {path} | head -n 1"
    environment = {**os.environ, "HEADWATER_URL": f"http://{server.host}:{server.port}"}
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        env=environment,
        timeout=PROGRAM_LIMIT_S,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.usefixtures("default_signals")
def test_tail_follows_until_interrupted(server: Server, path: str) -> None:
    run(server, "create", path)
    environment = {**os.environ, "HEADWATER_URL": f"http://{server.host}:{server.port}"}
    with subprocess.Popen(
        [sys.executable, "-m", "headwater", "tail", path, "--offset", "-1"],
        stdout=subprocess.PIPE,
        env=environment,
    ) as following:
        try:
            assert following.stdout is not None
            for number in range(3):
                run(server, "append", path, str(number))
                assert following.stdout.readline() == b"%d\n" % number
            following.send_signal(signal.SIGINT)
            assert following.wait(LIMIT_S) == failing.INTERRUPTED
        finally:
            following.kill()


def test_the_token_is_sent_and_never_shown(server: Server, path: str) -> None:
    ran = run(server, "read", path, expect=failing.NOT_FOUND, HEADWATER_TOKEN="secret")
    assert b"secret" not in ran.stderr


def completed(server: Server, words: str, url: str = "") -> bytes:
    count = str(len(words.split()) - 1)
    url = url or f"http://{server.host}:{server.port}"
    names = {"_HEADWATER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": count, "HEADWATER_URL": url}
    completion = run_command(environment={**os.environ, **names})
    assert (completion.returncode, completion.stderr) == (0, b"")
    return completion.stdout


def test_paths_and_names_are_completed_from_the_server(server: Server, path: str) -> None:
    run(server, "create", path)
    run(server, "table", "create", path)
    for command in ("read", "table read"):
        assert path.encode() in completed(server, f"headwater {command} {path[:-5]}")
    assert completed(server, f"headwater table read {path[:-5]}", "ftp://nowhere").strip() == b""


def test_bench_prints_a_table_and_leaves_nothing(server: Server) -> None:
    url = f"http://{server.host}:{server.port}"
    figures = json.loads(run(server, "bench", url, "--seconds", "0.2", "--connections", "4", "--json").stdout)
    assert [line["what"] for line in figures["results"]] == [
        "appends, 4 connections",
        "idempotent producer",
        "catch-up",
        "delivery to a live reader",
    ]
    assert all(line["value"] > 0 for line in figures["results"])
    assert run(server, "list", "headwater-bench", "--json").stdout == b""


def test_usage_and_deletion_below_a_prefix(server: Server, path: str) -> None:
    for name in (path, f"{path}/1", f"{path}/deep/2", f"{path}x"):
        run(server, "create", name, "--content-type", "text/plain")
        run(server, "append", name, stdin=b"four")
    run(server, "table", "create", f"{path}/table", "--schema", "s")
    assert b" 4 " in run(server, "usage", path).stdout.splitlines()[-1]
    assert json.loads(run(server, "usage", path, "--json").stdout)["streams"] == 4
    refused = run(server, "delete", "--prefix", path, expect=2)
    assert b"Delete 4 streams and tables" in refused.stderr
    assert b"--yes" in refused.stderr
    deleted = run(server, "delete", "--prefix", f"{path}/", "--yes", "--json")
    assert json.loads(deleted.stdout) == {"prefix": path, "deleted": 4, "failed": 0}
    again = run(server, "delete", "--prefix", path, "--yes")
    assert again.stdout.startswith(b"deleted 0 ")
    assert run(server, "list", path).stdout.count(f"{path}x".encode()) == 1
    for arguments in ((), ("--prefix", "/", "--yes"), (path, "--prefix", path)):
        run(server, "delete", *arguments, expect=2)


def test_a_deletion_below_a_prefix_goes_on_after_a_failure(path: str, tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    scopes = ("create:**", "append:**", "read:**", f"delete:{path}/b")
    arguments = [part for scope in scopes for part in ("--scope", scope)]
    token = run(None, "token", "add", str(auth), *arguments).stdout.decode().strip()
    with headwater("--memory", "--auth", str(auth)) as server:
        for name in "abc":
            run(server, "create", f"{path}/{name}", "--content-type", "text/plain", HEADWATER_TOKEN=token)
        failed = run(server, "delete", "--prefix", path, "--yes", "--json", expect=1, HEADWATER_TOKEN=token)
        assert json.loads(failed.stdout) == {"prefix": path, "deleted": 1, "failed": 2}
        assert failed.stderr.count(b"is not deleted") == 2
        run(server, "usage", expect=5, HEADWATER_TOKEN=token)  # needs admin:**
