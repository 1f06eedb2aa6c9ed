"""The verifier of webhooks: which keys it fetches and when, and what it refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headwater import limits
from headwater.client import PendingStream, Retry, Wake
from headwater.errors import (
    NetworkError,
    ProtocolError,
    RedirectError,
    UnknownSigningKeyError,
    WebhookSignatureError,
)
from headwater.protocol.subscriptions.signatures import format_jwks, key_id, sign_webhook
from tests.shells import client_of

KEY, OTHER_KEY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
BODY = json.dumps(
    {
        "subscription_id": "s",
        "wake_id": "w_1",
        "generation": 7,
        "streams": [
            {"path": "e/1", "link_type": "glob", "acked_offset": "-1", "tail_offset": "0_9", "has_pending": True}
        ],
        "callback_url": "http://server/v1/stream/__ds/subscriptions/s/callback",
        "callback_token": "t",
        "later": "versions may add members",
    }
).encode()


def signed(key: Ed25519PrivateKey = KEY, body: bytes = BODY, age_s: float = 0.0) -> dict[str, str]:
    return {"Webhook-Signature": sign_webhook(key, key_id(key.public_key()), int(time.time() - age_s), body)}


class KeyServer:
    """Serves keys and notes the requests for them. The clock of the verifier is moved by the test."""

    def __init__(self, shell: str) -> None:
        self.keys = [KEY]
        self.headers = {"cache-control": "public, max-age=300"}
        self.failure: httpx.Response | Exception | None = None
        self.requests: list[httpx.Request] = []
        self.now_s = 1000.0
        kind: Any = httpx.Client if shell == "sync" else httpx.AsyncClient
        self.http = kind(transport=httpx.MockTransport(self._handle))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            return self.failure
        return httpx.Response(200, headers=self.headers, content=format_jwks(key.public_key() for key in self.keys))


class Receiver:
    """A verifier, with the clock of its key server."""

    def __init__(self, shell: str, server: KeyServer, client: Any, **options: Any) -> None:
        self.verifier = client.webhook_verifier(**options)
        target = getattr(self.verifier, "_target", self.verifier)
        target._session.clock = lambda: server.now_s

    def verify(self, headers: dict[str, str], body: bytes = BODY) -> Wake:
        wake: Wake = self.verifier.verify(headers, body)
        return wake


@pytest.fixture
def server(shell: str) -> KeyServer:
    return KeyServer(shell)


@pytest.fixture
def client(shell: str, server: KeyServer) -> Iterator[Any]:
    with client_of(shell, "http://server", http=server.http, token="secret", retry=Retry(attempts=3)) as client:
        yield client


@pytest.fixture
def receiver(shell: str, server: KeyServer, client: Any) -> Receiver:
    return Receiver(shell, server, client)


def test_a_valid_webhook_is_a_wake(receiver: Receiver, server: KeyServer) -> None:
    wake = receiver.verify(signed())
    assert (wake.subscription_id, wake.wake_id, wake.generation) == ("s", "w_1", 7)
    assert wake.streams == [PendingStream("e/1", "glob", "-1", "0_9", True)]
    assert wake.callback_token == "t"
    assert str(server.requests[0].url) == "http://server/v1/stream/__ds/jwks.json"
    receiver.verify({"webhook-signature": signed()["Webhook-Signature"]})  # as ASGI has it
    assert len(server.requests) == 1


def test_what_is_not_signed_by_the_server_is_refused(receiver: Receiver) -> None:
    with pytest.raises(WebhookSignatureError, match="no Webhook-Signature"):
        receiver.verify({})
    with pytest.raises(WebhookSignatureError, match="not a signature header"):
        receiver.verify({"webhook-signature": "x"})
    with pytest.raises(WebhookSignatureError, match="does not match"):
        receiver.verify(signed(), BODY + b" ")
    with pytest.raises(WebhookSignatureError, match="s old"):
        receiver.verify(signed(age_s=limits.WEBHOOK_TOLERANCE_S + 5))
    with pytest.raises(UnknownSigningKeyError):
        receiver.verify(signed(OTHER_KEY))
    text: Any = BODY.decode()
    with pytest.raises(TypeError, match="bytes that were received"):
        receiver.verify(signed(), text)


def test_a_body_that_is_signed_but_no_wake_is_an_error_of_the_protocol(receiver: Receiver) -> None:
    for body in (b"", b"[]", b"\xff", b'{"subscription_id": 1}'):
        with pytest.raises(ProtocolError, match="not a wake"):
            receiver.verify(signed(body=body), body)


def test_the_keys_are_fetched_again_when_they_are_old(receiver: Receiver, server: KeyServer) -> None:
    receiver.verify(signed())
    server.now_s += 299
    receiver.verify(signed())
    assert len(server.requests) == 1
    server.now_s += 2
    receiver.verify(signed())
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("header", "age_s"),
    [
        ("max-age=20", 20.0),
        ("public,MAX-AGE=20", 20.0),
        ("max-age=0", limits.JWKS_AGE_MIN_S),
        ("no-store", limits.JWKS_AGE_S),
        ("s-max-age=20", limits.JWKS_AGE_S),
        ("max-age=999999999", limits.JWKS_AGE_MAX_S),
    ],
)
def test_how_long_keys_are_used(receiver: Receiver, server: KeyServer, header: str, age_s: float) -> None:
    server.headers = {"cache-control": header}
    receiver.verify(signed())
    server.now_s += age_s - 0.1
    receiver.verify(signed())
    assert len(server.requests) == 1
    server.now_s += 0.2
    receiver.verify(signed())
    assert len(server.requests) == 2


def test_a_new_key_is_fetched_and_a_key_that_was_removed_is_refused(receiver: Receiver, server: KeyServer) -> None:
    receiver.verify(signed())
    server.keys = [OTHER_KEY]
    server.now_s += limits.JWKS_REFETCH_S
    receiver.verify(signed(OTHER_KEY))
    with pytest.raises(UnknownSigningKeyError):
        receiver.verify(signed())


def test_unknown_keys_do_not_make_many_requests(receiver: Receiver, server: KeyServer) -> None:
    for _ in range(100):
        with pytest.raises(UnknownSigningKeyError):
            receiver.verify(signed(OTHER_KEY))
    assert len(server.requests) == 1
    server.now_s += limits.JWKS_REFETCH_S
    for _ in range(100):
        with pytest.raises(UnknownSigningKeyError):
            receiver.verify(signed(OTHER_KEY))
    assert len(server.requests) == 2
    receiver.verify(signed())


def test_old_keys_are_used_while_the_server_is_away_but_not_for_ever(receiver: Receiver, server: KeyServer) -> None:
    receiver.verify(signed())
    server.failure = httpx.ConnectError("away")
    server.now_s += 301
    for _ in range(10):
        receiver.verify(signed())
    assert len(server.requests) == 2  # failed fetches are limited as well
    server.now_s += limits.JWKS_STALE_S
    with pytest.raises(NetworkError, match="away"):
        receiver.verify(signed())
    server.failure = None
    server.now_s += limits.JWKS_REFETCH_S
    receiver.verify(signed())


def test_without_keys_the_error_is_that_of_the_fetch(receiver: Receiver, server: KeyServer) -> None:
    server.failure = httpx.ConnectError("away")
    for _ in range(3):
        with pytest.raises(NetworkError, match="away"):
            receiver.verify(signed())
    assert len(server.requests) == 1
    for failure, kind in (
        (httpx.Response(302, headers={"location": "http://elsewhere/keys"}), RedirectError),
        (httpx.Response(200, content=b"{}"), ProtocolError),
        (httpx.Response(200, content=b'{"keys": []' + b" " * limits.JWKS_BYTES_MAX + b"}"), ProtocolError),
    ):
        server.failure = failure
        server.now_s += limits.JWKS_REFETCH_S
        with pytest.raises(kind):
            receiver.verify(signed())


def test_the_token_of_the_client_goes_to_its_server_only(shell: str, server: KeyServer, client: Any) -> None:
    Receiver(shell, server, client).verify(signed())
    Receiver(shell, server, client, jwks_url="https://keys.example/jwks.json").verify(signed())
    assert [request.headers.get("authorization") for request in server.requests] == ["Bearer secret", None]
    with pytest.raises(ValueError, match="not the URL of a JWK Set"):
        client.webhook_verifier("keys.example")


def test_a_time_that_differs_more_can_be_allowed(shell: str, server: KeyServer, client: Any) -> None:
    receiver = Receiver(shell, server, client, tolerance_s=600)
    receiver.verify(signed(age_s=500))
