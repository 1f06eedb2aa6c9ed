"""Subscriptions with our client, both shells, over our server and over the Node reference: one set of tests."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest
from bench.servers import Server, headwater, reference

from headwater.client import AsyncClient, Client, Subscription, WorkBatch, WorkReport, subscriptions
from headwater.client.subscriptions import ClaimedWake
from headwater.errors import (
    AlreadyClaimedError,
    FencedError,
    InvalidAckError,
    InvalidSubscriptionError,
    NoPendingWorkError,
    ProtocolError,
    StreamNotFoundError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    WakeTokenError,
    WebhookUrlRejectedError,
)
from headwater.log.producers import ProducerTuple
from tests.edges import UVICORN, edge
from tests.shells import SHELLS, client_of
from tests.waiting import LIMIT_S, wait_for, wait_until

OURS, NODE = "headwater", "node reference"


@pytest.fixture(
    scope="module", params=[OURS, *(pytest.param(name, marks=pytest.mark.slow) for name in (UVICORN, NODE))]
)
def peer(request: pytest.FixtureRequest) -> Iterator[Server]:
    servers: dict[str, Callable[[], AbstractContextManager[Server]]] = {
        OURS: lambda: headwater("--memory"),
        UVICORN: lambda: edge(UVICORN),
        NODE: reference,
    }
    with servers[request.param]() as server:
        yield server


@pytest.fixture(scope="module", params=SHELLS)
def client(request: pytest.FixtureRequest, peer: Server) -> Iterator[Client]:
    with client_of(request.param, f"http://{peer.host}:{peer.port}") as client:
        yield client


class Scene:
    """A subscription over `{name}/*` with a wake stream, and names that no other test uses."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = uuid.uuid4().hex
        self.wake_stream = f"wake-{self.name}"
        client.stream(self.wake_stream).create()
        self.subscription = self.subscribe(self.name)

    def subscribe(self, part: str, lease_s: float = 5.0) -> Subscription:
        subscription = self.client.subscription(part)
        assert subscription.create(pattern=f"{part}/*", wake_stream=self.wake_stream, lease_s=lease_s)
        return subscription

    def append(self, *messages: Any, stream: str = "a", part: str | None = None) -> str:
        path = f"{part or self.name}/{stream}"
        handle = self.client.stream(path)
        handle.create()
        producer = ProducerTuple(uuid.uuid4().hex, 0, 0)  # so that it can be repeated
        return handle.append_many(messages, producer=producer).offset


@pytest.fixture
def scene(client: Client) -> Scene:
    return Scene(client)


# Requests


def test_the_life_of_a_subscription(client: Client) -> None:
    name = uuid.uuid4().hex
    client.stream(f"{name}/wake").create()
    orders = client.subscription(f"team 1 {name}")
    options: dict[str, Any] = {"streams": ["manual/a"], "pattern": f"{name}/e/**", "wake_stream": f"{name}/wake"}
    assert orders.create(**options, lease_s=2.5, description="about")
    assert not orders.create(**options, lease_s=2.5, description="about")
    with pytest.raises(SubscriptionExistsError):
        orders.create(**options, lease_s=3, description="about")
    orders.add_streams([f"{name}/x", f"{name}/y"])
    orders.remove_stream(f"{name}/x")
    info = orders.get()
    assert (info.id, info.type, info.pattern) == (f"team 1 {name}", "pull-wake", f"{name}/e/**")
    assert (info.wake_stream, info.lease_ttl_ms, info.description) == (f"{name}/wake", 2500, "about")
    assert (info.status, info.webhook) == ("active", None)
    assert info.created_at.endswith("Z")
    assert {(link.path, link.link_type) for link in info.streams} == {
        ("manual/a", "explicit"),
        (f"{name}/y", "explicit"),
    }
    orders.delete()
    with pytest.raises(SubscriptionNotFoundError):
        orders.get()
    with pytest.raises(SubscriptionNotFoundError):
        orders.claim("w")
    with pytest.raises(SubscriptionNotFoundError):
        orders.add_streams(["b"])


