"""Clients, producers and databases that were made before `fork()`, and pickled ones."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import headwater

from headwater.client import AsyncClient, Client, Stream
from headwater.errors import ForkedError
from headwater.state import AsyncStreamDB, Collection, StreamDB, define_state
from tests.servers import Server
from tests.shells import SHELLS, client_of, database_of
from tests.waiting import LIMIT_S, wait_for

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # with threads, as in a server that preloads
]

USERS = Collection("user", dict)
STATE = define_state({"users": USERS})


def in_child(work: Callable[[], Any]) -> Any:
    """Fork, and return what `work` returns or raises in the child process."""
    back, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(LIMIT_S))  # a child that hangs is killed, and the pipe closed
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # the parent raises it
            result = error
        os.write(out, pickle.dumps(result))
        os._exit(0)
    os.close(out)
    with open(back, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, "the child process did not end"
    result = pickle.loads(data)
    if isinstance(result, BaseException):
        raise result
    return result


@pytest.fixture
def url(server: Server) -> str:
    return f"http://{server.host}:{server.port}"


@pytest.fixture
def client(url: str) -> Any:
    with Client(url) as client:
        yield client


@pytest.fixture
def stream(client: Client) -> Stream:
    stream = client.stream(f"fork/{uuid.uuid4().hex}")
    stream.create(messages=[{"n": number} for number in range(5)])
    return stream


def sockets(client: Client) -> set[int]:
    """The local ports of a client's connections in this process."""
    pool: Any = client._pools.here()._transport
    streams = [connection._connection._network_stream for connection in pool._pool.connections]
    return {stream.get_extra_info("socket").getsockname()[1] for stream in streams}


def test_a_child_process_uses_connections_of_its_own(client: Client, stream: Stream) -> None:
    before = sockets(client)
    assert before

    def child() -> tuple[list[Any], set[int]]:
        return stream.read().all(), sockets(client)

    messages, its = in_child(child)
    assert messages == [{"n": number} for number in range(5)]
    assert its
    assert not its & before
    assert stream.append({"n": 5})
    assert sockets(client) == before


def test_a_child_process_leaves_the_connections_of_its_parent_open(client: Client, stream: Stream) -> None:
    before = sockets(client)
    in_child(client.close)
    assert len(stream.read().all()) == 5
    assert sockets(client) == before


def test_a_grandchild_opens_connections_too(client: Client, stream: Stream) -> None:
    assert in_child(lambda: in_child(lambda: len(stream.read().all()))) == 5


def test_a_live_read_goes_on_in_both_processes(stream: Stream) -> None:
    with stream.read(live="sse") as reader:
        messages = iter(reader)
        first = [next(messages) for _ in range(5)]
        assert [message["n"] for message in first] == [0, 1, 2, 3, 4]

        def child() -> Any:
            stream.append({"n": "from the child"})
            return next(messages)

        assert in_child(child) == {"n": "from the child"}
        assert next(messages) == {"n": "from the child"}


def test_closing_a_read_in_the_child_does_not_close_it_in_the_parent(stream: Stream) -> None:
    with stream.read(live="sse") as reader:
        messages = iter(reader)
        for _ in range(5):
            next(messages)
        in_child(reader.close)
        stream.append({"n": 5})
        assert next(messages) == {"n": 5}


def test_many_streams_are_followed_on_in_both_processes(client: Client, stream: Stream) -> None:
    path, other = stream.url.rpartition("/v1/stream/")[2], f"fork/{uuid.uuid4().hex}"
    client.stream(other).create(messages=["other"])
    with client.follow({path: "now"}) as follow:
        batches = iter(follow)
        assert next(batches).up_to_date

        def child() -> list[Any]:
            follow.add(other)  # in the child alone, whose parent keeps its connection
            stream.append({"n": "from the child"})
            items: list[Any] = []
            while len(items) < 2:
                items += next(batches).items
            return items

        assert sorted(map(str, in_child(child))) == ["other", "{'n': 'from the child'}"]
        assert next(batches).items == [{"n": "from the child"}]
        assert set(follow.positions) == {path}


def test_the_httpx_client_of_the_caller_is_not_used_in_a_child(url: str) -> None:
    with httpx.Client() as http:
        client = Client(url, http=http)
        list(client.list("nothing"))
        with pytest.raises(ForkedError, match="httpx client"):
            in_child(lambda: list(client.list("nothing")))


