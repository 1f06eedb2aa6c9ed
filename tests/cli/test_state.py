"""`headwater state`, against our server, which folds, and against the reference server, which does not."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from bench.servers import Server, reference

from headwater.cli import failing
from tests.cli.test_streams import run


@pytest.fixture(scope="module", params=["headwater", pytest.param("reference", marks=pytest.mark.slow)])
def folded(request: pytest.FixtureRequest, server: Server) -> Iterator[Server]:
    if request.param == "headwater":
        yield server
        return
    with reference() as node:
        yield node


def event(entity_type: str, key: str, value: str) -> str:
    return f'{{"type":"{entity_type}","key":"{key}","value":{value},"headers":{{"operation":"upsert"}}}}'


@pytest.fixture
def path(folded: Server) -> str:
    name = f"state-{uuid.uuid4().hex}"
    run(folded, "create", name)
    run(folded, "append", name, event("user", "1", '{"n":1}'), event("user", "2", "2"), event("order", "a b", '"x"'))
    return name


def test_the_entities_of_a_stream(folded: Server, path: str) -> None:
    assert run(folded, "state", path).stdout == b'order\ta b\t"x"\nuser\t1\t{"n":1}\nuser\t2\t2\n'
    assert run(folded, "state", path, "user").stdout == b'user\t1\t{"n":1}\nuser\t2\t2\n'
    assert run(folded, "state", path, "none").stdout == b""
    assert run(folded, "state", path, "user", "1").stdout == b'{"n":1}\n'
    lines = run(folded, "state", path, "user", "--json").stdout.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["1", "2"]
    assert b'"value":{"n":1}' in lines[0]


def test_one_entity_at_an_offset(folded: Server, path: str) -> None:
    before = json.loads(run(folded, "state", path, "user", "1", "--json").stdout)
    assert before["offset"] == json.loads(run(folded, "head", path, "--json").stdout)["tail_offset"]
    run(folded, "append", path, event("user", "1", '"new"'), event("user", "3", "3"))
    assert run(folded, "state", path, "user", "1").stdout == b'"new"\n'
    assert run(folded, "state", path, "user", "1", "--at", before["offset"]).stdout == b'{"n":1}\n'
    assert run(folded, "state", path, "user", "--at", before["offset"]).stdout.count(b"\n") == 2
    assert run(folded, "state", path, "--at", "now").stdout.count(b"\n") == 4
    assert run(folded, "state", path, "--at", "-1").stdout == b""


def test_what_is_not_there(folded: Server, path: str) -> None:
    ran = run(folded, "state", path, "user", "none", expect=failing.NOT_FOUND)
    assert ran.stderr.startswith(b"headwater: ")
    assert b"there is no 'user' with the key 'none'" in ran.stderr
    ran = run(folded, "state", f"{path}-none", "user", "1", expect=failing.NOT_FOUND)
    assert f"headwater create {path}-none".encode() in ran.stderr


def test_at_a_time(server: Server) -> None:
    name = f"state-{uuid.uuid4().hex}"
    run(server, "create", name)
    run(server, "append", name, event("user", "1", "1"))
    assert run(server, "state", name, "--at", "1h").stdout == b""
    assert run(server, "state", name, "--at", "2100-01-01T00:00:00Z").stdout == b"user\t1\t1\n"
    for wrong in ("yesterday", "1_", "2100-01-01T00:00:00"):
        assert b"--at" in run(server, "state", name, "--at", wrong, expect=failing.WRONG_CALL).stderr


def test_lines_stay_lines(server: Server) -> None:
    name = f"state-{uuid.uuid4().hex}"
    run(server, "create", name)
    run(server, "append", name, event("user", "a\\nb\\tc", "[1.50,\n 2]"))
    assert run(server, "state", name).stdout == b"user\ta\\nb\\tc\t[1.50,2]\n"
    assert run(server, "state", name, "user", "a\nb\tc").stdout == b"[1.50,2]\n"