def test_a_webhook_subscription_names_its_keys(client: Client) -> None:
    hook = client.subscription(uuid.uuid4().hex)
    assert hook.create(pattern="hooks/*", webhook_url="http://127.0.0.1:64999/hook")
    webhook = hook.get().webhook
    assert webhook is not None
    assert webhook.url == "http://127.0.0.1:64999/hook"
    assert webhook.signing is not None
    assert webhook.signing.jwks_url.endswith("/v1/stream/__ds/jwks.json")
    with pytest.raises(InvalidSubscriptionError):
        hook.claim("w")
    with pytest.raises(WebhookUrlRejectedError):
        client.subscription(uuid.uuid4().hex).create(pattern="hooks/*", webhook_url="http://10.0.0.1/hook")
    hook.delete()


def test_a_configuration_that_cannot_be_is_refused_before_a_request(client: Client) -> None:
    subscription = client.subscription("never")
    with pytest.raises(ValueError, match="either webhook_url or wake_stream"):
        subscription.create(pattern="a")
    with pytest.raises(ValueError, match="a pattern, or streams"):
        subscription.create(wake_stream="w")
    with pytest.raises(TypeError, match="put it into a list"):
        subscription.create(streams="a", wake_stream="w")
    with pytest.raises(ValueError, match="cannot be empty"):
        subscription.add_streams(["/"])
    with pytest.raises(ValueError, match="no streams"):
        subscription.add_streams([])
    for lease_s in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="lease_s is a number of seconds"):
            subscription.create(pattern="a", wake_stream="w", lease_s=lease_s)
    for name in ("", ".", ".."):
        with pytest.raises(ValueError, match="not the id"):
            client.subscription(name)
    with pytest.raises(InvalidSubscriptionError, match="1000"):
        subscription.create(pattern="a", wake_stream="w", lease_s=0.5)


def test_claim_read_ack_and_done(scene: Scene) -> None:
    with pytest.raises(NoPendingWorkError):
        scene.subscription.claim("one")
    tail = scene.append({"n": 1}, {"n": 2})
    scene.append({"n": 3}, stream="b")
    claim = scene.subscription.claim("one")
    with pytest.raises(AlreadyClaimedError) as taken:
        scene.subscription.claim("two")
    assert (taken.value.holder, taken.value.generation) == ("one", claim.generation)
    batches = {batch.stream: batch for batch in claim.batches()}
    assert {path: batch.messages for path, batch in batches.items()} == {
        f"{scene.name}/a": [{"n": 1}, {"n": 2}],
        f"{scene.name}/b": [{"n": 3}],
    }
    assert claim.delivered == {path: batch.offset for path, batch in batches.items()}
    with pytest.raises(InvalidAckError):
        claim.ack({f"{scene.name}/a": "9999999999999999_9999999999999999"})
    claim.heartbeat()
    assert claim.ack({f"{scene.name}/a": tail}).next_wake is False
    assert claim.ack({}, done=True).next_wake is True
    with pytest.raises(FencedError):
        claim.heartbeat()
    with pytest.raises(FencedError):
        claim.release()
    again = scene.subscription.claim("two")
    assert again.generation > claim.generation
    assert [batch.stream for batch in again.batches()] == [f"{scene.name}/b"]
    again.release()
    assert scene.subscription.claim("three").generation > again.generation


def test_a_token_of_another_wake_is_refused(scene: Scene) -> None:
    scene.append({"n": 1})
    claim = scene.subscription.claim("one")
    target: Any = getattr(claim, "_target", claim)
    target._key = type(target._key)(scene.subscription.url, "ack", claim.wake_id, claim.generation, "nonsense")
    with pytest.raises(WakeTokenError):
        claim.heartbeat()


# Workers


