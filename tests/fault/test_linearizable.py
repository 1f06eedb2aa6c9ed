"""Histories of concurrent clients are linearizable, while servers are killed and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.edges import free_port
from tests.fault.histories import ServerLife, record
from tests.postgres import own_postgres

SECONDS = float(os.environ.get("LINEARIZABLE_S", "20"))
SEED = int(os.environ.get("LINEARIZABLE_SEED", "1"))


@pytest.mark.slow
def test_one_server_with_a_directory(tmp_path: Path) -> None:
    limits = ("--limit", "long_poll_s=1", "--limit", "segment_bytes=300000", "--limit", "fold_idle_s=0.2")
    server = ServerLife("--data-dir", str(tmp_path / "data"), *limits, port=free_port())
    try:
        counts = asyncio.run(record([server.url], [server.kill, server.pause], SECONDS, SEED))
    finally:
        server.end(signal.SIGTERM)
    print(dict(counts))  # noqa: T201 - with -s
    assert counts["faults"]
    assert counts["unknown"]
    assert counts["histories"]


@contextlib.contextmanager
def three_servers(url: str) -> Iterator[list[ServerLife]]:
    """Servers that share a database."""
    servers = [ServerLife("--store", url, "--limit", "long_poll_s=1", port=free_port()) for _ in range(3)]
    try:
        yield servers
    finally:
        for server in servers:
            server.end(signal.SIGTERM)


def end_connections(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'headwater%'"
        )


@pytest.mark.slow
def test_three_servers_that_share_a_database() -> None:
    """They are killed and stopped, and so is PostgreSQL."""
    with own_postgres() as database, three_servers(database.new_database()) as servers:

        async def crash(rng: random.Random) -> None:
            await asyncio.to_thread(database.kill)
            await asyncio.sleep(rng.uniform(0, 1))
            await asyncio.to_thread(database.start)

        async def hang(rng: random.Random) -> None:
            database.signal_all(signal.SIGSTOP)
            try:
                await asyncio.sleep(rng.uniform(0.1, 3))
            finally:
                database.signal_all(signal.SIGCONT)

        async def cut(rng: random.Random) -> None:
            """End the connections of servers, in the middle of their batches."""
            await asyncio.to_thread(end_connections, database.url("postgres"))

        faults = [*(server.kill for server in servers), *(server.pause for server in servers), crash, hang, cut]
        counts = asyncio.run(record([server.url for server in servers], faults, SECONDS, SEED))
    print(dict(counts))  # noqa: T201 - with -s
    assert counts["faults"]
    assert counts["histories"]
