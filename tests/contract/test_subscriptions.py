"""Subscriptions over every edge: membership, webhooks, workers that pull, fencing and access."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from headwater import limits
from headwater.protocol.subscriptions.signatures import parse_jwks, verify_webhook
from tests.edges import DURABLE, EDGES_OF_SHARED, edge, root_of
from tests.waiting import wait_for, wait_until

JSON = {"content-type": "application/json"}
LEASE_MS = 600_000


class Receiver:
    """A server that takes webhooks. `answers` is called with each body and returns a status and an answer."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.raw: list[tuple[dict[str, str], bytes]] = []
        self.answers: Callable[[dict[str, Any]], tuple[int, Any]] = lambda _: (200, {"done": True})
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.raw.append(({name.lower(): value for name, value in self.headers.items()}, body))
                receiver.requests.append(json.loads(body))
                status, answer = receiver.answers(receiver.requests[-1])
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Site:
    def __init__(self, root: str) -> None:
        self.http = httpx.Client(base_url=root, timeout=60)
        self.area = uuid.uuid4().hex  # every test has streams of its own

    def path(self, name: str) -> str:
        return f"{self.area}/{name}"

    def append(self, name: str, *messages: Any) -> str:
        """Append to a stream, which is created if it does not exist. Returns its tail."""
        url = f"/{self.path(name)}"
        answer = self.http.post(url, json=list(messages))
        if answer.status_code == 404:
            answer = self.http.put(url, json=list(messages))
        assert answer.is_success, answer.text
        return answer.headers["stream-next-offset"]

    def delete(self, name: str) -> None:
        assert self.http.delete(f"/{self.path(name)}").status_code == 204

    def subscribe(self, **config: Any) -> Subscribed:
        name = f"sub-{uuid.uuid4().hex}"
        answer = self.http.put(f"/__ds/subscriptions/{name}", json={"lease_ttl_ms": LEASE_MS, **config})
        assert answer.status_code == 201, answer.text
        return Subscribed(self, name)

    def pulled(self, **config: Any) -> Subscribed:
        """A subscription of the type pull-wake, with a wake stream."""
        wake = self.path("wake")
        self.http.put(f"/{wake}", headers=JSON)
        return self.subscribe(type="pull-wake", wake_stream=wake, **{"pattern": self.path("events/*"), **config})

    def wake_events(self) -> list[dict[str, Any]]:
        return list(self.http.get(f"/{self.path('wake')}").json())