class Crew:
    """Workers in threads, and what they have processed and reported."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, WorkBatch[Any]]] = []
        self.reports: list[WorkReport] = []
        self.errors: list[BaseException] = []
        self.ended = 0
        self._workers: list[tuple[Any, threading.Thread]] = []

    def messages(self) -> list[Any]:
        return [message for _, batch in self.batches for message in batch.messages]

    def outcomes(self) -> list[str]:
        return [report.outcome for report in self.reports]

    def start(self, make: Callable[..., Any], name: str = "w", function: Callable[[Any], Any] | None = None) -> Any:
        def process(batch: WorkBatch[Any]) -> None:
            if function is not None:
                function(batch)
            self.batches.append((name, batch))

        worker = make(process, name=name, on_report=self.reports.append)

        def run() -> None:
            try:
                worker.run()
            except BaseException as error:  # noqa: BLE001
                self.errors.append(error)
            self.ended += 1

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._workers.append((worker, thread))
        return worker

    def stop(self) -> None:
        for worker, _ in self._workers:
            worker.stop()
        for _, thread in self._workers:
            thread.join(LIMIT_S)
            assert not thread.is_alive()


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.stop()


def test_a_worker_processes_what_is_pending_and_what_comes(scene: Scene, crew: Crew) -> None:
    scene.append({"n": 1})
    crew.start(scene.subscription.worker)
    wait_for(crew.messages, [{"n": 1}])
    tail = scene.append({"n": 2}, {"n": 3})
    wait_for(crew.messages, [{"n": 1}, {"n": 2}, {"n": 3}])
    wait_for(lambda: [link.acked_offset for link in scene.subscription.get().streams], [tail])
    wait_until(lambda: crew.outcomes()[-1] == "done")
    crew.stop()
    assert set(crew.outcomes()) == {"claimed", "done"}
    generations = [batch.generation for _, batch in crew.batches]
    assert generations == sorted(generations)


def test_several_workers_share_the_subscriptions_of_a_wake_stream(scene: Scene, crew: Crew) -> None:
    parts = [f"{scene.name}-{number}" for number in range(6)]
    for part in parts:
        scene.subscribe(part)
    scene.append({"part": parts[0]}, part=parts[0])  # before the workers
    for number in range(3):
        crew.start(lambda *a, **o: scene.client.worker(scene.wake_stream, *a, **o), name=f"w{number}")
    for _ in range(3):
        for part in parts[1:]:
            scene.append({"part": part}, part=part)
    wait_until(lambda: len(crew.messages()) >= 1 + 3 * 5)
    crew.stop()
    assert not crew.errors
    assert sorted(message["part"] for message in crew.messages()) == sorted([parts[0], *parts[1:] * 3])
    scene.subscription.delete()


def test_a_function_that_raises_is_tried_again_from_the_last_ack(scene: Scene, crew: Crew) -> None:
    scene.append({"n": 1})
    scene.append({"n": 2}, stream="b")
    failures = [RuntimeError("first")]

    def process(batch: WorkBatch[Any]) -> None:
        if batch.stream.endswith("/b") and failures:
            raise failures.pop(0)

    crew.start(scene.subscription.worker, function=process)
    wait_until(lambda: len(crew.messages()) == 2)
    assert sorted(message["n"] for message in crew.messages()) == [1, 2]
    failed = [report for report in crew.reports if report.outcome == "failed"]
    assert [str(report.error) for report in failed] == ["first"]
    assert all(report.delay_s > 0 for report in failed)


def test_a_lease_is_kept_while_the_function_runs(client: Client, crew: Crew) -> None:
    scene = Scene(client)
    short = scene.subscribe(f"{scene.name}-short", lease_s=1.0)
    entered, go_on = threading.Event(), threading.Event()

    def process(batch: WorkBatch[Any]) -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)

    crew.start(short.worker, function=process)
    scene.append({"n": 1}, part=f"{scene.name}-short")
    assert entered.wait(LIMIT_S)
    generation = crew.reports[0].generation
    for _ in range(10):  # longer than a lease
        with pytest.raises(AlreadyClaimedError) as taken:
            short.claim("thief")
        assert taken.value.generation == generation
        threading.Event().wait(0.15)
    go_on.set()
    wait_until(lambda: crew.outcomes() == ["claimed", "done"])


def test_a_stop_finishes_the_call_and_hands_over(scene: Scene, crew: Crew) -> None:
    scene.append({"n": 1})
    scene.append({"n": 2}, stream="b")
    entered, go_on = threading.Event(), threading.Event()

    def process(batch: WorkBatch[Any]) -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)

    worker = crew.start(scene.subscription.worker, function=process)
    assert entered.wait(LIMIT_S)
    worker.stop()
    go_on.set()
    wait_until(lambda: crew.ended)
    assert crew.outcomes() == ["claimed", "handed over"]
    assert len(crew.messages()) == 1
    claim = scene.subscription.claim("next")  # at once, not after the lease
    assert [batch.messages for batch in claim.batches()] != [crew.messages()]
    assert sum(len(batch.messages) for batch in claim.batches()) == 1


def test_a_worker_that_is_fenced_stops_with_the_claim(scene: Scene, crew: Crew) -> None:
    short = scene.subscribe(f"{scene.name}-short", lease_s=1.0)
    scene.append({"n": 1}, part=f"{scene.name}-short")
    scene.append({"n": 2}, part=f"{scene.name}-short", stream="b")

    def process(batch: WorkBatch[Any]) -> None:
        if not stolen:
            stolen.append(True)
            short.delete()  # in-flight requests fail
            scene.subscribe(f"{scene.name}-short")

    stolen: list[bool] = []
    crew.start(lambda *a, **o: scene.client.worker(scene.wake_stream, *a, **o), function=process)
    wait_until(lambda: "lease lost" in crew.outcomes())
    assert len(crew.messages()) == 1
    scene.append({"n": 3}, part=f"{scene.name}-short")
    wait_until(lambda: {"n": 3} in crew.messages())
    assert {"n": 2} not in crew.messages()


def test_run_once(scene: Scene) -> None:
    batches: list[WorkBatch[Any]] = []
    assert scene.subscription.worker(batches.append).run_once() is False
    scene.append({"n": 1})
    assert scene.subscription.worker(batches.append).run_once() is True
    assert [batch.messages for batch in batches] == [[{"n": 1}]]
    scene.append({"n": 2})

    def fail(batch: object) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        scene.subscription.worker(fail).run_once()
    assert scene.subscription.worker(batches.append).run_once() is True
    assert batches[-1].messages == [{"n": 2}]
    with pytest.raises(ValueError, match="one subscription"):
        scene.client.worker(scene.wake_stream, fail).run_once()


def test_what_a_worker_cannot_work_with_ends_it(scene: Scene) -> None:
    with pytest.raises(SubscriptionNotFoundError):
        scene.client.subscription("nowhere").worker(print).run()
    hook = scene.client.subscription(uuid.uuid4().hex)
    hook.create(pattern="hooks/*", webhook_url="http://127.0.0.1:64999/hook")
    with pytest.raises(ValueError, match="has a webhook"):
        hook.worker(print).run()
    hook.delete()
    with pytest.raises(StreamNotFoundError):
        scene.client.worker("no/wakes", print).run()
    with pytest.raises(ValueError, match="per is"):
        scene.subscription.worker(print, per="day")  # type: ignore[arg-type]


def test_a_worker_ends_if_its_wake_stream_is_closed(scene: Scene, crew: Crew) -> None:
    scene.append({"n": 1})
    crew.start(scene.subscription.worker)
    wait_until(crew.messages)
    scene.client.stream(scene.wake_stream).close()
    wait_until(lambda: crew.ended)
    assert "is closed" in str(crew.errors[0])


def test_a_message_that_is_no_wake_event_is_ignored(scene: Scene, crew: Crew) -> None:
    crew.start(scene.subscription.worker)
    scene.client.stream(scene.wake_stream).append_many([1, {"type": "other"}, {"type": "wake"}])
    scene.append({"n": 1})
    wait_until(crew.messages)
    assert not crew.errors


def test_the_list_of_subscriptions(scene: Scene, peer: Server) -> None:
    if peer.name not in (OURS, UVICORN):
        with pytest.raises(ProtocolError, match="no list of subscriptions"):
            list(scene.client.subscriptions())
        return
    scene.append({"n": 1})
    claim = scene.subscription.claim("me")
    for part in ("a", "b"):
        scene.subscribe(f"{scene.name}-{part}")
    statuses = {status.id: status for status in scene.client.subscriptions(scene.name, page_size=1)}
    assert sorted(statuses) == [scene.name, f"{scene.name}-a", f"{scene.name}-b"]
    status = statuses[scene.name]
    assert (status.type, status.wake_stream, status.pattern) == ("pull-wake", scene.wake_stream, f"{scene.name}/*")
    assert (status.pending_count, status.holder, status.generation) == (1, "me", claim.generation)
    assert status.lag_bytes
    assert status.lease_expires_at is not None
    assert statuses[f"{scene.name}-a"].pending_count == 0


def reader_of_wakes(client: Any, messages: list[Any], then: Callable[[], object] = lambda: None) -> Any:
    """A function for whole wakes, for the shell of the client."""

    def read(claim: Any) -> None:
        messages.extend(batch.messages for batch in claim.batches())
        then()

    async def read_async(claim: Any) -> None:
        messages.extend([batch.messages async for batch in claim.batches()])
        await asyncio.to_thread(then)

    return read if isinstance(client, Client) else read_async


def test_a_whole_wake_is_acked_when_the_function_returns(scene: Scene) -> None:
    tails = {f"{scene.name}/{name}": scene.append({"n": name}, stream=name) for name in "ab"}
    seen: list[Any] = []
    assert scene.subscription.worker(reader_of_wakes(scene.client, seen), per="wake").run_once() is True
    assert sorted(seen, key=str) == [[{"n": "a"}], [{"n": "b"}]]
    assert {link.path: link.acked_offset for link in scene.subscription.get().streams} == tails


def test_messages_have_the_type_that_was_asked_for(scene: Scene) -> None:
    scene.append({"n": 1})
    batches: list[WorkBatch[bytes]] = []
    assert scene.subscription.worker(batches.append, type=bytes).run_once() is True
    assert batches[0].messages == [b'{"n":1}']
    assert (batches[0].subscription, batches[0].is_last) == (scene.name, True)


def test_a_worker_that_was_stopped_before_does_nothing(scene: Scene) -> None:
    scene.append({"n": 1})
    worker = scene.subscription.worker(print)
    worker.stop()
    worker.run()
    with pytest.raises(RuntimeError, match="runs once"):
        worker.run()


def test_a_stream_that_was_deleted_is_skipped(scene: Scene) -> None:
    scene.append({"n": 1})
    scene.append({"n": 2}, stream="b")
    claim = scene.subscription.claim("w")
    scene.client.stream(f"{scene.name}/a").delete()
    assert [batch.messages for batch in claim.batches()] == [[{"n": 2}]]


@pytest.mark.parametrize("per", ["batch", "wake"])
def test_a_stream_that_is_deleted_while_it_is_processed_does_not_keep_others_from_being_acked(
    scene: Scene, per: Literal["batch", "wake"]
) -> None:
    tails = {f"{scene.name}/{name}": scene.append({"n": name}, stream=name) for name in "abc"}
    deleted = f"{scene.name}/b"
    seen: list[Any] = []

    def process(batch: WorkBatch[Any]) -> None:
        seen.append(batch.messages)
        if batch.stream == deleted:
            scene.client.stream(deleted).delete()

    function: Any = process
    if per == "wake":
        function = reader_of_wakes(scene.client, seen, scene.client.stream(deleted).delete)
    assert scene.subscription.worker(function, per=per).run_once() is True
    assert sorted(seen, key=str) == [[{"n": "a"}], [{"n": "b"}], [{"n": "c"}]]
    del tails[deleted]
    assert {link.path: link.acked_offset for link in scene.subscription.get().streams} == tails


def test_what_was_processed_and_not_acked_is_left_out(scene: Scene) -> None:
    """A batch can hold old and new events, so batches cannot be skipped by their offsets."""
    first = scene.append({"n": 1}, {"n": 2})
    other = scene.append({"n": 1}, stream="b")
    last = scene.append({"n": 3})
    stored = {f"{scene.name}/a": first, f"{scene.name}/b": other}
    claim = scene.subscription.claim("w")
    assert [batch.messages for batch in claim.batches(since=stored)] == [[{"n": 3}]]
    assert claim.delivered == {**stored, f"{scene.name}/a": last}


@pytest.mark.parametrize("peer", [OURS, pytest.param(UVICORN, marks=pytest.mark.slow)], indirect=True)
def test_what_was_processed_of_other_streams_at_the_paths_is_not_left_out(scene: Scene) -> None:
    """Offsets of the reference do not tell streams apart: it has acked the same offsets of the streams before."""
    stored = {
        f"{scene.name}/a": scene.append({"n": 1}, {"n": 2}),
        f"{scene.name}/b": scene.append({"n": 1}, stream="b"),
    }
    claim = scene.subscription.claim("w")
    assert [batch.messages for batch in claim.batches(since=stored)] == []
    claim.ack(stored)
    for name in "ab":  # other streams at the paths: what is stored is of the ones before
        scene.client.stream(f"{scene.name}/{name}").delete()
        scene.append({"n": 4}, stream=name)
    claim.release()
    claim = scene.subscription.claim("w")
    assert [batch.messages for batch in claim.batches(since=stored)] == [[{"n": 4}], [{"n": 4}]]


def test_a_wake_stream_can_be_given_by_its_url_but_not_on_another_server(scene: Scene, crew: Crew) -> None:
    scene.append({"n": 1})
    crew.start(lambda *a, **o: scene.client.worker(scene.client.stream(scene.wake_stream).url, *a, **o))
    wait_until(crew.messages)
    with pytest.raises(ValueError, match="has to be on this server"):
        scene.client.worker("https://elsewhere.example/v1/stream/wakes", print)


# What only one of the shells has


def test_a_claim_that_is_repeated_gets_the_same_wake(plain_scene: Scene, peer: Server) -> None:
    plain_scene.append({"n": 1})
    client, url = plain_scene.client, plain_scene.subscription.url

    def claim(claim_id: str) -> ClaimedWake:
        return client._run(subscriptions.claim(client._session, url, "me", claim_id))

    first = claim("one")
    with pytest.raises(AlreadyClaimedError):
        claim("two")
    if peer.name in (OURS, UVICORN):
        again = claim("one")
        assert (again.wake_id, again.generation) == (first.wake_id, first.generation)
    else:  # it does not know claim ids
        with pytest.raises(AlreadyClaimedError):
            claim("one")


@pytest.fixture
def url(peer: Server) -> str:
    return f"http://{peer.host}:{peer.port}"


@pytest.fixture
def plain_scene(url: str) -> Iterator[Scene]:
    with Client(url) as client:
        yield Scene(client)


def test_a_coroutine_function_is_cancelled_when_the_lease_is_lost(plain_scene: Scene, url: str) -> None:
    scene = plain_scene
    short = scene.subscribe(f"{scene.name}-short", lease_s=1.0)
    scene.append({"n": 1}, part=f"{scene.name}-short")
    ends: list[str] = []

    async def process(batch: WorkBatch[Any]) -> None:
        await asyncio.to_thread(short.delete)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def main() -> None:
        async with AsyncClient(url) as client:
            reports: list[WorkReport] = []
            worker = client.subscription(short.id).worker(process, on_report=reports.append)
            assert await worker.run_once() is False
            assert [report.outcome for report in reports] == ["claimed", "lease lost"]

    asyncio.run(main())
    assert ends == ["cancelled"]


def test_a_worker_that_is_cancelled_releases_its_claim(plain_scene: Scene, url: str) -> None:
    plain_scene.append({"n": 1})

    async def main() -> None:
        entered = asyncio.Event()

        async def process(batch: WorkBatch[Any]) -> None:
            entered.set()
            await asyncio.Event().wait()

        async with AsyncClient(url) as client:
            running = asyncio.create_task(client.subscription(plain_scene.name).worker(process).run())
            await entered.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            claim = await client.subscription(plain_scene.name).claim("next")
            assert [batch.messages async for batch in claim.batches()] == [[{"n": 1}]]

    asyncio.run(main())


def test_a_worker_that_is_cancelled_waits_for_its_thread(plain_scene: Scene, url: str) -> None:
    plain_scene.append({"n": 1})
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def process(batch: WorkBatch[Any]) -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)
        left.set()

    async def main() -> None:
        async with AsyncClient(url) as client:
            running = asyncio.create_task(client.subscription(plain_scene.name).worker(process).run())
            assert await asyncio.to_thread(entered.wait, LIMIT_S)
            running.cancel()
            await asyncio.sleep(0.05)
            assert not running.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert left.is_set()

    asyncio.run(main())


PROGRAM = """
import asyncio, sys
from headwater.client import AsyncClient, Client

def process(batch):
    print("begin", flush=True)
    sys.stdin.readline()
    print("end", flush=True)

async def aio(url, name):
    async with AsyncClient(url) as client:
        await client.subscription(name).worker(process).run(signals=True)

shell, url, name = sys.argv[1:]
if shell == "async":
    asyncio.run(aio(url, name))
else:
    with Client(url) as client:
        client.subscription(name).worker(process).run(signals=True)
print("handed over", flush=True)
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_hands_over(plain_scene: Scene, url: str, shell: str, number: signal.Signals) -> None:
    plain_scene.append({"n": 1})
    plain_scene.append({"n": 2}, stream="b")
    command = [sys.executable, "-c", PROGRAM, shell, url, plain_scene.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        process.send_signal(number)
        process.stdin.close()
        assert process.stdout.read() == "end\nhanded over\n"
    assert process.returncode == 0
    claim = plain_scene.subscription.claim("next")
    assert sum(len(batch.messages) for batch in claim.batches()) == 1
