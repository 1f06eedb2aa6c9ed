"""Which server a command talks to, and what it sends: headers, credentials, URLs with users, paths and mounts."""

from __future__ import annotations

import base64
import json
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest

from headwater.cli import failing
from tests.cli.stubs import Stub, on_terminal, stub_server
from tests.command_line import invoke
from tests.edges import MOUNTED, edge, free_port
from tests.waiting import LIMIT_S


def run(*arguments: str, expect: int = 0, stdin: bytes = b"", **environment: str) -> str:
    result = invoke(list(arguments), input=stdin, env=environment)
    assert result.exit_code == expect, result.output
    return result.output


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_server(lambda method, path: (404, {}, b"")) as server:
        yield server


OPTIONS = ("--header", "X-Tenant: a b", "--header", "x-trace:7", "--auth", "ApiKey id:s3cret")
COMMANDS = [
    ("create", "s"),
    ("append", "s", "1"),
    ("read", "s"),
    ("tail", "s"),
    ("head", "s"),
    ("list",),
    ("close", "s"),
    ("fork", "s", "t"),
    ("delete", "s"),
    ("table", "create", "s"),
    ("table", "append", "s"),
    ("table", "import", "s", "-", "--key", "k", "--format", "csv"),
    ("table", "read", "s"),
    ("table", "tail", "s"),
    ("table", "list"),
    ("table", "notify", "s"),
    ("table", "delete", "s"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_headers_and_any_scheme_of_authorization(stub: Stub, command: tuple[str, ...]) -> None:
    said = run(*command, "--url", stub.url, *OPTIONS, expect=failing.NOT_FOUND, HEADWATER_TOKEN="other")
    assert stub.seen
    for _, _, headers in stub.seen:
        assert headers["x-tenant"] == "a b"
        assert headers["x-trace"] == "7"
        assert headers["authorization"] == "ApiKey id:s3cret"
    assert "s3cret" not in said


def test_headers_of_commands_with_other_servers(stub: Stub) -> None:
    run("bench", stub.url, "--seconds", "0.1", *OPTIONS, expect=failing.NOT_FOUND)
    run("follow", f"{stub.url}/v1/table/s", *OPTIONS, expect=failing.NOT_FOUND, HEADWATER_TOKEN="other")
    assert {headers["authorization"] for _, _, headers in stub.seen} == {"ApiKey id:s3cret"}
    stub.seen.clear()
    with stub_server(lambda method, path: (404, {}, b"")) as target:
        into = ("--into", "t", "--url", target.url, "--into-auth", "Key t", "--into-header", "X-Into: 1")
        run("follow", f"{stub.url}/v1/table/s", *OPTIONS, *into, expect=failing.NOT_FOUND, HEADWATER_TOKEN="other")
    assert {headers.get("authorization") for _, _, headers in target.seen} <= {"Key t"}
    assert {headers.get("authorization") for _, _, headers in stub.seen} <= {"ApiKey id:s3cret"}
    assert stub.seen or target.seen


def test_a_token_of_the_environment_is_for_its_server_alone(stub: Stub) -> None:
    run("head", "s", "--url", stub.url, expect=failing.NOT_FOUND, HEADWATER_TOKEN="own")
    assert stub.seen[-1][2]["authorization"] == "Bearer own"
    elsewhere = f"http://127.0.0.1:{free_port()}"
    whole = f"{stub.url}/v1/stream/s"
    run("head", whole, "--url", elsewhere, expect=failing.NOT_FOUND, HEADWATER_TOKEN="other")
    assert "authorization" not in stub.seen[-1][2]
    run("head", whole, "--url", elsewhere, "--token", "given", expect=failing.NOT_FOUND, HEADWATER_TOKEN="other")
    assert stub.seen[-1][2]["authorization"] == "Bearer given"


def test_a_url_with_a_user(stub: Stub) -> None:
    basic = f"Basic {base64.b64encode(b'ann:p@ss').decode()}"
    named = stub.url.replace("http://", "http://ann:p%40ss@")
    for arguments in (
        ("head", "s", "--url", named),
        ("head", f"{named}/v1/stream/s"),
        ("table", "read", f"{named}/v1/table/s"),
        ("follow", f"{named}/v1/table/s"),
        ("list", "--url", named),
    ):
        said = run(*arguments, expect=failing.NOT_FOUND, HEADWATER_TOKEN="other")
        assert stub.seen[-1][2]["authorization"] == basic
        assert "p@ss" not in said
        assert "p%40ss" not in said
    for url in ("http://ann:p%40ss@127.0.0.1:port", "ann:p%40ss@127.0.0.1", "ftp://ann:p%40ss@127.0.0.1"):
        assert "p%40ss" not in run("head", "s", "--url", url, expect=failing.WRONG_CALL)
        assert "p%40ss" not in run("follow", url, expect=failing.WRONG_CALL)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--header", "nonsense"), "expected 'Name: value'"),
        (("--header", "X Y: secret"), "got X Y"),
        (("--header", "X: secret\n"), "got X"),
        (("--header", "X: 1", "--header", "x: 2"), "given twice"),
        (("--auth", "Basic"), "a scheme and credentials"),
        (("--auth", "Basic secret", "--token", "t"), "give one of"),
        (("--header", "Authorization: secret", "--token", "t"), "give one of"),
    ],
)
def test_what_cannot_be_sent(options: tuple[str, ...], says: str) -> None:
    said = run("head", "s", *options, expect=failing.WRONG_CALL)
    assert says in said
    assert "secret" not in said
    assert said.count("\n") == 1


