"""Requests for the server with the role, at a server without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headwater.engine import Engine
from headwater.engine.follower import Pulled
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete
from headwater.log.content import ContentKind
from headwater.outbound import open_outbound
from headwater.protocol.tables.paths import log_path, nurls_log_path
from headwater.server.auth.authority import Authority
from headwater.server.auth.editing import add_token, revoke_token
from headwater.server.auth.grants import GrantedCallers
from headwater.server.auth.keys import KeySet
from headwater.server.auth.rules import load_rules
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Respond, Response
from headwater.server.relaying import ANSWERS, REQUESTS, Relay
from headwater.server.roles import Role
from headwater.server.service import Service
from headwater.server.subscriptions import Subscriptions
from headwater.store.memory import MemoryStore
from tests.waiting import wait_until_async


class Elsewhere(Role):
    """The role of a server that does not have it."""

    is_held = False
    is_shared = True


class Beginning(Elsewhere):
    """The role of a server that has just got it, and has not begun to work."""

    is_held = True


class Lost(Role):
    """The role of a server that loses it."""

    is_held = True
    is_shared = True


class Pair:
    """Two servers over one engine: the first has the role. `auth` is the file with tokens."""

    def __init__(self, engine: Engine, auth: Path | None = None) -> None:
        self.engine = engine
        self.role = Lost()
        first, second = (None if auth is None else Authority(load_rules(auth, lambda _: KeySet())) for _ in range(2))
        limits = Limits()
        outbound = open_outbound(development=True, limits=limits)
        self.subscriptions = Subscriptions(engine, outbound, GrantedCallers(first))
        self.first = Service(
            engine,
            limits,
            subscriptions=self.subscriptions,
            role=self.role,
            relay=Relay(engine, "first", self.role),
            authority=first,
        )
        self.second = Service(
            engine, limits, role=Elsewhere(), relay=Relay(engine, "second", Elsewhere()), authority=second
        )
        self.dispatchers = {one.instance: Dispatcher(one) for one in (self.first, self.second)}

    async def start(self) -> None:
        await self.engine.start()
        await self.subscriptions.start()
        self.subscriptions.begin()
        for service in (self.first, self.second):
            assert service.relay is not None
            await service.relay.start()

    async def serve(self) -> None:
        assert self.first.relay is not None
        await self.first.relay.serve()

    async def stop(self) -> None:
        for service in (self.first, self.second):
            assert service.relay is not None
            await service.relay.stop()
        await self.subscriptions.stop()
        await self.engine.stop()

    async def ask(
        self, service: Service, method: str, path: str, body: object = None, **more: str
    ) -> tuple[int, object]:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"host": "127.0.0.1", "content-type": "application/json", **more}
        self.dispatchers[service.instance].dispatch(
            Request(method, path, "", headers, data, peer="127.0.0.1"), answer.set_result
        )
        response = await answer
        data = b"".join(response.body)
        return response.status, json.loads(data) if data else None

    async def relayed(self) -> bytes:
        """All requests that were passed on, as they are stored."""
        stream = await self.engine.info(REQUESTS)
        pulled = Pulled(self.engine, "test", stream, stream.first, bytes_max=1 << 20, until=stream.tail)
        pulled.follower.open()
        data = b""
        while (piece := await pulled.next()) is not None:
            data += piece.data
        pulled.follower.close()
        return data


def run(body: Callable[[Pair], Coroutine[Any, Any, None]], auth: Path | None = None) -> None:
    async def main() -> None:
        pair = Pair(Engine(MemoryStore(), Limits()), auth)
        await pair.start()
        try:
            await body(pair)
        finally:
            await pair.stop()

    asyncio.run(main())


ROOT = "/v1/stream/__ds/subscriptions"
PULL = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "/v1/stream/wakes"}


def test_a_subscription_works_at_both_servers() -> None:
    async def body(pair: Pair) -> None:
        await pair.serve()
        assert (await pair.ask(pair.second, "PUT", "/v1/stream/wakes"))[0] == 201
        status, created = await pair.ask(pair.second, "PUT", f"{ROOT}/s", PULL)
        assert status == 201, created
        for service in (pair.first, pair.second):
            assert await pair.ask(service, "GET", f"{ROOT}/s") == await pair.ask(pair.first, "GET", f"{ROOT}/s")
        assert (await pair.ask(pair.second, "GET", f"{ROOT}/other"))[0] == 404
        many = await asyncio.gather(*(pair.ask(pair.second, "GET", f"{ROOT}/s") for _ in range(50)))
        assert {status for status, _ in many} == {200}
        assert (await pair.ask(pair.second, "DELETE", f"{ROOT}/s"))[0] == 204
        assert (await pair.ask(pair.first, "GET", f"{ROOT}/s"))[0] == 404

    run(body)


@pytest.mark.parametrize("query", ["timeout=0.1", "", "since_id=1"])
def test_a_live_read_of_the_nurls_of_a_table_is_not_passed_on(query: str) -> None:
    """A response that stays open cannot be: it was empty at servers without the role."""

    async def body(pair: Pair) -> None:
        await pair.serve()
        for path in (log_path("t"), nurls_log_path(log_path("t"))):
            await pair.engine.execute(
                Create(path=path, now_ms=pair.engine.now_ms(), content_type="text/sequence", kind=ContentKind.ROWS)
            )
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        request = Request("GET", "/v1/table/t/notify", query, {"host": "127.0.0.1"}, b"", peer="127.0.0.1")
        pair.dispatchers[pair.second.instance].dispatch(request, answer.set_result)
        response = await answer
        assert response.status == 200
        assert response.feed is not None

    run(body)


def test_other_requests_are_answered_where_they_arrive() -> None:
    async def body(pair: Pair) -> None:
        assert (await pair.ask(pair.second, "PUT", "/v1/stream/a/b"))[0] == 201
        assert (await pair.ask(pair.second, "HEAD", "/v1/stream/a/b"))[0] == 200

    run(body)


def test_nobody_has_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(pair: Pair) -> None:
        monkeypatch.setattr("headwater.server.relaying.RELAY_S", 0.05)
        status, problem = await pair.ask(pair.second, "GET", f"{ROOT}/s")
        assert (status, "has not answered" in str(problem)) == (503, True)
        assert "not-ready" in str(problem)
        status, problem = await pair.ask(pair.second, "DELETE", f"{ROOT}/s")
        assert (status, "outcome-pending" in str(problem)) == (503, True)

    run(body)


@pytest.mark.parametrize("before_it_is_seen", [True, False])
def test_a_server_that_has_lost_the_role_leaves_requests_to_the_other_one(
    monkeypatch: pytest.MonkeyPatch, before_it_is_seen: bool
) -> None:
    """It follows them until it notices. It passed each of them on again, without an end, and they were done twice."""

    async def body(pair: Pair) -> None:
        monkeypatch.setattr("headwater.server.relaying.RELAY_S", 0.1)
        await pair.serve()
        assert (await pair.ask(pair.second, "GET", ROOT))[0] == 200
        before = await pair.relayed()
        relay, dispatcher = pair.first.relay, pair.dispatchers[pair.first.instance]
        assert relay is not None
        seen: list[Request] = []

        def lost(request: Request, respond: Respond) -> object:
            seen.append(request)
            pair.role.is_held = False
            return dispatcher.dispatch(request, respond)

        relay.dispatch = lost
        if before_it_is_seen:
            pair.role.is_held = False
        status, problem = await pair.ask(pair.second, "DELETE", f"{ROOT}/s")
        assert (status, "outcome-pending" in str(problem)) == (503, True)
        assert (await pair.relayed()).removeprefix(before).count(b"DELETE") == 1
        assert len(seen) == (0 if before_it_is_seen else 1)
        assert relay.waiting == 0

    run(body)


def test_no_credential_is_stored(tmp_path: Path) -> None:
    """The other server knows the caller, and checks by its own rules what it may do."""
    auth = tmp_path / "auth.toml"
    admin, _ = add_token(auth, "admin", ["admin:**"], None)
    reader, _ = add_token(auth, "reader", ["read:a/**"], None)

    async def body(pair: Pair) -> None:
        await pair.serve()

        async def ask(token: str, method: str, path: str, content: object = None) -> int:
            bearer = {"authorization": f"Bearer {token}", "cookie": "session=secret", "proxy-authorization": "secret"}
            return (await pair.ask(pair.second, method, path, content, **bearer))[0]

        assert await ask(admin, "PUT", "/v1/stream/wakes") == 201
        assert await ask(admin, "PUT", f"{ROOT}/s", PULL) == 201
        assert await ask(admin, "GET", f"{ROOT}/s") == 200
        assert await ask(reader, "DELETE", f"{ROOT}/s") == 403
        stored = await pair.relayed()
        assert b"PUT" in stored
        assert not [secret for secret in (admin, reader, "secret") if secret.encode() in stored]
        authority = pair.first.authority
        assert authority is not None
        revoke_token(auth, "admin")
        authority.use(load_rules(auth, lambda _: KeySet()))  # the second server has not seen it
        assert await ask(admin, "GET", f"{ROOT}/s") == 401

    run(body, auth)


def test_a_stop_answers_what_waits() -> None:
    async def body(pair: Pair) -> None:
        waiting = asyncio.create_task(pair.ask(pair.second, "GET", f"{ROOT}/s"))
        relay = pair.second.relay
        assert relay is not None
        await wait_until_async(lambda: relay.waiting)
        await relay.stop()
        assert (await waiting)[0] == 503

    run(body)


def test_a_record_that_cannot_be_read_stops_nothing() -> None:
    async def body(pair: Pair) -> None:
        await pair.serve()
        await pair.engine.execute(Append(REQUESTS, pair.engine.now_ms(), b"\x01\0\0\0?", "application/octet-stream"))
        assert (await pair.ask(pair.second, "GET", f"{ROOT}/s"))[0] == 404

    run(body)


@pytest.mark.parametrize("path", [REQUESTS, f"{ANSWERS}second"])
def test_a_stream_that_is_gone_is_created_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database was restored from before it was created, or a server hung until it had expired."""

    async def body(pair: Pair) -> None:
        monkeypatch.setattr("headwater.server.relaying.RELAY_S", 0.2)
        await pair.serve()
        assert (await pair.ask(pair.second, "GET", ROOT))[0] == 200
        await pair.engine.execute(Delete(path, pair.engine.now_ms()))

        async def is_answered() -> bool:
            status, _ = await pair.ask(pair.second, "GET", ROOT)
            assert status in (200, 503)  # 404 would be that of another stream
            return status == 200

        await wait_until_async(is_answered)

    run(body)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/table/__stp/views"),
        ("GET", "/v1/table/__stp/followers"),
        ("GET", "/v1/table/__stp/nurls?table=t"),
        ("GET", ROOT),
        ("POST", "/v1/table/t/notify"),
        ("POST", "/v1/stream/__ds/compact?path=a"),
        ("PUT", "/v1/table/t"),
        ("DELETE", "/v1/table/t"),
    ],
)
def test_a_server_that_has_just_got_the_role_asks_to_wait(method: str, path: str) -> None:
    """It would say otherwise that there is nothing, or that it cannot do it."""

    async def body(pair: Pair) -> None:
        service = Service(pair.engine, Limits(), role=Beginning(), relay=pair.second.relay)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        url, _, query = path.partition("?")
        Dispatcher(service).dispatch(
            Request(method, url, query, {"host": "127.0.0.1"}, b"", peer="127.0.0.1"), answer.set_result
        )
        response = await answer
        assert response.status == 503
        assert "begins or ends this work now" in bytes(response.body[0]).decode()
        assert ("retry-after", "1") in response.headers

    run(body)
