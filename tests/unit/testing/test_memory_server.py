"""headwater.testing: a server for the tests of others, with live reads, blocking and asyncio."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headwater.client import Client, Put, Retry
from headwater.errors import NetworkError, StreamNotFoundError, UnauthorizedError
from headwater.limits import Limits
from headwater.state import AsyncStreamDB, Collection, StreamDB, define_state
from headwater.testing import MemoryServer, memory_server
from headwater.testing.fixtures import headwater_client, headwater_server
from tests.waiting import wait_until

__all__ = ["headwater_client", "headwater_server"]  # pytest finds fixtures by name

USERS = Collection("user", dict)


def test_a_live_read_gets_what_is_appended_later(headwater_client: Client) -> None:
    stream = headwater_client.stream("s")
    stream.create()
    with stream.read(live=True) as reader:
        messages: list[Any] = []
        thread = threading.Thread(target=lambda: messages.append(next(iter(reader))))
        thread.start()
        stream.append({"n": 1})
        wait_until(lambda: messages == [{"n": 1}])
        thread.join()


def test_a_live_read_of_an_asyncio_test(headwater_server: MemoryServer) -> None:
    async def test() -> None:
        async with headwater_server.async_client() as client:
            stream = client.stream("s")
            await stream.create()
            async with AsyncStreamDB(stream, define_state({"users": USERS})) as db:
                await db.preload()
                await stream.append(USERS.insert({"id": "1"}, txid="t"))
                await db.await_txid("t")
                assert list(db.users) == ["1"]  # type: ignore[attr-defined]

    asyncio.run(test())


def test_it_serves_tables_and_databases(headwater_client: Client) -> None:
    table = headwater_client.table("stock")
    table.create()
    table.append([Put("tea", "12")])
    assert list(table.active()) == ["tea"]
    stream = headwater_client.stream("people")
    stream.create()
    with StreamDB(stream, define_state({"users": USERS})) as db:
        db.preload()
        with db.transaction() as transaction:
            transaction["users"].insert({"id": "1"})
        assert "1" in db.users  # type: ignore[attr-defined]


def test_every_server_is_empty_and_gone_at_the_end() -> None:
    with memory_server() as one, memory_server() as other, one.client() as client, other.client() as stranger:
        client.stream("s").create()
        with pytest.raises(StreamNotFoundError):
            stranger.stream("s").head()
    with one.client(retry=Retry(attempts=1)) as late, pytest.raises(NetworkError):
        late.stream("s").head()
    assert "headwater-testing" not in [thread.name for thread in threading.enumerate()]


def test_live_reads_end_with_the_server() -> None:
    with memory_server() as server:
        client = server.client(retry=Retry(attempts=1, patience_s=0))
        stream = client.stream("s")
        stream.create()
        reader = stream.read(live="sse")
        batches = reader.batches()
        next(batches)  # up to date
    reader.close()
    client.close()


def test_limits_and_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "auth.toml"
    add = [sys.executable, "-m", "headwater", "token", "add", str(tokens), "--scope", "create:**"]
    token = subprocess.run(add, capture_output=True, text=True, check=True).stdout.split()[-1]
    with memory_server(limits=Limits(long_poll_s=1), auth=tokens) as server:
        with server.client(token=token) as client:
            assert client.stream("s").create()
        with server.client() as stranger, pytest.raises(UnauthorizedError):
            stranger.stream("s").head()


def test_the_client_does_not_load_the_server() -> None:
    program = "import sys, headwater.client, headwater.state; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not [
        name for name in loaded if name.startswith(("headwater.server", "headwater.testing", "headwater.store"))
    ]


def test_a_failure_inside_the_block_is_not_hidden() -> None:
    class Expected(Exception):  # noqa: N818
        pass

    with pytest.raises(Expected), memory_server():
        raise Expected


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"missing\.toml"), memory_server(auth=tmp_path / "missing.toml"):
        pass
