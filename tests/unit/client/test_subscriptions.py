"""Requests of subscriptions: errors, and what happens if a response is lost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from headwater import errors
from headwater.client import Claim, Client, PendingStream, Retry, SubscriptionStatus, Wake
from tests.shells import client_of

QUICK = Retry(attempts=3, first_s=0.0001, most_s=0.001, patience_s=0.0)
ROOT = "/v1/stream/__ds/subscriptions"
CLAIMED = {
    "wake_id": "w_1",
    "generation": 7,
    "token": "wake-token",
    "streams": [
        {"path": "e/1", "link_type": "glob", "acked_offset": "-1", "tail_offset": "0_9", "has_pending": True},
        {"path": "e/2", "link_type": "glob", "acked_offset": "0_1", "tail_offset": "0_1", "has_pending": False},
    ],
    "lease_ttl_ms": 30000,
}
RECORD = {
    "id": "s",
    "subscription_id": "s",
    "type": "pull-wake",
    "streams": [{"path": "e/1", "link_type": "glob", "acked_offset": "0_9"}],
    "wake_stream": "wake",
    "lease_ttl_ms": 30000,
    "created_at": "2026-05-09T00:00:00.000Z",
    "status": "active",
}
LOST = httpx.RemoteProtocolError("lost")

Reply = httpx.Response | Exception


def refused(code: str, status: int = 409, **members: object) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "said", **members}})


class FakeServer:
    """Answers with the replies that were prepared, by method and path, the last one for ever."""

    def __init__(self, shell: str) -> None:
        self.requests: list[httpx.Request] = []
        self.replies: dict[str, list[Reply]] = {f"POST {ROOT}/s/claim": [httpx.Response(200, json=CLAIMED)]}
        kind: Any = httpx.Client if shell == "sync" else httpx.AsyncClient
        self.http = kind(transport=httpx.MockTransport(self._handle))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        replies = self.replies[f"{request.method} {request.url.path}"]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    def answer(self, route: str, *replies: Reply) -> None:
        self.replies[route] = list(replies)

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests if request.content]


@pytest.fixture
def server(shell: str) -> FakeServer:
    return FakeServer(shell)


@pytest.fixture
def make(shell: str, server: FakeServer) -> Iterator[Callable[..., Client]]:
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(
            client_of(shell, "http://server", http=server.http, retry=QUICK, **options)
        )


@pytest.fixture
def client(make: Callable[..., Client]) -> Client:
    return make()


@pytest.fixture
def claim(client: Client) -> Claim:
    return client.subscription("s").claim("me")


# Errors


def test_an_unknown_control_url_of_another_server_is_not_about_a_subscription(
    client: Client, server: FakeServer
) -> None:
    """The Node reference answers with this code to every URL below `__ds` that it does not have."""
    server.answer(f"GET {ROOT.removesuffix('/subscriptions')}/streams", refused("SUBSCRIPTION_NOT_FOUND", 404))
    with pytest.raises(errors.StreamNotFoundError):
        list(client.list())


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "INVALID_REQUEST", errors.InvalidSubscriptionError),
        (400, "WEBHOOK_URL_REJECTED", errors.WebhookUrlRejectedError),
        (401, "TOKEN_INVALID", errors.WakeTokenError),
        (401, "TOKEN_EXPIRED", errors.WakeTokenExpiredError),
        (404, "SUBSCRIPTION_NOT_FOUND", errors.SubscriptionNotFoundError),
        (409, "SUBSCRIPTION_ALREADY_EXISTS", errors.SubscriptionExistsError),
        (409, "FENCED", errors.FencedError),
        (409, "NO_PENDING_WORK", errors.NoPendingWorkError),
        (409, "INVALID_OFFSET", errors.InvalidAckError),
    ],
)
@pytest.mark.parametrize("is_problem", [False, True])
def test_codes_of_the_protocol_are_errors(
    client: Client, server: FakeServer, status: int, code: str, kind: type[errors.HeadwaterError], is_problem: bool
) -> None:
    reply = refused(code, status)
    if is_problem:  # as Headwater sends it
        body = {"type": f"urn:headwater:{kind().code}", "title": kind.title, "status": status, "detail": "said"}
        content = json.dumps(body | {"error": {"code": code, "message": "said"}}).encode()
        reply = httpx.Response(status, content=content, headers={"content-type": "application/problem+json"})
    server.answer(f"GET {ROOT}/s", reply)
    with pytest.raises(kind) as raised:
        client.subscription("s").get()
    assert type(raised.value) is kind
    assert (raised.value.detail, raised.value.status, raised.value.retryable) == ("said", status, False)
    assert raised.value.protocol_code == code


def test_a_claim_that_another_worker_has_names_it(client: Client, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/claim", refused("ALREADY_CLAIMED", current_holder="she", generation=6))
    with pytest.raises(errors.AlreadyClaimedError) as raised:
        client.subscription("s").claim("me")
    assert (raised.value.holder, raised.value.generation) == ("she", 6)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"error": 1}', b'{"error": {"code": "OTHER"}}', b'{"error": {"code": "FENCED", "generation": "x"}}'],
)
def test_other_bodies_are_errors_by_their_status(client: Client, server: FakeServer, body: bytes) -> None:
    reply = httpx.Response(409, content=body, headers={"content-type": "application/json"})
    server.answer(f"GET {ROOT}/s", reply)
    with pytest.raises(errors.ConflictError) as raised:
        client.subscription("s").get()
    assert type(raised.value) is errors.ConflictError


def test_codes_count_only_for_control_routes(client: Client, server: FakeServer) -> None:
    server.answer("PUT /v1/stream/s", refused("FENCED"))
    with pytest.raises(errors.ConfigurationError):
        client.stream("s").create()


def test_a_response_that_is_not_a_record_is_an_error(client: Client, server: FakeServer) -> None:
    server.answer(f"GET {ROOT}/s", httpx.Response(200, json={"id": 1}))
    with pytest.raises(errors.ProtocolError, match="not the response of a server with subscriptions"):
        client.subscription("s").get()


# Requests


def test_a_claim_has_what_the_server_sent(claim: Claim) -> None:
    assert (claim.subscription, claim.wake_id, claim.generation, claim.token) == ("s", "w_1", 7, "wake-token")
    assert claim.lease_s == 30.0
    assert not claim.is_lost
    assert claim.streams[0] == PendingStream("e/1", "glob", "-1", "0_9", True)


def test_a_claim_whose_response_was_lost_is_repeated_with_the_same_id(client: Client, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/claim", LOST, httpx.Response(200, json=CLAIMED))
    client.subscription("s").claim("me")
    client.subscription("s").claim("me")
    first, repeated, other = server.bodies()
    assert first == repeated
    assert first["worker"] == "me"
    assert first["claim_id"] != other["claim_id"]


def test_requests_about_a_wake_have_its_token(make: Callable[..., Client], server: FakeServer) -> None:
    tokens: list[str] = []

    def token() -> str:
        tokens.append(f"client-token-{len(tokens)}")
        return tokens[-1]

    claim = make(token=token).subscription("s").claim("me")
    server.answer(f"POST {ROOT}/s/ack", httpx.Response(200, json={"ok": True, "next_wake": False}))
    claim.ack({"e/1": "0_9"})
    server.answer(f"POST {ROOT}/s/ack", refused("TOKEN_EXPIRED", 401))
    with pytest.raises(errors.WakeTokenExpiredError):
        claim.heartbeat()
    credentials = [request.headers["authorization"] for request in server.requests]
    assert credentials == ["Bearer client-token-0", "Bearer wake-token", "Bearer wake-token"]
    assert len(tokens) == 1  # a wake token that has expired is no reason for another token of the client
    assert server.bodies()[1] == {
        "wake_id": "w_1",
        "generation": 7,
        "acks": [{"stream": "e/1", "offset": "0_9"}],
    }
    assert server.bodies()[2] == {"wake_id": "w_1", "generation": 7}


def test_ids_and_paths_are_encoded(client: Client, server: FakeServer) -> None:
    server.answer(f"DELETE {ROOT}/a/b c/streams/x/ä", httpx.Response(204))
    client.subscription("a/b c").remove_stream("/x/ä")
    assert server.requests[0].url.raw_path.decode() == f"{ROOT}/a%2Fb%20c/streams/x%2F%C3%A4"


@pytest.mark.parametrize("path", ["..", ".", "a/../b", "/../"])
def test_a_path_that_http_clients_resolve_is_refused(client: Client, server: FakeServer, path: str) -> None:
    """`DELETE …/s/streams/..` would be `DELETE …/s/`, which deletes the subscription."""
    subscription = client.subscription("s")
    with pytest.raises(errors.InvalidPathError, match="a path segment cannot be"):
        subscription.remove_stream(path)
    with pytest.raises(errors.InvalidPathError, match="a path segment cannot be"):
        subscription.add_streams([path])
    assert server.requests == []


def test_the_list_comes_in_pages(client: Client, server: FakeServer) -> None:
    one = {"id": "a", "type": "pull-wake", "wake_stream": "w", "pending_count": 2, "holder": None, "extra": 1}
    two = {"id": "b", "type": "webhook", "failures": 3, "next_attempt_at": "2026-05-09T00:00:00Z", "holder": "me"}
    pages = [{"subscriptions": [one], "next_after": "a"}, {"subscriptions": [two], "next_after": None}]
    server.answer(f"GET {ROOT}", *(httpx.Response(200, json=page) for page in pages))
    assert list(client.subscriptions("x", page_size=1)) == [
        SubscriptionStatus(id="a", type="pull-wake", wake_stream="w", pending_count=2),
        SubscriptionStatus(id="b", type="webhook", failures=3, next_attempt_at="2026-05-09T00:00:00Z", holder="me"),
    ]
    assert [str(request.url.query, "ascii") for request in server.requests] == [
        "limit=1&prefix=x",
        "after=a&limit=1&prefix=x",
    ]


# Responses that were lost


def test_an_ack_is_repeated(claim: Claim, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/ack", LOST, httpx.Response(200, json={"ok": True, "next_wake": False}))
    claim.ack({"e/1": "0_9"})
    assert len(server.requests) == 3


def test_an_ack_that_is_fenced_after_a_lost_response_is_an_error(claim: Claim, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/ack", LOST, refused("FENCED"))
    with pytest.raises(errors.FencedError):
        claim.ack({"e/1": "0_9"})


def test_done_whose_response_was_lost_is_done_if_the_cursors_say_so(claim: Claim, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/ack", LOST, refused("FENCED"))
    server.answer(f"GET {ROOT}/s", httpx.Response(200, json=RECORD))
    assert claim.ack({"e/1": "0_9"}, done=True).next_wake is None


@pytest.mark.parametrize(
    "record",
    [
        httpx.Response(200, json=RECORD | {"streams": [{"path": "e/1", "link_type": "glob", "acked_offset": "0_8"}]}),
        httpx.Response(200, json=RECORD | {"streams": []}),
        refused("SUBSCRIPTION_NOT_FOUND", 404),
    ],
)
def test_done_that_may_not_be_applied_is_an_error(claim: Claim, server: FakeServer, record: httpx.Response) -> None:
    server.answer(f"POST {ROOT}/s/ack", LOST, refused("FENCED"))
    server.answer(f"GET {ROOT}/s", record)
    with pytest.raises(errors.FencedError):
        claim.ack({"e/1": "0_9"}, done=True)


def test_done_without_acks_needs_no_cursors(claim: Claim, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/ack", LOST, refused("FENCED"))
    assert claim.ack({}, done=True).next_wake is None


def test_done_that_is_fenced_at_once_is_an_error(claim: Claim, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/ack", refused("FENCED"))
    with pytest.raises(errors.FencedError):
        claim.ack({}, done=True)


def test_a_release_is_repeated(claim: Claim, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/release", LOST, refused("FENCED"))
    claim.release()
    with pytest.raises(errors.FencedError):
        claim.release()


def test_a_deletion_is_repeated(client: Client, server: FakeServer) -> None:
    server.answer(f"DELETE {ROOT}/s", LOST, refused("SUBSCRIPTION_NOT_FOUND", 404))
    client.subscription("s").delete()
    with pytest.raises(errors.SubscriptionNotFoundError):
        client.subscription("s").delete()


def test_a_heartbeat_is_sent_once(claim: Claim, server: FakeServer) -> None:
    server.answer(f"POST {ROOT}/s/ack", LOST)
    with pytest.raises(errors.NetworkError):
        claim.heartbeat()
    assert len(server.requests) == 2


# Webhooks that are acked later


def test_a_lease_ends_while_the_machine_is_suspended(client: Client, server: FakeServer) -> None:
    """`time.monotonic` stands still then: the worker would go on with events that another one has."""
    now_s = 0.0
    session = client._session
    session.clock = lambda: 0.0
    session.lease_clock = lambda: now_s
    claim = client.subscription("s").claim("me")
    assert not claim.is_lost
    now_s = 30.0
    assert claim.is_lost


def test_a_webhook_is_acked_by_its_callback(client: Client, server: FakeServer) -> None:
    wake = Wake(
        "s", "w_2", 8, [PendingStream("e/1", "glob", "-1", "0_9", True)], "http://server/callback", "hook-token"
    )
    with pytest.raises(ValueError, match="of the subscription 's', not of 't'"):
        client.subscription("t").answer(wake)
    claim = client.subscription("s").answer(wake)
    assert (claim.generation, claim.lease_s, claim.is_lost) == (8, None, False)
    server.answer(f"POST {ROOT}/s/callback", httpx.Response(200, json={"ok": True, "next_wake": True}))
    claim.heartbeat()
    assert claim.ack({"e/1": "0_9"}, done=True).next_wake is True
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer hook-token"}
    with pytest.raises(ValueError, match="cannot be released"):
        claim.release()
