"""`headwater append --array`: a JSON array as one batch."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from bench.servers import Server

from headwater import limits
from headwater.cli import failing
from headwater.client import Client
from tests.command_line import invoke


def run(server: Server, *arguments: str, expect: int = 0, stdin: bytes = b"") -> str:
    result = invoke(list(arguments), input=stdin, env={"HEADWATER_URL": server.url})
    assert result.exit_code == expect, result.output
    return result.output


@pytest.fixture
def path(server: Server) -> str:
    name = f"arrays/{uuid.uuid4().hex}"
    run(server, "create", name)
    return name


def test_an_array_is_one_batch(server: Server, path: str, tmp_path: Path) -> None:
    file = tmp_path / "batch.json"
    file.write_text('[\n  {"id": 1},\n  [2, [3]],\n  "three"\n]\n')
    done = json.loads(run(server, "append", path, "--array", str(file), "--json"))
    assert done["messages"] == 3
    run(server, "append", path, "--array", "-", stdin=b"[4]")
    with Client(server.url) as client:
        assert list(client.stream(path).read()) == [{"id": 1}, [2, [3]], "three", 4]
        assert len(list(client.stream(path).records())) == 2  # one append each


def test_an_array_without_messages_appends_nothing(server: Server, path: str) -> None:
    assert run(server, "append", path, "--array", "-", stdin=b" [] ").startswith("appended 0 messages")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"id": 1}', "- is not a JSON array. For one message per line, use --file."),
        (b'{"id": 1}\n{"id": 2}', "- is not"),
        (b"[1, 2", "- is not JSON"),
        (b"", "- is not JSON"),
        (b"[1] [2]", "- is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "- is not JSON: JSON is nested too deeply"),
    ],
)
def test_what_is_no_array(server: Server, path: str, text: bytes, says: str) -> None:
    said = run(server, "append", path, "--array", "-", stdin=text, expect=failing.WRONG_CALL)
    assert says in said
    assert said.count("\n") == 1
    assert run(server, "read", path) == ""


def test_bytes_that_are_not_utf_8_append_nothing(server: Server, path: str) -> None:
    run(server, "append", path, "--array", "-", stdin=b'["\xff"]', expect=failing.FAILED)
    assert run(server, "read", path) == ""


def test_an_array_for_a_stream_of_text(server: Server, path: str) -> None:
    run(server, "create", f"{path}-text", "-t", "text/plain")
    said = run(server, "append", f"{path}-text", "--array", "-", stdin=b"[1]", expect=failing.FAILED)
    assert "--array is for streams of JSON" in said


def test_an_array_beside_messages(server: Server, path: str) -> None:
    assert "Leave out" in run(server, "append", path, "1", "--array", "-", expect=failing.WRONG_CALL)


def test_an_array_that_is_too_large(server: Server, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLI_ARRAY_BYTES_MAX", 10)
    said = run(server, "append", path, "--array", "-", stdin=b"[1,2,3,4,5,6]", expect=failing.FAILED)
    assert "more than 10 bytes" in said
    assert "jq -c" in said
