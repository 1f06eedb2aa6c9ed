"""Who may do what with subscriptions, and what a subscription sees, where access is checked."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.client import Client, WorkBatch
from headwater.errors import ForbiddenError
from headwater.server.auth.editing import add_token, revoke_token
from headwater.server.auth.scopes import Action
from tests.edges import NATIVE, TOGETHER, UVICORN, edge, root_of
from tests.waiting import wait_for, wait_until

ID = "orders-1"
URL = f"/__ds/subscriptions/{ID}"
OWN = f"__ds/subscriptions/{ID}"
CONFIG = {"type": "pull-wake", "pattern": "orders/*", "wake_stream": "wake", "lease_ttl_ms": 600_000}


class World:
    def __init__(self, root: str, file: Path) -> None:
        self.http = httpx.Client(base_url=root, timeout=60)
        self.file = file
        self.admin = self.token("admin:**")

    def token(self, *scopes: str, name: str | None = None) -> str:
        """A token that the server knows, or both of two."""
        token, _ = add_token(self.file, name or f"t{uuid.uuid4().hex[:8]}", list(scopes), None)
        wait_for(lambda: all(self.send("GET", "/__ds/streams", token).status_code != 401 for _ in range(2)), True)
        return token

    def send(self, method: str, path: str, token: str | None, **more: Any) -> httpx.Response:
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return self.http.request(method, path, headers=headers, **more)

    def append(self, path: str) -> None:
        if self.send("POST", f"/{path}", self.admin, json=[1]).status_code == 404:
            assert self.send("PUT", f"/{path}", self.admin, json=[1]).status_code == 201

    def seen(self) -> list[str]:
        return [stream["path"] for stream in self.send("GET", URL, self.admin).json()["streams"]]


@pytest.fixture(params=[NATIVE, *(pytest.param(name, marks=pytest.mark.slow) for name in (UVICORN, TOGETHER))])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    file = tmp_path / "auth.toml"
    add_token(file, "first", ["admin:**"], None)
    with edge(request.param, file) as server:
        world = World(root_of(request.param, server), file)
        yield world
        world.http.close()


def test_each_request_needs_a_scope_of_its_own(world: World) -> None:
    tokens = {action: world.token(f"{action}:**") for action in Action}
    other = world.token("subscribe:__ds/subscriptions/other", "claim:__ds/subscriptions/other")
    creator = world.token(f"subscribe:{OWN}", "read:orders/**", "append:wake")
    assert world.send("PUT", "/wake", world.admin).status_code == 201
    assert world.send("PUT", URL, creator, json=CONFIG).status_code == 201
    world.append("orders/1")
    member = {"streams": ["orders/9"]}
    requests: list[tuple[str, str, Any, set[Action]]] = [
        ("GET", URL, None, {Action.SUBSCRIBE, Action.CLAIM, Action.ADMIN}),
        ("POST", f"{URL}/streams", member, {Action.ADMIN}),  # it needs read as well
        ("DELETE", f"{URL}/streams/orders/9", None, {Action.SUBSCRIBE, Action.ADMIN}),
        ("POST", f"{URL}/claim", {"worker": "w"}, {Action.CLAIM, Action.ADMIN}),
        ("POST", "/__ds/rotate-key", None, {Action.ADMIN}),
    ]
    for method, path, body, allowed in requests:
        for action, token in tokens.items():
            answer = world.send(method, path, token, json=body)
            assert (answer.status_code == 403) is (action not in allowed), (method, path, action, answer.text)
        assert world.send(method, path, other, json=body).status_code == 403
        assert world.send(method, path, None, json=body).status_code == 401
    assert world.send("GET", "/__ds/jwks.json", None).status_code == 200
    listed = world.send("GET", "/__ds/subscriptions", other).json()
    assert listed["subscriptions"] == []
    for action in (Action.READ, Action.CLAIM):
        assert world.send("DELETE", URL, tokens[action]).status_code == 403
    assert world.send("DELETE", URL, tokens[Action.SUBSCRIBE]).status_code == 204


def test_a_creator_needs_read_of_named_streams_and_append_to_the_wake_stream(world: World) -> None:
    token = world.token(f"subscribe:{OWN}", "read:orders/**")
    assert world.send("PUT", URL, token, json=CONFIG).status_code == 403
    token = world.token(f"subscribe:{OWN}", "append:wake")
    named = {**CONFIG, "pattern": None, "streams": ["orders/1"]}
    assert world.send("PUT", URL, token, json=named).status_code == 403


def test_a_subscription_sees_what_its_creator_may_read_now_and_later(world: World) -> None:
    world.send("PUT", "/wake", world.admin)
    token = world.token(f"subscribe:{OWN}", "claim:**", "read:orders/a*", "append:wake", name="creator")
    assert world.send("PUT", URL, token, json={**CONFIG, "pattern": "**"}).status_code == 201
    for path in ("orders/a1", "orders/b1", "secret"):
        world.append(path)
    assert world.seen() == ["orders/a1"]
    claim = world.send("POST", f"{URL}/claim", token, json={"worker": "w"}).json()
    assert [stream["path"] for stream in claim["streams"]] == ["orders/a1"]
    ack = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    forged = {**ack, "acks": [{"stream": "secret", "offset": claim["streams"][0]["tail_offset"]}]}
    assert world.send("POST", f"{URL}/ack", claim["token"], json=forged).status_code == 409
    revoke_token(world.file, "creator")
    world.token(f"subscribe:{OWN}", "claim:**", "read:orders/b*", "append:wake", name="creator")
    wait_for(world.seen, ["orders/b1"])
    revoke_token(world.file, "creator")
    wait_until(lambda: not world.seen())
    assert world.send("POST", f"{URL}/release", claim["token"], json=ack).status_code == 204
    assert world.send("POST", f"{URL}/claim", world.admin, json={"worker": "w"}).status_code == 409
    assert world.send("PUT", URL, world.admin, json={**CONFIG, "pattern": "**"}).status_code == 200  # a new creator
    assert world.seen() == ["orders/a1", "orders/b1", "secret"]


@pytest.mark.parametrize("is_pool", [False, True])
def test_a_worker_needs_claim_and_read(world: World, is_pool: bool) -> None:
    for path in ("wake", "orders/1"):
        world.send("PUT", f"/{path}", world.admin)
    assert world.send("PUT", URL, world.admin, json=CONFIG).status_code == 201
    token = world.token(f"claim:{OWN}", "read:wake", "read:orders/**")
    batches: list[WorkBatch[Any]] = []
    with Client(str(world.http.base_url), token=token) as client:
        worker = client.worker("wake", batches.append) if is_pool else client.subscription(ID).worker(batches.append)
        thread = threading.Thread(target=worker.run)
        thread.start()
        world.append("orders/1")
        wait_until(lambda: batches)
        world.append("orders/1")
        wait_until(lambda: len(batches) > 1)
        worker.stop()
        thread.join()
    assert [batch.messages for batch in batches] == [[1], [1]]
    with Client(str(world.http.base_url), token=world.token("read:**")) as client, pytest.raises(ForbiddenError):
        client.subscription(ID).worker(print).run()


def test_a_named_stream_that_the_creator_may_not_read_any_more_is_as_if_it_did_not_exist(world: World) -> None:
    """Nobody learns by acks, the lag or the cursors what is appended to it."""
    world.send("PUT", "/wake", world.admin)
    scopes = [f"subscribe:{OWN}", f"claim:{OWN}", "append:wake"]
    token = world.token(*scopes, "read:orders/**", name="creator")
    for path in ("orders/1", "orders/2"):
        world.append(path)
    config = {**CONFIG, "pattern": None, "streams": ["orders/1", "orders/2"]}
    assert world.send("PUT", URL, token, json=config).status_code == 201
    for path in ("orders/1", "orders/2"):
        world.append(path)
    claim = world.send("POST", f"{URL}/claim", token, json={"worker": "w"}).json()
    tails = {stream["path"]: stream["tail_offset"] for stream in claim["streams"]}
    revoke_token(world.file, "creator")
    world.token(*scopes, "read:orders/2", name="creator")
    world.append("orders/1")

    def listed() -> Any:
        return world.send("GET", "/__ds/subscriptions", world.admin).json()["subscriptions"][0]

    wait_for(lambda: listed()["lag_bytes"], 2)  # of orders/2
    later = tails["orders/1"][:-1] + "9"
    ack = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    answers = [
        world.send("POST", f"{URL}/ack", claim["token"], json={**ack, "acks": [{"stream": path, "offset": offset}]})
        for path, offset in (("orders/1", tails["orders/1"]), ("orders/1", later), ("orders/3", later))
    ]
    assert {(answer.status_code, answer.json()["detail"].partition(" ")[2]) for answer in answers} == {
        (409, "is not a stream of this subscription")
    }
    done = {**ack, "acks": [{"stream": "orders/2", "offset": tails["orders/2"]}], "done": True}
    assert world.send("POST", f"{URL}/ack", claim["token"], json=done).json() == {"ok": True, "next_wake": False}
