"""Subscriptions survive restarts and kills of the server: cursors, generations, leases, retries, keys and tokens."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.engine import Engine
from headwater.errors import AlreadyClaimedError, FencedError
from headwater.limits import Limits
from headwater.server.subscriptions.records import Wakes
from headwater.store.embedded.opening import open_store
from tests.contract.test_subscriptions import LEASE_MS, Receiver, Site, code, tails
from tests.edges import free_port
from tests.fault.killed_server import Life
from tests.unit.server.subscriptions.rig import FAILED, Rig
from tests.waiting import LIMIT_S, wait_for, wait_until, wait_until_async

KILLS = 8
STREAMS = 6
WORKERS = 4


async def opened(directory: Path, answers: Callable[[dict[str, Any]], Awaitable[Any]]) -> Rig:
    """The answers are set before it starts, because a retry may be due at once."""
    rig = Rig(engine=Engine(open_store(directory, Limits()), Limits()))
    rig.receiver.answers = answers
    await rig.__aenter__()
    return rig


@pytest.mark.parametrize("webhook", [False, True])
def test_a_restart_changes_nothing(tmp_path: Path, webhook: bool) -> None:
    async def failed(_: dict[str, Any]) -> Any:
        return FAILED

    async def first_life() -> tuple[Wakes, dict[str, str], str, bytes, str]:
        rig = await opened(tmp_path / "data", failed)
        await rig.subscribe("e/*", "named", webhook=webhook)
        for path in ("e/1", "e/2", "named"):
            await rig.create(path)
            await rig.append(path)
        if webhook:
            await wait_until_async(lambda: rig.current().wakes.next_attempt_ms)
            token = rig.receiver.bodies[0]["callback_token"]
        else:
            wake, streams, token = await rig.claim()
            await rig.ack(wake, token, {"e/1": (await rig.cursors_at_tail())["e/1"]})
            assert len(streams) == 3
        state = rig.current().wakes, await rig.cursors(), rig.service.keys.key_id, rig.service.keys.secret, token
        await rig.__aexit__()
        return state[0], state[1], state[2], state[3], token

    async def second_life(wakes: Wakes, cursors: dict[str, str], key_id: str, secret: bytes, token: str) -> None:
        rig = await opened(tmp_path / "data", failed)
        assert (await rig.cursors(), rig.service.keys.key_id, rig.service.keys.secret) == (cursors, key_id, secret)
        now, wake = rig.current().wakes, wakes.wake
        assert wake is not None
        assert (now.generation, now.wake) == (wakes.generation, wake)
        assert webhook or now == wakes
        assert now.failures >= wakes.failures
        assert now.next_attempt_ms >= wakes.next_attempt_ms
        if not webhook:
            with pytest.raises(AlreadyClaimedError):
                await rig.claim()
        assert await rig.ack(wake, token, await rig.cursors_at_tail(), done=True) is False
        assert await rig.cursors() == await rig.cursors_at_tail()
        with pytest.raises(FencedError):
            await rig.ack(wake, token)
        await rig.__aexit__()

    asyncio.run(second_life(*asyncio.run(first_life())))


class KilledServer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.root = f"http://127.0.0.1:{self._port}/v1/stream"
        self.life = Life(directory, self._port)

    def kill(self) -> None:
        self.life.end(signal.SIGKILL)
        self.life = Life(self._directory, self._port)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KilledServer]:
    server = KilledServer(tmp_path / "data")
    yield server
    server.life.end(signal.SIGKILL)


@pytest.fixture
def site(server: KilledServer) -> Iterator[Site]:
    site = Site(server.root)
    yield site
    site.http.close()


@pytest.mark.slow
def test_a_lease_and_its_token_survive_a_kill(server: KilledServer, site: Site) -> None:
    subscribed = site.pulled()
    first, path = site.append("events/a", 1), site.path("events/a")
    second = site.append("events/a", 2)
    wake = subscribed.claimed("one")
    assert subscribed.send("ack", wake, {path: first}).status_code == 200
    before = subscribed.listed()
    assert (before["holder"], before["lease_ttl_ms"]) == ("one", LEASE_MS)
    server.kill()
    wait_for(subscribed.listed, before)  # the lag is computed after the start
    assert subscribed.cursors() == {path: first}
    assert code(subscribed.claim("two")) == (409, "ALREADY_CLAIMED")
    assert subscribed.send("ack", wake, {path: second}, done=True).json() == {"ok": True, "next_wake": False}
    server.kill()
    assert code(subscribed.send("ack", wake, {path: second})) == (409, "FENCED")
    assert subscribed.cursors() == {path: second}
    site.append("events/a", 3)
    assert subscribed.claimed("two")["generation"] == wake["generation"] + 1


@pytest.mark.slow
def test_a_lease_that_ends_while_the_server_is_down_fences_its_holder(server: KilledServer, site: Site) -> None:
    subscribed = site.pulled(lease_ttl_ms=1_000)
    tail, path = site.append("events/a", 1), site.path("events/a")
    wake = subscribed.claimed("one")
    server.kill()
    wait_until(lambda: len(site.wake_events()) == 2)
    assert code(subscribed.send("ack", wake, {path: tail}, done=True)) == (409, "FENCED")
    assert subscribed.cursors() == {path: "-1"}
    assert subscribed.claimed("two")["generation"] == 2


@pytest.mark.slow
def test_a_retry_and_the_keys_survive_a_kill(server: KilledServer, site: Site) -> None:
    receiver = Receiver()
    try:
        receiver.answers = lambda _: (500, {})
        subscribed = site.subscribe(type="webhook", webhook={"url": receiver.url}, pattern=site.path("events/*"))
        tail, path = site.append("events/a", 1), site.path("events/a")
        wait_until(lambda: subscribed.listed()["failures"] >= 3)
        before, keys = subscribed.listed(), site.http.get("/__ds/jwks.json").json()
        sent = len(receiver.requests)
        server.kill()
        after = subscribed.listed()
        assert (after["generation"], after["wake_id"]) == (before["generation"], before["wake_id"])
        assert after["failures"] >= before["failures"]
        assert after["next_attempt_at"] >= before["next_attempt_at"]
        assert site.http.get("/__ds/jwks.json").json() == keys
        receiver.answers = lambda _: (200, {"done": True})
        wait_for(subscribed.cursors, {path: tail})
        assert len(receiver.requests) > sent
        assert len({(wake["wake_id"], tails(wake)[path]) for wake in receiver.requests}) == 1
        assert subscribed.listed()["status"] == "active"
    finally:
        receiver.close()


class Pool:
    """Workers that claim, read and ack, and what they have processed and acked."""

    def __init__(self, client: httpx.AsyncClient, rng: random.Random, streams: list[str]) -> None:
        self._client = client
        self._random = rng
        self.processed: dict[str, set[int]] = {path: set() for path in streams}
        self.acked: dict[str, str] = dict.fromkeys(streams, "")
        self.stopping = False

    async def work(self, name: str) -> None:
        while not self.stopping:
            try:
                await self._work(name)
            except (httpx.HTTPError, KeyError):  # the server was killed, or is about to start
                await asyncio.sleep(0.02)

    async def _work(self, name: str) -> None:
        acked = dict(self.acked)
        claim = await self._client.post("/__ds/subscriptions/pool/claim", json={"worker": name})
        if claim.status_code != 200:
            await asyncio.sleep(0.02)
            return
        wake = claim.json()
        for stream in wake["streams"]:
            assert stream["acked_offset"] >= acked[stream["path"]], "an event after its acked successor"
        if self._random.random() < 0.2:
            return  # the worker dies
        acks = [{"stream": stream["path"], "offset": await self._process(stream)} for stream in wake["streams"]]
        body = {"wake_id": wake["wake_id"], "generation": wake["generation"], "acks": acks, "done": True}
        headers = {"authorization": f"Bearer {wake['token']}"}
        answer = await self._client.post("/__ds/subscriptions/pool/ack", json=body, headers=headers)
        if answer.status_code == 200:
            for ack in acks:
                self.acked[ack["stream"]] = max(self.acked[ack["stream"]], ack["offset"])

    async def _process(self, stream: dict[str, Any]) -> str:
        """Read the events of a stream from its acked offset on. Returns the offset after them."""
        answer = await self._client.get(f"/{stream['path']}", params={"offset": stream["acked_offset"]})
        self.processed[stream["path"]].update(answer.json())
        return answer.headers["stream-next-offset"]


async def append_numbers(client: httpx.AsyncClient, path: str, stop: asyncio.Event) -> int:
    """Append numbers in order, each until it is acknowledged. Returns how many."""
    count = 0
    while not stop.is_set() or count == 0:
        headers = {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(count)}
        try:
            if (await client.post(f"/{path}", json=[count], headers=headers)).is_success:
                count += 1
        except httpx.HTTPError:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.005)
    return count


@pytest.mark.slow
def test_a_pool_of_workers_misses_nothing_while_the_server_and_they_are_killed(server: KilledServer) -> None:
    rng = random.Random(11)
    paths = [f"pool/{number}" for number in range(STREAMS)]
    config = {"type": "pull-wake", "pattern": "pool/*", "wake_stream": "wake", "lease_ttl_ms": 1_000}

    async def main() -> None:
        async with httpx.AsyncClient(base_url=server.root, timeout=LIMIT_S) as client:
            for path in ("wake", *paths):
                assert (await client.put(f"/{path}", json=[])).status_code == 201
            assert (await client.put("/__ds/subscriptions/pool", json=config)).status_code == 201
            pool, stop = Pool(client, rng, paths), asyncio.Event()
            appending = [asyncio.create_task(append_numbers(client, path, stop)) for path in paths]
            working = [asyncio.create_task(pool.work(f"worker-{number}")) for number in range(WORKERS)]
            for _ in range(KILLS):
                await asyncio.sleep(rng.uniform(0.2, 1.5))
                await asyncio.to_thread(server.kill)
            stop.set()
            counts = dict(zip(paths, await asyncio.gather(*appending), strict=True))
            await wait_until_async(
                lambda: {path: set(range(count)) for path, count in counts.items()} == pool.processed
            )
            pool.stopping = True
            await asyncio.gather(*working)

    asyncio.run(main())
