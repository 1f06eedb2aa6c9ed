"""Requests that are refused as soon as their head is complete, before their body is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.servers import Server, headwater

from headwater import limits
from headwater.server.auth.editing import add_token
from tests.contract.native.wire import Answer, Wire

BODY = "content-type: text/plain\r\ncontent-length: 1000000\r\n"


class Guarded:
    def __init__(self, directory: Path) -> None:
        self.file = directory / "auth.toml"
        self.admin, _ = add_token(self.file, "admin", ["admin:**"], None)
        self.reader, _ = add_token(self.file, "reader", ["read:**"], None)
        self.server: Server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = Guarded(tmp_path_factory.mktemp("auth"))
    with headwater("--memory", "--auth", str(server.file), "--limit", "body_bytes_max=1000000") as server.server:
        with Wire(server.server) as wire:
            bearer = f"Bearer {server.admin}"
            assert wire.ask("PUT", "/v1/stream/a", content_type="text/plain", authorization=bearer).status == 201
        yield server


def head(method: str, path: str, token: str | None, fields: str = BODY) -> bytes:
    credentials = "" if token is None else f"authorization: Bearer {token}\r\n"
    return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{credentials}{fields}\r\n".encode()


def refused(guarded: Guarded, data: bytes) -> Answer:
    """The answer to a head whose body is never sent. The connection is closed after it."""
    with Wire(guarded.server) as wire:
        wire.send(data)
        answer = wire.answer()
        assert answer.headers["connection"] == "close"
        assert wire.at_end()
        return answer


def test_without_a_token(guarded: Guarded) -> None:
    answer = refused(guarded, head("POST", "/v1/stream/a", None))
    assert (answer.status, answer.problem["type"]) == (401, "urn:headwater:unauthorized")
    assert "www-authenticate" in answer.headers


def test_with_an_unknown_token(guarded: Guarded) -> None:
    assert refused(guarded, head("PUT", "/v1/stream/a", "hw_unknown")).status == 401


def test_without_the_scope(guarded: Guarded) -> None:
    assert refused(guarded, head("POST", "/v1/stream/a", guarded.reader)).status == 403


def test_an_unknown_route_and_method(guarded: Guarded) -> None:
    assert refused(guarded, head("POST", "/elsewhere", guarded.admin)).status == 404
    assert refused(guarded, head("PROPFIND", "/v1/stream/a", guarded.admin)).status == 405


def test_a_body_that_is_too_large_or_encoded(guarded: Guarded) -> None:
    large = BODY.replace("1000000", "1000001")
    assert refused(guarded, head("POST", "/v1/stream/a", guarded.admin, large)).status == 413
    encoded = f"{BODY}content-encoding: gzip\r\n"
    assert refused(guarded, head("POST", "/v1/stream/a", guarded.admin, encoded)).status == 415


def test_a_client_that_sends_its_body_anyway_gets_the_answer(guarded: Guarded) -> None:
    with Wire(guarded.server) as wire:
        wire.send(head("POST", "/v1/stream/a", None))
        for _ in range(100):
            wire.send(b"x" * 10_000)
        assert wire.answer().status == 401


def test_continue_is_sent_to_those_who_may_write(guarded: Guarded) -> None:
    expecting = f"{BODY}expect: 100-continue\r\n".replace("1000000", "3")
    assert refused(guarded, head("POST", "/v1/stream/a", None, expecting)).status == 401
    with Wire(guarded.server) as wire:
        wire.send(head("POST", "/v1/stream/a", guarded.admin, expecting))
        assert wire.head()[0] == 100
        wire.send(b"abc")
        assert wire.answer().status == 204


def test_a_page_can_read_the_answer(guarded: Guarded) -> None:
    origin = f"{BODY}origin: http://localhost:3000\r\n"
    answer = refused(guarded, head("POST", "/v1/stream/a", None, origin))
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize("action", ["callback", "ack", "release"])
@pytest.mark.parametrize("token", [None, "x", "x.y", "A" * 5_000, "{admin}"])
def test_without_the_token_of_a_wake(guarded: Guarded, action: str, token: str | None) -> None:
    """The tokens of the server are of no use there, and nobody learns whether a subscription exists."""
    token = None if token is None else token.format(admin=guarded.admin)
    answer = refused(guarded, head("POST", f"/v1/stream/__ds/subscriptions/none/{action}", token))
    assert (answer.status, answer.problem["error"]["code"]) == (401, "TOKEN_INVALID")


@pytest.mark.parametrize(("method", "action"), [("PUT", ""), ("POST", "/streams"), ("POST", "/claim")])
def test_a_body_that_is_too_large_for_a_subscription(tmp_path: Path, method: str, action: str) -> None:
    """It is refused by its length, or as soon as it is longer."""
    guarded = Guarded(tmp_path)
    path, most = f"/v1/stream/__ds/subscriptions/s{action}", limits.SUBSCRIPTION_BODY_BYTES_MAX
    with headwater("--memory", "--auth", str(guarded.file)) as guarded.server:
        answer = refused(guarded, head(method, path, guarded.admin, f"content-length: {most + 1}\r\n"))
        assert (answer.status, answer.problem["error"]["code"]) == (413, "BODY_TOO_LARGE")
        with Wire(guarded.server) as wire:
            wire.send(head(method, path, guarded.admin, "transfer-encoding: chunked\r\n"))
            for _ in range(most // 0x10000 + 1):
                wire.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            assert wire.answer().status == 413