class Subscribed:
    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.id = name
        self.url = f"/__ds/subscriptions/{name}"

    def get(self) -> dict[str, Any]:
        answer = self.site.http.get(self.url)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def cursors(self) -> dict[str, str]:
        return {stream["path"]: stream["acked_offset"] for stream in self.get()["streams"]}

    def claim(self, worker: str = "worker", **more: Any) -> httpx.Response:
        return self.site.http.post(f"{self.url}/claim", json={"worker": worker, **more})

    def claimed(self, worker: str = "worker") -> dict[str, Any]:
        answer = self.claim(worker)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def send(
        self, action: str, wake: dict[str, Any], acks: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        body = {"wake_id": wake["wake_id"], "generation": wake["generation"], **more}
        if acks is not None:
            body["acks"] = [{"stream": path, "offset": offset} for path, offset in acks.items()]
        token = wake.get("token") or wake["callback_token"]
        return self.site.http.post(f"{self.url}/{action}", json=body, headers={"authorization": f"Bearer {token}"})

    def listed(self) -> dict[str, Any]:
        page = self.site.http.get("/__ds/subscriptions", params={"prefix": self.id}).json()
        return dict(page["subscriptions"][0])


def tails(wake: dict[str, Any]) -> dict[str, str]:
    return {stream["path"]: stream["tail_offset"] for stream in wake["streams"]}


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    with edge(request.param) as server:
        yield root_of(request.param, server)


@pytest.fixture
def site(root: str) -> Iterator[Site]:
    site = Site(root)
    yield site
    site.http.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


# Creating


def test_a_subscription_is_created_confirmed_refused_with_another_configuration_and_deleted(site: Site) -> None:
    body = {"type": "pull-wake", "pattern": "/a/*/", "streams": ["b", "/b/"], "wake_stream": "wake", "description": "d"}
    url = f"/__ds/subscriptions/{site.area}"
    assert site.http.put(url, json=body).status_code == 201
    assert site.http.put(url, json={**body, "pattern": "a/*", "streams": ["b"]}).status_code == 200
    assert code(site.http.put(url, json={**body, "pattern": "c/*"})) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    record = site.http.get(url).json()
    assert (record["id"], record["subscription_id"]) == (site.area, site.area)
    assert (record["pattern"], record["wake_stream"], record["lease_ttl_ms"]) == ("a/*", "wake", 30_000)
    assert (record["status"], record["webhook"], record["description"]) == ("active", None, "d")
    assert record["streams"] == [{"path": "b", "link_type": "explicit", "acked_offset": "-1"}]
    assert site.http.delete(url).status_code == 204
    assert site.http.delete(url).status_code == 204
    assert code(site.http.get(url)) == (404, "SUBSCRIPTION_NOT_FOUND")


@pytest.mark.parametrize(
    "change",
    [
        {"type": "push"},
        {"pattern": None},
        {"pattern": "a//b"},
        {"pattern": "a/../b"},
        {"pattern": "__ds/*"},
        {"pattern": 5},
        {"streams": ["a//b"]},
        {"streams": ["__ds/streams"]},
        {"streams": "a"},
        {"wake_stream": None},
        {"streams": ["wake"]},
        {"lease_ttl_ms": 999},
        {"lease_ttl_ms": 600_001},
        {"lease_ttl_ms": 1_000.5},
        {"type": "webhook"},
        {"type": "webhook", "webhook": {}},
    ],
)
def test_an_invalid_configuration_is_refused(site: Site, change: dict[str, Any]) -> None:
    body = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "wake", **change}
    assert code(site.http.put(f"/__ds/subscriptions/{site.area}", json=body)) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 20_000])
def test_a_body_that_is_no_object_is_refused(site: Site, body: bytes) -> None:
    url = f"/__ds/subscriptions/{site.area}"
    assert code(site.http.put(url, content=body, headers=JSON)) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/hook",
        "http://169.254.169.254/latest",
        "https://192.168.1.1/",
        "ftp://example.org/",
        "https://user@example.org/",
        "nonsense",
        "http://example.org/",
    ],
)
def test_a_webhook_url_that_the_server_would_not_call_is_refused(site: Site, url: str) -> None:
    body = {"type": "webhook", "pattern": "a/*", "webhook": {"url": url}}
    assert code(site.http.put(f"/__ds/subscriptions/{site.area}", json=body)) == (400, "WEBHOOK_URL_REJECTED")


def test_ids_are_percent_decoded_and_checked(site: Site) -> None:
    body = {"type": "pull-wake", "pattern": f"{site.area}/*", "wake_stream": "wake"}
    name = f"{site.area} ü"
    assert site.http.put(f"/__ds/subscriptions/{quote(name)}", json=body).status_code == 201
    assert site.http.get(f"/__ds/subscriptions/{quote(name)}").json()["id"] == name
    for raw in ("a%2Fb", "%00", "%ff", "x" * 257):
        assert site.http.put(f"/__ds/subscriptions/{raw}", json=body).status_code in (400, 404)


def test_the_path_of_a_stream_to_remove_is_checked(site: Site) -> None:
    sub = site.pulled()
    for raw in ("%FF", "a%C3%28", "%2F", "%2e%2e%2Fx", "__ds%2Fx", "x" * 1025):
        assert code(site.http.delete(f"{sub.url}/streams/{raw}")) == (400, "INVALID_REQUEST"), raw


def test_unknown_urls_below_the_control_prefix_are_not_streams(site: Site) -> None:
    assert site.http.get("/__ds/nothing").status_code == 404
    assert site.http.put("/__ds/nothing").status_code == 404
    assert code_of_problem(site.http.post("/__ds/subscriptions/x/nothing")) == "subscription-not-found"
    assert site.http.put("/__ds/jwks.json").status_code == 405