def test_a_mount_path() -> None:
    with edge(MOUNTED) as server:
        mount = f"http://{server.host}:{server.port}/streams"
        path = uuid.uuid4().hex
        for url in (mount, f"{mount}/", f"{mount}/v1/stream", f"{mount}/v1/stream/", f"{mount}/v1/table/"):
            run("create", path, "--url", url)
            run("append", path, '"x"', "--url", url)
            assert [json.loads(line)["path"] for line in run("list", "--json", "--url", url).splitlines()] == [path]
        assert run("read", path, "--url", f"{mount}/v1/stream/").count('"x"') == 5
        assert run("read", f"{mount}/v1/stream/{path}", "--since", "1h").count('"x"') == 5
        run("table", "create", path, "--url", mount)
        assert path in run("table", "list", "--url", mount)
        run("bench", mount, "--seconds", "0.1", "--connections", "1")


# Servers that do not answer


@pytest.mark.parametrize(
    "command",
    [*COMMANDS, ("follow", "{url}/v1/table/s"), ("follow", "{url}/v1/table/s", "--into", "t")],
    ids=" ".join,
)
def test_no_server_is_one_line_that_says_how_to_start_one(command: tuple[str, ...]) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    said = run(*(part.format(url=url) for part in command), expect=failing.UNAVAILABLE, HEADWATER_URL=url)
    line = said.splitlines()[-1]
    assert line == f"headwater: no server is running at {url}. Start one with: headwater serve --port {port}"
    assert said.count("headwater: ") == 1
    assert "may or may not" not in said


def test_no_server_on_a_terminal() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    code, got = on_terminal(80, "read", "s", url=url)
    assert code == failing.UNAVAILABLE
    assert got.count("headwater: ") == 1


def test_bench_without_a_server() -> None:
    said = run("bench", f"http://127.0.0.1:{free_port()}", "--seconds", "0.1", expect=failing.UNAVAILABLE)
    assert "Start one with: headwater serve" in said


def test_a_read_that_loses_its_connection_sent_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        read = run("read", "s", "--url", url, expect=failing.UNAVAILABLE)
        written = run("create", "s", "--url", url, expect=failing.UNAVAILABLE)
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(LIMIT_S)
    assert "may or may not" not in read
    assert read.splitlines()[-1].endswith("Check the URL and that the server runs.")
    assert "The request may or may not have arrived." in written


def test_an_unknown_host() -> None:
    said = run("read", "s", "--url", "http://nobody.invalid", expect=failing.UNAVAILABLE)
    assert said.startswith("headwater: unknown host 'nobody.invalid'")
    assert said.count("\n") == 1


def test_tls_where_there_is_none(stub: Stub) -> None:
    said = run("read", "s", "--url", stub.url.replace("http:", "https:"), expect=failing.UNAVAILABLE)
    assert "use http:// instead of https://" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("url", ["http://", "https:///app", "http://:4437"])
def test_a_url_without_a_host(url: str) -> None:
    said = run("read", "s", "--url", url, expect=failing.WRONG_CALL)
    assert f"the URL of a server names a host, for example http://127.0.0.1:4437; got {url}" in said
    assert said.count("\n") == 1


def test_a_url_without_a_scheme() -> None:
    said = run("read", "s", "--url", "localhost:4437", expect=failing.WRONG_CALL)
    assert "begins with http:// or https://, for example http://localhost:4437" in said
    assert said.count("\n") == 1