def test_an_async_client_works_in_a_child(url: str, stream: Stream) -> None:
    async def read(client: AsyncClient) -> int:
        return len(await client.stream(stream.url).read().all())

    async def parent() -> AsyncClient:
        client = AsyncClient(url)
        assert await read(client) == 5
        return client

    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(parent())
    assert in_child(lambda: asyncio.run(read(client))) == 5
    assert loop.run_until_complete(read(client)) == 5
    loop.run_until_complete(client.close())
    loop.close()


def test_a_table_works_in_a_child(client: Client) -> None:
    table = client.table(f"fork-{uuid.uuid4().hex}")
    table.create()
    assert in_child(lambda: list(table.active())) == []
    assert list(table.active()) == []


CALLS: dict[str, Callable[[Any], Any]] = {
    "append": lambda producer: producer.append({"n": 9}),
    "flush": lambda producer: producer.flush(),
    "close_stream": lambda producer: producer.close_stream(),
    "metrics": lambda producer: producer.metrics,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("waiting", [True, False], ids=["with a queue", "without"])
def test_a_producer_says_that_it_belongs_to_the_parent(
    stream: Stream, waiting: bool, call: Callable[[Any], Any]
) -> None:
    producer = stream.producer(linger_s=3600 if waiting else 0)
    producer.append({"n": 5})
    if not waiting:
        producer.flush()
    with pytest.raises(ForkedError, match=r"stream\.producer\(\)"):
        in_child(lambda: call(producer))
    in_child(producer.close)
    in_child(producer._at_exit)
    producer.append({"n": 6})
    producer.close()
    assert [message["n"] for message in stream.read().all()] == [0, 1, 2, 3, 4, 5, 6]


def test_an_async_producer_says_that_it_belongs_to_the_parent(url: str, stream: Stream) -> None:
    async def parent() -> None:
        async with AsyncClient(url) as client:
            async with client.stream(stream.url).producer() as producer:
                await producer.append({"n": 5})
                for call in (producer.append({"n": 9}), producer.flush(), producer.close_stream()):
                    with pytest.raises(ForkedError):
                        in_child(partial(call.send, None))
                    call.close()

    asyncio.run(parent())
    assert len(stream.read().all()) == 6


READS: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda db: db.users,
    "table": lambda db: db.table(USERS),
    "position": lambda db: db.position,
    "counts": lambda db: db.counts,
    "up_to_date": lambda db: db.up_to_date,
    "reading": lambda db: db.reading().__enter__(),
    "on_change": lambda db: db.on_change(print),
    "on_batch": lambda db: db.on_batch(print),
    "preload": lambda db: db.preload(),
    "await_txid": lambda db: db.await_txid("t", timeout_s=1),
    "transaction": lambda db: db.transaction().__enter__(),
    "publish_snapshot": lambda db: db.publish_snapshot(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_followed_database_says_that_it_is_not_current_in_the_child(
    stream: Stream, read: Callable[[Any], Any]
) -> None:
    with StreamDB(stream, STATE, on_bad_event="skip") as db:
        db.preload()
        with pytest.raises(ForkedError, match="make one in this process"):
            in_child(lambda: read(db))
        in_child(db.close)
        stream.append(USERS.insert({"id": "1"}))
        wait_for(lambda: list(db.users), ["1"])  # type: ignore[attr-defined]


def test_rows_and_queries_taken_before_the_fork_are_refused_too(stream: Stream) -> None:
    with StreamDB(stream, STATE, on_bad_event="skip") as db:
        db.preload()
        users, query = db.users, db.users.query()  # type: ignore[attr-defined]
        reads: list[Callable[[], Any]] = [
            lambda: users["1"], lambda: len(users), lambda: "1" in users, lambda: list(users), users.rows, query.items,
            query.count, lambda: users.by(id="1"),
        ]  # fmt: skip
        for read in reads:
            with pytest.raises(ForkedError):
                in_child(read)
        with db.reading(), pytest.raises(ForkedError):  # although the lock is held in the parent
            in_child(lambda: len(users))


def test_a_followed_async_database_is_refused(url: str, stream: Stream) -> None:
    async def parent() -> None:
        async with AsyncClient(url) as client:
            async with AsyncStreamDB(client.stream(stream.url), STATE, on_bad_event="skip") as db:
                await db.preload()
                reads: list[Callable[[], Any]] = [
                    lambda: len(db.users), lambda: db.changes(), lambda: db.preload().send(None),  # type: ignore[attr-defined]
                ]  # fmt: skip
                for read in reads:
                    with pytest.raises(ForkedError):
                        in_child(read)

    asyncio.run(parent())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_state_that_was_read_to_its_end_can_be_used_in_a_child(url: str, stream: Stream, shell: str) -> None:
    stream.append(USERS.insert({"id": "1"}))
    with client_of(shell, url) as client:
        db = database_of(client.stream(stream.url), STATE, live=False, on_bad_event="skip")
        db.preload()
        wait_for(lambda: db._over, True)
        with db.reading():
            assert in_child(lambda: list(db.users)) == ["1"]
        db.close()


def test_a_database_that_was_not_preloaded_can_be_preloaded_in_a_child(stream: Stream) -> None:
    stream.append(USERS.insert({"id": "1"}))
    db = StreamDB(stream, STATE, on_bad_event="skip")

    def child() -> list[str]:
        with db:
            db.preload()
            return list(db.users)  # type: ignore[attr-defined]

    assert in_child(child) == ["1"]


# Pickles


def test_a_pickled_client_has_its_settings_and_connections_of_its_own(url: str, stream: Stream) -> None:
    client = Client(url, token="secret", headers={"x-team": "blue"}, params={"a": "1"})
    twin: Client = pickle.loads(pickle.dumps(client))
    assert twin.headers == client.headers
    assert twin._pools.here() is not client._pools.here()
    assert len(twin.stream(stream.url).read().all()) == 5
    assert twin.stream(stream.path or "").url == stream.url
    twin.close()
    client.close()


def test_handles_are_pickled_with_their_client(client: Client, stream: Stream) -> None:
    handle = client.stream(stream.url, headers={"x-team": "blue"})
    twin: Stream = pickle.loads(pickle.dumps(handle))
    assert len(twin.read().all()) == 5
    assert twin._session.headers["x-team"] == "blue"
    table = client.table("t")
    assert pickle.loads(pickle.dumps(table)).url == table.url
    twin.client.close()


def test_an_async_client_is_pickled_too(url: str, stream: Stream) -> None:
    async def read(client: AsyncClient) -> int:
        async with client:
            return len(await client.stream(stream.url).read().all())

    assert asyncio.run(read(pickle.loads(pickle.dumps(AsyncClient(url))))) == 5


def test_what_works_in_the_background_cannot_be_pickled(client: Client, stream: Stream) -> None:
    with stream.producer() as producer, StreamDB(stream, STATE) as db:
        for each in (producer, db, stream.read(), client.table("t").follow()):
            with pytest.raises(TypeError, match=f"a {type(each).__name__} cannot be pickled"):
                pickle.dumps(each)


def test_a_client_with_an_httpx_client_cannot_be_pickled(url: str) -> None:
    with httpx.Client() as http, pytest.raises(TypeError, match="`tls` or `http`"):
        pickle.dumps(Client(url, http=http))


@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_a_child_that_the_function_of_a_worker_forks_does_not_touch_the_claim(how: str, tmp_path: Path) -> None:
    """A child that returns would ack what the parent has not processed, and one that exits would release the claim."""
    reports, wakes = tmp_path / "child", f"wake-{uuid.uuid4().hex}"
    with headwater("--memory") as server, Client(f"http://{server.host}:{server.port}") as client:
        client.stream(wakes).create()
        client.stream("jobs/1").create()
        subscription = client.subscription("jobs")
        subscription.create(streams=["jobs/1"], wake_stream=wakes)
        tail = client.stream("jobs/1").append({"n": 1}).offset

        def process(_: object) -> None:
            if os.fork() == 0:
                signal.alarm(int(LIMIT_S))
                if how == "raises":
                    raise RuntimeError("in the child")
                if how == "exits":
                    raise SystemExit(3)
                return
            os.wait()
            assert client.subscription("jobs").get().streams[0].acked_offset == "-1"

        parent = os.getpid()
        try:
            done: object = subscription.worker(process).run_once()
        except BaseException as error:
            if os.getpid() == parent:
                raise
            reports.write_text(type(error).__name__)
        if os.getpid() != parent:
            os._exit(0)
        assert reports.read_text() == ("SystemExit" if how == "exits" else "ForkedError")
        assert done is True
        assert subscription.get().streams[0].acked_offset == tail


@pytest.mark.parametrize("shell", SHELLS)
def test_a_worker_belongs_to_the_parent(url: str, shell: str) -> None:
    with client_of(shell, url) as client:
        worker: Any = client.subscription("s").worker(print)
        worker = getattr(worker, "_target", worker)

        def run() -> None:
            running = worker.run()
            if shell == "async":
                asyncio.run(running)

        with pytest.raises(ForkedError, match="belongs to the parent process"):
            in_child(run)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(worker)