def code_of_problem(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rpartition("/")[2].rpartition(":")[2]


# Links


def test_existing_streams_are_linked_at_their_tail_and_new_ones_at_their_beginning(site: Site) -> None:
    tail = site.append("events/old", 1)
    subscribed = site.pulled()
    assert subscribed.cursors() == {site.path("events/old"): tail}
    assert code(subscribed.claim()) == (409, "NO_PENDING_WORK")
    new_tail = site.append("events/new", 1)
    site.append("events/deep/er", 1)  # `*` is one segment
    wake = subscribed.claimed()
    assert wake["streams"] == [
        {
            "path": site.path("events/new"),
            "link_type": "glob",
            "acked_offset": "-1",
            "tail_offset": new_tail,
            "has_pending": True,
        }
    ]


def test_a_link_to_a_stream_that_does_not_exist_is_not_pending_when_an_empty_stream_is_created(site: Site) -> None:
    subscribed = site.pulled(pattern=None, streams=[site.path("later")])
    site.http.put(f"/{site.path('later')}", headers=JSON)
    assert code(subscribed.claim()) == (409, "NO_PENDING_WORK")
    tail = site.append("later", 1)
    assert tails(subscribed.claimed()) == {site.path("later"): tail}


def test_links_by_name_are_added_at_the_tail_and_removed(site: Site) -> None:
    subscribed = site.pulled()
    tail = site.append("other", 1)
    streams = f"{subscribed.url}/streams"
    assert site.http.post(streams, json={"streams": [site.path("other")]}).status_code == 204
    assert site.http.post(streams, json={"streams": [site.path("other")]}).status_code == 204
    assert subscribed.cursors() == {site.path("other"): tail}
    after = site.append("other", 2)
    assert tails(subscribed.claimed()) == {site.path("other"): after}
    assert site.http.delete(f"{streams}/{site.path('other')}").status_code == 204  # with slashes
    assert site.http.delete(f"{streams}/{quote(site.path('other'), safe='')}").status_code == 204  # and without
    assert subscribed.cursors() == {}
    assert code(site.http.post(streams, json={"streams": ["a//b"]})) == (400, "INVALID_REQUEST")
    assert code(site.http.post(streams, json={"streams": [site.path("wake")]})) == (400, "INVALID_REQUEST")


def test_a_link_by_pattern_stays_when_the_link_by_name_is_removed(site: Site) -> None:
    subscribed = site.pulled()
    site.append("events/a", 1)
    path = site.path("events/a")
    site.http.post(f"{subscribed.url}/streams", json={"streams": [path]})
    assert subscribed.get()["streams"] == [{"path": path, "link_type": "explicit", "acked_offset": "-1"}]
    site.http.delete(f"{subscribed.url}/streams/{path}")
    assert subscribed.get()["streams"] == [{"path": path, "link_type": "glob", "acked_offset": "-1"}]


def test_a_stream_that_is_deleted_and_created_again_is_read_from_its_beginning(site: Site) -> None:
    subscribed = site.pulled(streams=[site.path("named")])
    old = {site.path(name): site.append(name, 1) for name in ("events/a", "named")}
    wake = subscribed.claimed()
    assert subscribed.send("ack", wake, old, done=True).json() == {"ok": True, "next_wake": False}
    for name in ("events/a", "named"):
        site.delete(name)
    assert code(subscribed.claim()) == (409, "NO_PENDING_WORK")
    new = {site.path(name): site.append(name, 2) for name in ("events/a", "named")}
    wait_for(lambda: subscribed.listed()["pending_count"], 2)  # another server may have got the appends
    wake = subscribed.claimed()
    assert tails(wake) == new
    assert {stream["acked_offset"] for stream in wake["streams"]} == {"-1"}
    assert code(subscribed.send("ack", wake, old)) == (409, "INVALID_OFFSET")


def test_what_a_fork_inherits_is_history(site: Site) -> None:
    site.append("source", 1)
    subscribed = site.pulled()
    forked = {"stream-forked-from": httpx.URL(str(site.http.base_url)).path.rstrip("/") + f"/{site.path('source')}"}
    assert site.http.put(f"/{site.path('events/fork')}", headers=forked).status_code == 201
    assert code(subscribed.claim()) == (409, "NO_PENDING_WORK")
    tail = site.append("events/fork", 2)
    assert tails(subscribed.claimed()) == {site.path("events/fork"): tail}


def test_a_pattern_does_not_match_wake_streams(site: Site) -> None:
    subscribed = site.pulled(pattern=f"{site.area}/**")
    site.append("a/b/c", 1)
    wait_until(site.wake_events)
    assert list(tails(subscribed.claimed())) == [site.path("a/b/c")]
    assert list(subscribed.cursors()) == [site.path("a/b/c")]


def test_streams_are_shown_in_pages(site: Site) -> None:
    subscribed = site.pulled(streams=[site.path("z")])
    for name in ("events/c", "events/a", "events/b"):
        site.append(name, 1)
    first = site.http.get(subscribed.url, params={"limit": 2}).json()
    assert [stream["path"] for stream in first["streams"]] == [site.path("events/a"), site.path("events/b")]
    after = first["streams_next_after"]
    second = site.http.get(subscribed.url, params={"limit": 2, "after": after}).json()
    assert [stream["path"] for stream in second["streams"]] == [site.path("events/c"), site.path("z")]
    assert second["streams_next_after"] is None


# Workers that pull


def test_a_wake_event_is_written_claimed_acked_and_followed_by_the_next(site: Site) -> None:
    subscribed = site.pulled()
    first = site.append("events/a", 1)
    events = wait_until(site.wake_events)
    assert {name: events[0][name] for name in ("type", "subscription_id", "stream", "generation")} == {
        "type": "wake",
        "subscription_id": subscribed.id,
        "stream": site.path("events/a"),
        "generation": 1,
    }
    wake = subscribed.claimed("one")
    assert (wake["generation"], wake["lease_ttl_ms"]) == (1, LEASE_MS)
    second = site.append("events/a", 2)
    path = site.path("events/a")
    assert subscribed.send("ack", wake, {path: first}, done=True).json() == {"ok": True, "next_wake": True}
    assert [event["generation"] for event in site.wake_events()] == [1, 2]
    wake = subscribed.claimed("two")
    assert (wake["generation"], wake["streams"][0]["acked_offset"]) == (2, first)
    assert subscribed.send("ack", wake, {path: second}, done=True).json() == {"ok": True, "next_wake": False}
    assert subscribed.cursors() == {path: second}


def test_one_worker_holds_the_lease(site: Site) -> None:
    subscribed = site.pulled()
    site.append("events/a", 1)
    wake = subscribed.claimed("one")
    answer = subscribed.claim("two")
    assert code(answer) == (409, "ALREADY_CLAIMED")
    assert (answer.json()["error"]["current_holder"], answer.json()["error"]["generation"]) == ("one", 1)
    assert code(subscribed.claim("one")) == (409, "ALREADY_CLAIMED")
    assert subscribed.send("release", wake).status_code == 204
    assert code(subscribed.send("release", wake)) == (409, "FENCED")
    assert subscribed.claimed("two")["generation"] == 2


def test_a_claim_whose_response_was_lost_can_be_repeated(site: Site) -> None:
    subscribed = site.pulled()
    site.append("events/a", 1)
    first = subscribed.claim("one", claim_id="c1").json()
    again = subscribed.claim("one", claim_id="c1").json()
    assert (again["wake_id"], again["streams"]) == (first["wake_id"], first["streams"])
    assert code(subscribed.claim("one", claim_id="c2")) == (409, "ALREADY_CLAIMED")
    assert subscribed.send("ack", again, done=True).status_code == 200


def test_an_expired_lease_fences_its_holder_and_wakes_again(site: Site) -> None:
    subscribed = site.pulled(lease_ttl_ms=1_000)
    tail = site.append("events/a", 1)
    wake = subscribed.claimed("slow")
    former = len(site.wake_events())  # a busy machine claims late, after a second one
    wait_until(lambda: len(site.wake_events()) > former)
    assert code(subscribed.send("ack", wake, {site.path("events/a"): tail}, done=True)) == (409, "FENCED")
    assert subscribed.cursors() == {site.path("events/a"): "-1"}
    assert subscribed.claimed("other")["generation"] == 2


def test_acks_are_applied_all_or_none(site: Site) -> None:
    subscribed = site.pulled()
    first, path = site.append("events/a", 1), site.path("events/a")
    tail = site.append("events/a", 2)
    other = site.append("events/b", 1)
    wake = subscribed.claimed()
    for acks in (
        {path: first, site.path("events/b"): "-1"},
        {path: first, site.path("events/none"): other},
        {path: first, site.path("elsewhere"): other},
        {path: first, site.path("events/b"): other[:-1] + "9"},
        {path: first, site.path("events/b"): "now"},
        {path: first, site.path("events/b"): "nonsense"},
        {path: tail[:-1] + ("1" if not tail.endswith("1") else "2")},  # inside a record
    ):
        assert code(subscribed.send("ack", wake, acks)) == (409, "INVALID_OFFSET"), acks
    assert set(subscribed.cursors().values()) == {"-1"}
    assert subscribed.send("ack", wake, {path: tail}).json() == {"ok": True, "next_wake": False}
    assert code(subscribed.send("ack", wake, {path: first})) == (409, "INVALID_OFFSET")  # never back
    assert subscribed.send("ack", wake, {path: tail}).status_code == 200  # the same again is fine
    assert subscribed.cursors() == {path: tail, site.path("events/b"): "-1"}


def test_requests_are_checked_in_order(site: Site) -> None:
    subscribed = site.pulled()
    site.append("events/a", 1)
    wake = subscribed.claimed()
    body = {"wake_id": wake["wake_id"], "generation": wake["generation"]}
    url, http = subscribed.url, site.http
    assert code(http.post(f"{url}/ack", json=body)) == (401, "TOKEN_INVALID")
    bearer = {"authorization": f"Bearer {wake['token']}"}
    assert code(http.post("/__ds/subscriptions/none/ack", json=body, headers=bearer)) == (404, "SUBSCRIPTION_NOT_FOUND")
    assert code(http.post(f"{url}/callback", json=body, headers=bearer)) == (400, "INVALID_REQUEST")
    other = "A" if wake["token"][-10] != "A" else "B"
    for token in ("x", "x.y", wake["token"][:-10] + other + wake["token"][-9:], wake["token"] + "A", "ü"):
        headers = {b"authorization": f"Bearer {token}".encode()}
        assert code(http.post(f"{url}/ack", json=body, headers=headers)) == (401, "TOKEN_INVALID"), token
    assert code(http.post(f"{url}/ack", json={**body, "generation": 2}, headers=bearer)) == (409, "FENCED")
    assert code(http.post(f"{url}/ack", json={**body, "wake_id": "w_0"}, headers=bearer)) == (409, "FENCED")
    assert code(http.post(f"{url}/ack", json={"generation": 1}, headers=bearer)) == (400, "INVALID_REQUEST")
    assert subscribed.send("ack", wake, done=True).status_code == 200


def test_the_token_of_a_subscription_that_was_deleted_is_of_no_use_for_the_next_one(site: Site) -> None:
    subscribed = site.pulled()
    tail = site.append("events/a", 1)
    wake = subscribed.claimed()
    assert site.http.delete(subscribed.url).status_code == 204
    acks = {site.path("events/a"): tail}
    assert code(subscribed.send("ack", wake, acks)) == (404, "SUBSCRIPTION_NOT_FOUND")
    config = {"type": "pull-wake", "pattern": site.path("events/*"), "wake_stream": site.path("wake")}
    assert site.http.put(subscribed.url, json=config).status_code == 201
    site.append("events/a", 2)
    assert subscribed.claimed()["generation"] == 1
    assert code(subscribed.send("ack", wake, acks)) == (409, "FENCED")


@pytest.mark.parametrize("fault", ["missing", "closed", "binary"])
def test_a_wake_event_is_written_when_the_wake_stream_can_take_it(site: Site, fault: str) -> None:
    subscribed = site.pulled()
    wake = f"/{site.path('wake')}"
    site.http.delete(wake)
    if fault == "closed":
        site.http.put(wake, headers={**JSON, "stream-closed": "true"})
    elif fault == "binary":
        site.http.put(wake, headers={"content-type": "application/octet-stream"})
    site.append("events/a", 1)
    wait_for(lambda: subscribed.listed()["status"], "failed")
    assert site.path("wake") in subscribed.listed()["last_failure"]
    site.http.delete(wake)
    site.http.put(wake, headers=JSON)
    events = wait_until(site.wake_events)
    assert events[0]["generation"] == 1
    assert subscribed.listed()["status"] == "active"


def test_what_does_not_wake(site: Site) -> None:
    site.append("events/a", 1)
    subscribed = site.pulled()
    url = f"/{site.path('events/a')}"
    site.http.put(url, json=[1])  # it exists
    site.http.post(url, headers={"stream-closed": "true"})  # without data
    producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
    site.append("events/b")
    assert code(subscribed.claim()) == (409, "NO_PENDING_WORK")
    tail = site.http.post(f"/{site.path('events/b')}", json=[1], headers=producer).headers["stream-next-offset"]
    wake = subscribed.claimed()
    assert subscribed.send("ack", wake, {site.path("events/b"): tail}, done=True).json()["next_wake"] is False
    site.http.post(f"/{site.path('events/b')}", json=[1], headers=producer)  # a duplicate
    assert code(subscribed.claim()) == (409, "NO_PENDING_WORK")


# Webhooks


def webhook(site: Site, receiver: Receiver, **config: Any) -> Subscribed:
    return site.subscribe(type="webhook", webhook={"url": receiver.url}, pattern=site.path("events/*"), **config)


def test_a_webhook_is_signed_and_acks_what_it_was_sent(site: Site, receiver: Receiver) -> None:
    subscribed = webhook(site, receiver)
    tail = site.append("events/a", 1)
    wait_for(subscribed.cursors, {site.path("events/a"): tail})
    signing = subscribed.get()["webhook"]["signing"]
    keys = parse_jwks(httpx.get(signing["jwks_url"]).content)
    headers, body = receiver.raw[0]
    verify_webhook(headers["webhook-signature"], body, keys, float(headers["webhook-signature"].split(",")[0][2:]))
    assert signing["kid"] in keys
    assert receiver.requests[0]["callback_url"].endswith(f"/v1/stream{subscribed.url}/callback")


def test_what_arrives_during_a_webhook_is_in_the_next_one(site: Site, receiver: Receiver) -> None:
    more: list[str] = []

    def answer(wake: dict[str, Any]) -> tuple[int, Any]:
        if wake["generation"] == 1:
            more.append(site.append("events/a", 2))
        return 200, {"done": True}

    receiver.answers = answer
    subscribed = webhook(site, receiver)
    first, path = site.append("events/a", 1), site.path("events/a")
    wait_until(lambda: more and subscribed.cursors() == {path: more[0]})
    assert [(wake["generation"], tails(wake)) for wake in receiver.requests] == [
        (1, {path: first}),
        (2, {path: more[0]}),
    ]


def test_a_receiver_may_call_back(site: Site, receiver: Receiver) -> None:
    receiver.answers = lambda _: (202, "later")
    subscribed = webhook(site, receiver)
    tail, path = site.append("events/a", 1), site.path("events/a")
    wake = wait_until(lambda: receiver.requests)[0]
    assert subscribed.send("callback", wake, {path: tail}).json() == {"ok": True, "next_wake": False}
    assert code(subscribed.send("ack", wake)) == (400, "INVALID_REQUEST")
    assert code(subscribed.claim()) == (400, "INVALID_REQUEST")
    assert subscribed.send("callback", wake, done=True).json() == {"ok": True, "next_wake": False}
    assert code(subscribed.send("callback", wake, done=True)) == (409, "FENCED")
    assert subscribed.cursors() == {path: tail}


def test_a_failed_webhook_is_sent_again_as_it_was(site: Site, receiver: Receiver) -> None:
    failing = threading.Event()
    failing.set()
    receiver.answers = lambda _: (500, {}) if failing.is_set() else (200, {"done": True})
    subscribed = webhook(site, receiver)
    first, path = site.append("events/a", 1), site.path("events/a")
    wait_for(lambda: subscribed.listed()["status"], "failed")
    listed = subscribed.listed()
    assert listed["failures"] >= 1
    assert "500" in listed["last_failure"]
    second = site.append("events/a", 2)
    failing.clear()
    wait_for(subscribed.cursors, {path: second})
    sent = [(wake["wake_id"], tails(wake)[path]) for wake in receiver.requests]
    assert len(set(sent)) == 2
    assert (sent[0][1], sent[-1][1]) == (first, second)
    assert subscribed.listed()["status"] == "active"


def test_a_late_answer_does_not_ack_what_it_was_not_sent(site: Site, receiver: Receiver) -> None:
    """The wake is done by a callback, another one begins, and then the response of the first arrives."""
    called, go_on = threading.Event(), threading.Event()

    def answer(wake: dict[str, Any]) -> tuple[int, Any]:
        if wake["generation"] == 1:
            called.set()
            go_on.wait(60)
            return 200, {"done": True}
        return 202, {}

    receiver.answers = answer
    subscribed = webhook(site, receiver)
    first, path = site.append("events/a", 1), site.path("events/a")
    called.wait(60)
    site.append("events/a", 2)
    wake = receiver.requests[0]
    assert subscribed.send("callback", wake, {path: first}, done=True).json() == {"ok": True, "next_wake": True}
    wait_until(lambda: len(receiver.requests) == 2)
    go_on.set()
    assert subscribed.send("callback", receiver.requests[1], done=False).status_code == 200
    assert subscribed.cursors() == {path: first}


def test_the_list_has_lag_lease_and_holder(site: Site) -> None:
    subscribed = site.pulled()
    site.append("events/a", 1)
    subscribed.claimed("one")
    listed = subscribed.listed()
    assert (listed["type"], listed["status"], listed["holder"]) == ("pull-wake", "active", "one")
    assert (listed["pending_count"], listed["lag_bytes"], listed["generation"]) == (1, 2, 1)
    assert listed["lease_expires_at"] is not None


def test_keys_are_rotated_and_old_ones_stay_published(site: Site, receiver: Receiver) -> None:
    subscribed = webhook(site, receiver)
    before = subscribed.get()["webhook"]["signing"]
    assert site.http.post("/__ds/rotate-key").status_code == 204
    after = subscribed.get()["webhook"]["signing"]
    assert before["kid"] != after["kid"]
    assert {before["kid"], after["kid"]} <= set(parse_jwks(httpx.get(after["jwks_url"]).content))
    site.append("events/a", 1)
    headers, _ = wait_until(lambda: receiver.raw)[0]
    assert after["kid"] in headers["webhook-signature"]


@pytest.mark.slow
def test_very_many_subscriptions_of_one_stream_are_told_in_turns() -> None:
    """More than are told in one step, by pattern and by name."""
    count = 2 * limits.SUBSCRIPTION_NOTES_PER_TURN
    with edge(DURABLE) as server:
        site = Site(root_of(DURABLE, server))
        for number in range(count):
            member = {"streams": [site.path("events/a")]} if number % 2 else {}
            site.pulled(**member)
        tail = site.append("events/a", 1)
        wait_for(lambda: len({event["subscription_id"] for event in site.wake_events()}), count)
        site.delete("events/a")
        assert tail


def test_a_list_has_pages(site: Site) -> None:
    ids = sorted(site.pulled().id for _ in range(5))
    listed: list[str] = []
    query: dict[str, Any] = {"prefix": "sub-", "limit": 2, "after": ids[0]}
    while query["after"] is not None:
        page = site.http.get("/__ds/subscriptions", params=query).json()
        listed += [one["id"] for one in page["subscriptions"]]
        assert len(page["subscriptions"]) <= 2
        query["after"] = page["next_after"]
    assert [name for name in listed if name in ids] == ids[1:]
    assert listed == sorted(set(listed))


def test_a_claim_finds_what_was_appended_before_although_very_many_are_told(site: Site) -> None:
    subscriptions = [site.pulled() for _ in range(limits.SUBSCRIPTION_NOTES_PER_TURN + 10)]
    site.append("events/a", 1)
    assert subscriptions[-1].claimed()["generation"] == 1
    for subscribed in subscriptions:
        assert site.http.delete(subscribed.url).status_code == 204
