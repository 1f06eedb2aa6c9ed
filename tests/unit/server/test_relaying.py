"""Requests for the server with the role, at a server without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.log.commands import Append, Delete
from headwater.outbound import open_outbound
from headwater.server.auth.grants import GrantedCallers
from headwater.server.dispatch import Dispatcher
from headwater.server.http import Request, Response
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


class Pair:
    """Two servers over one engine: the first has the role."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        limits = Limits()
        outbound = open_outbound(development=True, limits=limits)
        self.subscriptions = Subscriptions(engine, outbound, GrantedCallers(None))
        self.first = Service(engine, limits, subscriptions=self.subscriptions, relay=Relay(engine, "first"))
        self.second = Service(engine, limits, role=Elsewhere(), relay=Relay(engine, "second"))
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

    async def ask(self, service: Service, method: str, path: str, body: object = None) -> tuple[int, object]:
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        data = b"" if body is None else json.dumps(body).encode()
        headers = {"host": "127.0.0.1", "content-type": "application/json"}
        self.dispatchers[service.instance].dispatch(
            Request(method, path, "", headers, data, peer="127.0.0.1"), answer.set_result
        )
        response = await answer
        data = b"".join(response.body)
        return response.status, json.loads(data) if data else None


def run(body: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        pair = Pair(Engine(MemoryStore(), Limits()))
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
