"""PostgreSQL fails while servers use it: connections are lost at any moment, processes are killed, the disk is full.

What was acknowledged is there, once and in order; what was refused is not there, also later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.errors import DamagedDataError, UnavailableError
from headwater.store.contract import Commit, Moved, OutdatedError, RefusedError
from headwater.store.postgres.store import PostgresStore
from tests.postgres import own_postgres, postgres, versions
from tests.unit.store.postgres.servers import append, commit, creation, loaded, opened, text
from tests.waiting import wait_until_async


class CuttingProxy:
    """Between servers and PostgreSQL. It cuts connections when something is sent to PostgreSQL, by a seed: before it
    arrives, after it arrived, or so that it arrives when the connection was cut for long."""

    def __init__(self, port: int, seed: int) -> None:
        self.chance = 0.0  # with each message to PostgreSQL
        self.cuts = {"before": 0, "after": 0, "late": 0}
        self._port = port
        self._random = random.Random(seed)
        self._late: set[asyncio.Task[None]] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        database, to_database = await asyncio.open_connection("127.0.0.1", self._port)
        answers = asyncio.create_task(self._pass_on(database, to_client))
        is_late = False
        try:
            while data := await client.read(1 << 16):
                if self._random.random() < self.chance:
                    how = self._random.choice(list(self.cuts))
                    self.cuts[how] += 1
                    answers.cancel()
                    is_late = how != "before"
                    if is_late:
                        after_s = 0.0 if how == "after" else self._random.uniform(0.01, 0.2)
                        self._keep(self._send_late(to_database, data, after_s))
                    return
                to_database.write(data)
                await to_database.drain()
        except OSError:
            """One side has closed the connection."""
        finally:
            answers.cancel()
            to_client.transport.abort()
            if not is_late:
                to_database.transport.abort()

    async def _pass_on(self, database: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await database.read(1 << 16):
                to_client.write(data)
                await to_client.drain()
        to_client.close()

    async def _send_late(self, to_database: asyncio.StreamWriter, data: bytes, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            to_database.write(data)
            await to_database.drain()
            await asyncio.sleep(0.05)
        except OSError:
            """PostgreSQL was faster."""
        finally:
            to_database.transport.abort()

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def close(self) -> None:
        self.chance = 0.0
        await asyncio.gather(*self._late, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


@contextlib.asynccontextmanager
async def cutting(url: str, seed: int) -> AsyncIterator[tuple[CuttingProxy, str]]:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    proxy = CuttingProxy(int(str(parts["port"])), seed)
    port = await proxy.start()
    try:
        yield proxy, psycopg.conninfo.make_conninfo(url, port=port, sslmode="disable", gssencmode="disable")
    finally:
        await proxy.close()


class Writer:
    """Appends numbered records to one stream, and notes what became of each."""

    def __init__(self, store: PostgresStore, name: str) -> None:
        self._store = store
        self._name = name
        self.stored: list[bytes] = []
        self.refused: list[bytes] = []
        self.losses = 0

    async def append(self, number: int) -> None:
        data = f"{self._name}{number:05};".encode()
        while True:
            try:
                await commit(self._store, append(await self._state(), data))
            except OutdatedError:
                self.losses += 1
                continue
            except UnavailableError:
                self.refused.append(data)
            else:
                self.stored.append(data)
            return

    async def _state(self) -> Any:
        while True:
            try:
                return await loaded(self._store, "a")
            except UnavailableError:
                await asyncio.sleep(0.02)


def check(content: bytes, writers: list[Writer]) -> None:
    """Everything that was acknowledged is there once, in the order of each writer, and nothing else is."""
    records = [record + b";" for record in content.split(b";")[:-1]]
    assert len(set(records)) == len(records)
    assert set(records) == {record for writer in writers for record in writer.stored}
    for writer in writers:
        assert [record for record in records if record in set(writer.stored)] == writer.stored


async def write_through_cuts(url: str, seed: int, count: int, chance: float) -> tuple[CuttingProxy, list[Writer]]:
    async with opened(url) as (direct,), cutting(url, seed) as (proxy, cut_url):
        await commit(direct, creation(1, "a"))
        async with opened(cut_url, 2) as stores:
            writers = [Writer(store, name) for store, name in zip(stores, "xy", strict=True)]
            proxy.chance = chance
            await asyncio.gather(*(run(writer, count) for writer in writers))
            proxy.chance = 0.0
        check(await text(direct, 1), writers)
    return proxy, writers


async def run(writer: Writer, count: int) -> None:
    for number in range(count):
        await writer.append(number)


def test_connections_are_cut_at_any_moment() -> None:
    proxy, writers = asyncio.run(write_through_cuts(postgres().clean_database(), 1, 25, 0.05))
    assert all(proxy.cuts.values()), "each way to cut a connection happened"
    assert sum(len(writer.stored) for writer in writers) > 25


@pytest.mark.slow
@pytest.mark.parametrize("version", list(versions()))
@pytest.mark.parametrize("seed", range(5))
def test_connections_are_cut_hundreds_of_times(version: int, seed: int) -> None:
    proxy, _ = asyncio.run(write_through_cuts(postgres(version).clean_database(), seed, 150, 0.1))
    assert sum(proxy.cuts.values()) > 50


def _have_gone_on(writers: list[Writer], before: list[int]) -> bool:
    return all(len(writer.stored) > count for writer, count in zip(writers, before, strict=True))


async def _break(break_it: Callable[[], Any], times: int, writers: list[Writer], stop: asyncio.Event) -> None:
    """Break the database as soon as each writer has stored something after the time before, and a last time wait for
    that."""
    for time in range(times + 1):
        before = [len(writer.stored) for writer in writers]
        await wait_until_async(partial(_have_gone_on, writers, before), "each writer goes on")
        if time < times:
            await asyncio.to_thread(break_it)
    stop.set()


async def _write_until(writer: Writer, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        await writer.append(number)
        number += 1


async def write_while(url: str, break_it: Callable[[], Any], times: int) -> None:
    """Two servers write while something breaks the database, several times."""
    async with opened(url, 2) as stores:
        await commit(stores[0], creation(1, "a"))
        writers = [Writer(store, name) for store, name in zip(stores, "xy", strict=True)]
        stop = asyncio.Event()
        await asyncio.gather(
            _break(break_it, times, writers, stop), *(_write_until(writer, stop) for writer in writers)
        )
        check(await text(stores[0], 1), writers)


def test_backends_are_terminated() -> None:
    url = postgres().clean_database()
    source = random.Random(1)

    def terminate() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            pids = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            ).fetchall()
            connection.execute("SELECT pg_terminate_backend(%s)", source.choice(pids))

    asyncio.run(write_while(url, terminate, 10))


@pytest.mark.slow
@pytest.mark.parametrize("version", list(versions()))
def test_postgres_is_killed_and_started_again(version: int) -> None:
    with own_postgres(version) as server:

        def restart() -> None:
            server.kill()
            server.start()

        asyncio.run(write_while(server.new_database(), restart, 5))


@pytest.mark.slow
def test_postgres_is_stopped_for_a_restart_and_hangs() -> None:
    with own_postgres() as server:

        def restart() -> None:
            server.stop()
            server.start()

        def hang() -> None:
            server.signal_all(signal.SIGSTOP)
            server.signal_all(signal.SIGCONT)

        breaks = iter([restart, hang, hang, restart, hang])
        asyncio.run(write_while(server.new_database(), lambda: next(breaks)(), 5))


def test_a_server_that_hangs_with_locks_loses_them_and_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("headwater.store.postgres.connections", fromlist=["_"])._SETTINGS,
        "idle_in_transaction_session_timeout",
        "200",
    )

    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (hanging, other):
            await commit(hanging, creation(1, "a"))
            state = (await hanging.locked([1]))[1]
            held = hanging._parts.writer._held
            assert held is not None
            held.expiry.cancel()  # the process hangs, and so does its timer
            await commit(other, append(await loaded(other, "a"), b"other"))  # waits until PostgreSQL ends the other one
            with pytest.raises(OutdatedError):
                await commit(hanging, append(state, b"late"))  # type: ignore[arg-type]
            assert await text(other, 1) == b"other"

    asyncio.run(main())


def test_notifications_are_lost_and_come_again() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url, 2) as (one, other):
            heard: list[Moved] = []
            await other.watch(heard.extend)
            await commit(one, creation(1, "a"))
            _, cursor = await other.moved_since("")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            state = await loaded(one, "a")
            await commit(one, append(state, b"x"))
            assert (await other.moved_since(cursor))[0] == [Moved(1, "a", 2)]

            async def hears() -> bool:
                with contextlib.suppress(UnavailableError):
                    await commit(one, append(state, b"y"))
                return any(move.version > 2 for move in heard)

            await wait_until_async(hears)

    asyncio.run(main())


def test_a_database_that_was_set_back_stops_the_server() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            state = await loaded(store, "a")
            await commit(store, append(state, b"x"))
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("UPDATE headwater.servers SET batch = 1")
                _end_others(connection)
            with pytest.raises(DamagedDataError, match=r"ends with batch 1 of this .* but batch 2 was ack"):
                await commit(store, append(state, b"y"))
            async with opened(url) as (again,):  # PostgreSQL has the same identity, but a batch is lost
                assert again.timeline > 10**15

    asyncio.run(main())


def test_a_promoted_database_begins_a_timeline() -> None:
    url = postgres().clean_database()

    async def main() -> None:
        async with opened(url, 2) as (one, other):
            await commit(one, creation(1, "a"))
            assert one.timeline == 0
            states = [await loaded(store, "a") for store in (one, other)]
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("UPDATE headwater.meta SET identity = 'before the promotion'")
                _end_others(connection)
            with pytest.raises(UnavailableError, match="another database"):
                await commit(one, append(states[0], b"decided before"))
            timeline = one.timeline
            assert timeline > 10**15
            await commit(one, append(await loaded(one, "a"), b"x"))
            assert await one.reserve_id() > timeline
            with pytest.raises(UnavailableError, match="another database"):
                await commit(other, append(states[1], b"decided before"))
            assert other.timeline == timeline
            await commit(other, append(await loaded(other, "a"), b"y"))
            async with opened(url) as (third,):
                assert third.timeline == timeline
            assert await text(one, 1) == b"xy"

    asyncio.run(main())


def _end_others(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 160 MB."""
    directory = Path(tempfile.mkdtemp(prefix="headwater-small-disk-"))
    directory.chmod(0o755)  # another user runs PostgreSQL
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m,mode=755", "tmpfs", str(directory)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"a small file system needs the right to mount one: {mount.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
        directory.rmdir()


@pytest.mark.slow
def test_the_disk_of_postgres_is_full(small_disk: Path) -> None:
    with own_postgres(None, small_disk, max_wal_size="32MB", min_wal_size="32MB", wal_keep_size="0") as server:
        url = server.new_database()
        filler = small_disk / "filler"

        async def main() -> None:
            async with opened(url) as (store,):
                await commit(store, creation(1, "a"))
                writer = Writer(store, "x")
                await writer.append(0)
                with filler.open("wb") as file, contextlib.suppress(OSError):
                    while True:
                        file.write(os.urandom(1 << 16))
                        file.flush()
                refused = await _fill(store)
                assert isinstance(refused, RefusedError | UnavailableError)
                filler.unlink()

                async def works() -> bool:
                    await writer.append(len(writer.stored) + len(writer.refused))
                    return len(writer.stored) > 1

                await wait_until_async(works)
                state = await loaded(store, "a")
                assert state.tail == len(await text(store, 1))

        asyncio.run(main())


async def _fill(store: PostgresStore) -> BaseException:
    """Append until there is no room."""
    while True:
        large: Commit = append(await loaded(store, "a"), os.urandom(1 << 20))
        try:
            await commit(store, large)
        except (RefusedError, UnavailableError) as error:
            return error
