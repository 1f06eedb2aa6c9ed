"""Requests while a server is away: how long they are retried, and which of them may be sent again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import cast

import httpx
import pytest

from headwater.client import Client, Retry
from headwater.client.effects import Effect, HttpReply, HttpRequest, Report, Send, Sleep
from headwater.client.session import Session, Timeouts, exchange, lost
from headwater.errors import (
    HeadwaterError,
    NetworkError,
    OutcomePendingError,
    OverloadedError,
    ServerError,
    StoppingError,
)
from headwater.protocol.problems import PROBLEM_MEDIA_TYPE

REQUEST = HttpRequest("POST", "http://server/v1/stream/a", {}, b"x")
DONE = HttpReply(204, {})
BINARY = "application/octet-stream"


def refused() -> HeadwaterError:
    return lost(REQUEST, "refused", "connect")


def broken() -> HeadwaterError:
    return lost(REQUEST, "reset")


def unsent() -> HeadwaterError:
    return lost(REQUEST, "reset", sent=False)


def of_headwater(code: str, status: int = 503) -> HttpReply:
    body = b'{"type": "urn:headwater:%b", "detail": "told"}' % code.encode()
    return HttpReply(status, {"content-type": PROBLEM_MEDIA_TYPE, "retry-after": "1"}, body)


def of_proxy(status: int) -> HttpReply:
    return HttpReply(status, {"content-type": "text/html"}, b"<html><title>Bad</title></html>")


class Network:
    """A server in virtual time: it fails as told until it is back."""

    def __init__(self, failure: HeadwaterError | HttpReply, back_s: float, retry: Retry | None = None) -> None:
        self.session = Session("http://server", None, None, None, retry or Retry(), Timeouts(), None)
        self.session.clock = lambda: self.now_s
        self.session.chance = lambda: 1.0
        self.session.contact.made = True
        self.now_s = 0.0
        self.sent = 0
        self._failure = failure
        self._back_s = back_s

    def run(self, *, repeatable: bool = False) -> HttpReply:
        flow = exchange(self.session, REQUEST, repeatable=repeatable)
        effect: Effect = next(flow)
        try:
            while True:
                match effect:
                    case Send():
                        self.sent += 1
                        if self.now_s >= self._back_s:
                            effect = flow.send(DONE)
                        elif isinstance(self._failure, HttpReply):
                            effect = flow.send(self._failure)
                        else:
                            effect = flow.throw(self._copy())
                    case Sleep(seconds):
                        self.now_s += seconds
                        effect = flow.send(None)
                    case Report():
                        effect = flow.send(None)
                    case _:
                        raise AssertionError(effect)
        except StopIteration as ended:
            return cast(HttpReply, ended.value)

    def _copy(self) -> HeadwaterError:
        assert isinstance(self._failure, NetworkError)
        again = lost(REQUEST, self._failure.detail, self._failure.how)
        again.nothing_done = self._failure.nothing_done
        return again


@pytest.mark.parametrize(
    "failure", [refused(), unsent(), *(of_headwater(code) for code in ("stopping", "not-ready", "unavailable"))]
)
def test_an_append_outlasts_a_restart_if_it_was_certainly_not_stored(failure: HeadwaterError | HttpReply) -> None:
    network = Network(failure, back_s=20)
    assert network.run() is DONE
    assert network.sent > Retry().attempts
    assert network.now_s < Retry().patience_s + Retry().most_s


@pytest.mark.parametrize("failure", [broken(), of_proxy(502), of_proxy(503), of_proxy(504)])
def test_an_append_that_may_have_been_stored_is_not_sent_again(failure: HeadwaterError | HttpReply) -> None:
    network = Network(failure, back_s=20)
    with pytest.raises(HeadwaterError, match="may have been stored, so it was not sent again"):
        network.run()
    assert network.sent == 1


@pytest.mark.parametrize(
    "failure",
    [
        *(refused(), broken(), of_headwater("stopping"), of_headwater("outcome-pending")),
        *(of_proxy(status) for status in (502, 503, 504)),
    ],
)
def test_a_request_that_can_be_repeated_outlasts_a_restart(failure: HeadwaterError | HttpReply) -> None:
    assert Network(failure, back_s=20).run(repeatable=True) is DONE


def test_an_append_whose_outcome_is_unknown_is_not_sent_again() -> None:
    network = Network(of_headwater("outcome-pending"), back_s=20)
    with pytest.raises(OutcomePendingError) as raised:
        network.run()
    assert network.sent == 1
    assert not raised.value.nothing_done


def test_patience_ends() -> None:
    network = Network(refused(), back_s=1_000)
    with pytest.raises(NetworkError):
        network.run()
    assert 30 <= network.now_s <= 40


def test_patience_is_a_setting() -> None:
    network = Network(refused(), back_s=100, retry=Retry(patience_s=200))
    assert network.run() is DONE
    network = Network(refused(), back_s=100, retry=Retry(patience_s=0))
    with pytest.raises(NetworkError):
        network.run()
    assert network.sent == Retry().attempts
    with pytest.raises(ValueError, match="patience_s"):
        Retry(patience_s=-1)


def test_one_attempt_is_one_attempt() -> None:
    network = Network(refused(), back_s=100, retry=Retry(attempts=1))
    with pytest.raises(NetworkError):
        network.run()
    assert network.sent == 1


def test_a_server_that_has_never_responded_is_not_waited_for() -> None:
    network = Network(refused(), back_s=1_000)
    network.session.contact.made = False
    with pytest.raises(NetworkError):
        network.run()
    assert network.sent == Retry().attempts


def test_an_overloaded_server_gets_no_more_attempts_than_before() -> None:
    network = Network(of_headwater("overloaded"), back_s=1_000)
    with pytest.raises(OverloadedError):
        network.run()
    assert network.sent == Retry().attempts


def test_a_stopping_server_that_does_not_come_back() -> None:
    with pytest.raises(StoppingError):
        Network(of_headwater("stopping"), back_s=1_000).run()


def test_a_page_of_a_proxy_is_not_the_error_of_the_server() -> None:
    with pytest.raises(ServerError) as raised:
        Network(of_proxy(502), back_s=1_000).run()
    assert raised.value.status == 502


# What was sent, as httpx tells it


@pytest.fixture
def resetting() -> Iterator[tuple[str, list[int]]]:
    """A server that resets connections: in the middle of a large request, and after a small one."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                connections.append(1)
                with sock:
                    received = b""
                    while len(received) < 100_000 and not received.endswith(b"\r\n\r\nx"):
                        received += sock.recv(10_000)
                    linger_not = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_not)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", connections
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_an_append_that_was_cut_off_while_it_was_sent_is_sent_again(resetting: tuple[str, list[int]]) -> None:
    url, connections = resetting
    with (
        Client(url, retry=Retry(attempts=3, first_s=0.001, most_s=0.001)) as client,
        pytest.raises(NetworkError) as raised,
    ):
        client.stream("a", content_type=BINARY).append(b"x" * 20_000_000)
    assert raised.value.nothing_done
    assert len(connections) == 3


def test_a_small_append_that_was_sent_is_not_sent_again(resetting: tuple[str, list[int]]) -> None:
    url, connections = resetting
    with Client(url, retry=Retry(attempts=3)) as client, pytest.raises(NetworkError, match="may have been stored"):
        client.stream("a", content_type=BINARY).append(b"x")
    assert len(connections) == 1


def test_a_transport_that_does_not_tell_what_it_sent() -> None:
    def lose(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("reset")

    with (
        httpx.Client(transport=httpx.MockTransport(lose)) as http,
        Client("http://server", http=http) as client,
        pytest.raises(NetworkError, match="may have been stored"),
    ):
        client.stream("a", content_type=BINARY).append(b"x")
