"""PostgreSQL fails over to a synchronous standby: two servers go on, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from time import monotonic

import httpx
import psycopg
import pytest

from tests.edges import free_port
from tests.fault.histories import ServerLife
from tests.postgres import PostgresServer, own_postgres
from tests.waiting import LIMIT_S, wait_until, wait_until_async

PRODUCERS = 8
TEXT = {"content-type": "text/plain"}


@contextlib.contextmanager
def standby_of(primary: PostgresServer) -> Iterator[PostgresServer]:
    """A standby that every commit of the primary waits for."""
    standby = PostgresServer()
    try:
        standby.call(
            standby.program("pg_basebackup"), "-D", standby.data, "-R", "-X", "stream", "-d", primary.url("postgres")
        )
        standby.start()
        with psycopg.connect(primary.url("postgres"), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(lambda: _is_synchronous(connection), "commits wait for the standby")
        yield standby
    finally:
        standby.remove()


def _is_synchronous(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    row = connection.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone()
    return row == (1,)


class Writer:
    """A producer that repeats each append until it is acknowledged, by any server."""

    def __init__(self, number: int, clients: list[httpx.AsyncClient]) -> None:
        self.path = f"/standby/{number % 3}"
        self.name = f"p{number}"
        self.acknowledged = 0
        self.gap_s = 0.0  # the longest time without an acknowledgement
        self._clients = clients
        self._last_s = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        self._last_s = monotonic()
        turn = 0
        while not stop.is_set():
            headers = {"producer-id": self.name, "producer-epoch": "0", "producer-seq": str(self.acknowledged)}
            while True:
                turn += 1
                client = self._clients[turn % len(self._clients)]
                try:
                    answer = await client.post(
                        self.path, headers=TEXT | headers, content=f"{self.name}:{self.acknowledged};"
                    )
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
                    continue
                if answer.status_code in (200, 204):
                    break
                assert answer.status_code == 503, answer.text
                await asyncio.sleep(0.05)
            self.acknowledged += 1
            now_s = monotonic()
            self.gap_s = max(self.gap_s, now_s - self._last_s)
            self._last_s = now_s


async def _load(urls: list[str], primary: PostgresServer, standby: PostgresServer) -> list[Writer]:
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=f"{url}/v1/stream", timeout=5)) for url in urls
        ]
        for number in range(3):
            assert (await clients[0].put(f"/standby/{number}", headers=TEXT)).is_success
        writers = [Writer(number, clients) for number in range(PRODUCERS)]
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as together:
            for writer in writers:
                together.create_task(writer.run(stop))
            await wait_until_async(lambda: min(writer.acknowledged for writer in writers) > 20)
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(
                standby.call, standby.program("pg_ctl"), "promote", "-D", standby.data, "-w", "-t", str(int(LIMIT_S))
            )
            before = [writer.acknowledged for writer in writers]
            await wait_until_async(
                lambda: all(writer.acknowledged > count + 20 for writer, count in zip(writers, before, strict=True))
            )
            stop.set()
        for client in clients:
            await _check(client, writers)
    return writers


async def _check(client: httpx.AsyncClient, writers: list[Writer]) -> None:
    """Each server has everything that was acknowledged, once and in order."""
    for path in {writer.path for writer in writers}:
        text, offset = "", "-1"
        while True:
            read = await client.get(path, params={"offset": offset})
            assert read.status_code == 200, read.text
            text += read.text
            offset = read.headers["stream-next-offset"]
            if "stream-up-to-date" in read.headers:
                break
        messages = [message.split(":") for message in text.split(";") if message]
        for writer in writers:
            if writer.path == path:
                numbers = [int(number) for name, number in messages if name == writer.name]
                assert numbers == list(range(writer.acknowledged)), writer.name


@pytest.mark.slow
def test_a_synchronous_standby_takes_over() -> None:
    with own_postgres() as primary:
        database = primary.new_database().rpartition("/")[2]
        with standby_of(primary) as standby:
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            url = f"postgresql://headwater@{hosts}/{database}?target_session_attrs=read-write"
            servers = [ServerLife("--store", url, port=free_port()) for _ in range(2)]
            try:
                writers = asyncio.run(_load([server.url for server in servers], primary, standby))
            finally:
                codes = [server.end(signal.SIGTERM) for server in servers]
            assert codes == [0, 0]
    gap_s = max(writer.gap_s for writer in writers)
    count = sum(writer.acknowledged for writer in writers)
    print(f"{count} appends, {gap_s:.1f} s without an acknowledgement")  # noqa: T201 - with -s
