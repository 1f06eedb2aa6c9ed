"""`headwater pipeline` as a program that is killed, stopped and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.servers import Server
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.pipeline import replay
from headwater.pipeline.lake import Lake
from tests.waiting import wait_until

PIPELINE = """
url = "{url}"
master = "local[2]"

[jobs.raw]
job = "archive"
streams = "shop/**"
table = "{table}"
every-s = 0.2
max-records = 300

[jobs.snapshots]
job = "snapshot"
streams = "shop/orders"
every-s = 0.5
"""


class Command:
    """A command in a process group of its own, which ends with the test."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "headwater", "pipeline", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()

    def end(self, timeout_s: float = 120) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


def until(what: Callable[[], Any]) -> None:
    wait_until(what, limit_s=120)  # Java starts


def _rows(table: str) -> int:
    return Lake(table).open().to_pyarrow_table(columns=["stream"]).num_rows if Lake(table).exists() else 0


def _run_until_stopped(file: Path, is_done: Callable[[], bool]) -> tuple[int, str, str]:
    """Retry like a scheduler: a failed command is started again if its exit code allows it."""
    for _ in range(3):
        with Command("run", str(file)) as command:
            until(lambda process=command.process: is_done() or process.poll() is not None)  # type: ignore[misc]
            command.process.send_signal(signal.SIGTERM)
            code, out, err = command.end()
        if code != 1:
            break
    return code, out, err


@pytest.mark.slow
def test_jobs_that_are_killed_and_stopped_lose_and_repeat_nothing(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    table = str(tmp_path / "raw")
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.format(url=server.url, table=table))
    with Client(server.url) as client:
        orders, notes = client.stream("shop/orders"), client.stream("shop/notes")
        event = {"type": "order", "key": "a", "value": {"text": "x" * 40}, "headers": {"operation": "upsert"}}
        orders.create(messages=[{**event, "key": str(n)} for n in range(1000)])
        notes.create(content_type="text/plain")
        with Command("run", str(file)) as first:
            until(lambda: _rows(table) >= 300 or first.process.poll() is not None)
            first.kill()
        notes.append_many([f"note {n}\n" for n in range(20)])
        orders.append_many([{**event, "key": str(n)} for n in range(1000, 1500)])
        notes.close()
        code, out, err = _run_until_stopped(file, lambda: _rows(table) >= 1501)
        assert code == 0, err
        assert re.search(r"^raw: [\d,]+ rows in \d+ batches, .*\nsnapshots: \d+ rows", out, re.MULTILINE)
        assert "ending after the batch" in err
        with Command("status", str(file), "--json") as status:
            code, out, err = status.end()
        assert code == 0, err
        raw, snapshots = json.loads(out)
        assert raw["lag_bytes"] == {"shop/notes": 0, "shop/orders": 0}
        assert re.match(r"batch \d+", raw["position"])
        assert snapshots["lag_bytes"] == {"shop/orders": 0}
        replay(spark, url=server.url, table=table, to="copy").wait()
        for stream in (orders, notes):
            copy = client.stream(f"copy/{stream.path}")
            assert copy.read(type=bytes).all() == stream.read(type=bytes).all()
            assert copy.head().closed == stream.head().closed


CHAIN = """
url = "{url}"
master = "local[2]"

[jobs.copy]
job = "archive"
streams = "chain/out"
table = "lake/copy"

[jobs.out]
job = "publish"
table = "lake/state"
keys = "key"
type = "order"
to = "chain/out"

[jobs.state]
job = "materialize"
streams = "chain/in"
type = "order"
schema = "n INT"
table = "lake/state"
"""


@pytest.mark.slow
def test_one_run_brings_a_chain_up_to_date_and_says_only_what_it_does(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pipeline.toml"
    file.write_text(CHAIN.format(url=server.url))
    events = [{"type": "order", "key": key, "value": {"n": 1.0}, "headers": {"operation": "insert"}} for key in "ab"]
    with Client(server.url) as client:
        client.stream("chain/in").create(messages=events)
        with Command("run", str(file), "--once") as command:
            code, _, err = command.end(240)
        assert code == 0, err
        values = [event["value"]["n"] for event in client.stream("chain/out").read().all()]
    assert values == [1, 1]
    assert _rows("lake/copy") == 2
    said = [line for line in err.splitlines() if not re.match(r" *[\d.]+ s  ", line)]
    assert said == [
        "headwater: starting Spark (local[2]), which takes some seconds",
        "headwater: starting state",
        "headwater: starting out after state",
        "headwater: starting copy after out",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--conf", "spark.executor.memory=abc"], "Spark did not start with spark.executor.memory: "),
        (["--conf", "spark.driver.memory=abc"], "Spark did not start with spark.driver.memory: Invalid "),
        (["--checkpoint", "s3://bucket/c"], "Spark has no file system for the checkpoint s3://bucket/c: "),
        (["--streams", "wrong/nothing"], "no stream at wrong/nothing"),
    ],
)
def test_what_only_spark_can_tell_is_one_line_and_nothing_is_created(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with Client(server.url) as client:
        client.stream("wrong/in").create()
    flags = ["--url", server.url, "--streams", "wrong/in", "--table", "lake/a", "--once", "--master", "local[1]"]
    with Command("archive", *flags, *arguments) as command:
        code, _, err = command.end(240)
    *steps, last = err.splitlines()
    assert message in last
    assert code == (3 if "no stream" in message else 2)
    assert all(step.startswith("headwater: starting ") for step in steps), err
    assert not list(tmp_path.iterdir())
