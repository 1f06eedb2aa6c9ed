"""A server is stopped while it does not know what became of a batch."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest

from headwater.limits import POSTGRES_ANSWER_S, POSTGRES_STOP_S, STOP_GRACE_S
from tests.postgres import PostgresServer, own_postgres
from tests.waiting import LIMIT_S, wait_until

TEXT = {"content-type": "text/plain"}
WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%headwater.store_%'
"""
pytestmark = pytest.mark.slow


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with own_postgres() as server:
        try:
            yield server
        finally:
            if server.is_running:
                server.signal_all(signal.SIGCONT)


@pytest.mark.parametrize("how", ["hangs", "is gone"])
def test_a_stop_does_not_wait_for_an_unknown_outcome(database: PostgresServer, how: str, tmp_path: Path) -> None:
    assert POSTGRES_STOP_S < STOP_GRACE_S < POSTGRES_ANSWER_S  # the request is answered before its connection ends
    where = database.new_database()
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", "--store", where]
    said = tmp_path / "log"
    with said.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        url = next(line for line in process.stdout if "http://" in line).split("http://")[1].split()[0]
        stream = f"http://{url.rstrip('/').partition('/')[0]}/v1/stream/a"
        assert httpx.put(stream, headers=TEXT, timeout=LIMIT_S).status_code == 201
        with ThreadPoolExecutor() as threads, contextlib.closing(psycopg.connect(where)) as locking:
            # The batch with the append waits, and no other one does: servers have streams of their own.
            locked = locking.execute("SELECT FROM headwater.streams WHERE path = 'a' FOR UPDATE")
            assert locked.rowcount == 1
            append = threads.submit(httpx.post, stream, headers=TEXT, content="x", timeout=LIMIT_S)
            with psycopg.connect(where, autocommit=True) as asking:
                wait_until(lambda: asking.execute(WAITING).fetchone() == (1,), "the append waits")
            database.signal_all(signal.SIGSTOP)
            if how == "is gone":
                database.kill()
                wait_until(lambda: "was lost during a batch" in said.read_text(), "the server knows it")
            process.terminate()
            assert process.wait(LIMIT_S) == 1
            answer = append.result()
        assert answer.status_code == 503, answer.text
        assert answer.json()["type"] == "urn:headwater:outcome-pending"
        assert answer.headers["retry-after"] == "1"
        assert "the server stops, and it is unknown whether the last batch was stored" in said.read_text()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
