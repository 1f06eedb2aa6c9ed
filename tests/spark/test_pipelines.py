"""The example of a Spark Declarative Pipeline, run as its users run it."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from bench.servers import ROOT, Server

from headwater.client import Client
from headwater.demo.shop import STREAMS, Shop, Value
from headwater.state import ChangeEvent, MaterializedState
from tests.waiting import PROGRAM_LIMIT_S

RUNS = 10
ON_DISK = ("--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.python.authenticate.socketTimeout=300")


class Pipeline:
    """A copy of the example, with a storage of its own."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.home = directory / "shop"
        self.storage = directory / "storage"
        shutil.copytree(ROOT / "examples" / "declarative", self.home)
        spec = self.home / "spark-pipeline.yml"
        text = spec.read_text().replace("http://127.0.0.1:4437", server.url.removesuffix("/v1/stream"))
        spec.write_text(text.replace("file:///tmp/headwater-shop-pipeline", self.storage.as_uri()))

    def run(self, *flags: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
        tools = Path(sys.executable).parent
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        env["PATH"] = f"{tools}:{env['PATH']}"
        command = [str(tools / "spark-pipelines"), "run", *flags, "--spec", str(self.home / "spark-pipeline.yml")]
        return subprocess.run(
            command,
            cwd=directory or self.home,
            env=env,
            capture_output=True,
            text=True,
            timeout=PROGRAM_LIMIT_S,
            check=False,
        )

    def rows(self, table: str) -> list[dict[str, str]]:
        rows: list[dict[str, str]] = pq.read_table(self.home / "spark-warehouse" / table).to_pylist()
        return rows


class Books:
    """What the shop has sent, and the state that follows from it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._events: Iterator[list[ChangeEvent[Value]]] = Shop(random.Random(1)).events()
        self.state = MaterializedState()
        self.count = 0

    def send(self, steps: int) -> None:
        for events in itertools.islice(self._events, steps):
            for event in events:
                self._client.stream(STREAMS[event.type]).append(event)  # type: ignore[index]
            self.state.apply_batch(events)
            self.count += len(events)
        self._client.stream("shop/orders").append("not an event")

    def check(self, pipeline: Pipeline) -> None:
        assert len(pipeline.rows("shop_events")) == self.count
        entities = {(kind, key) for kind in self.state.types for key in self.state.get_type(kind)}
        rows = pipeline.rows("shop_state")
        assert {(row["type"], row["key"]) for row in rows} == entities
        assert len(rows) == len(entities)
        orders = {row["status"]: row["count"] for row in pipeline.rows("orders_by_status")}
        assert sum(map(int, orders.values())) == len(self.state.get_type("order"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_declarative_example_runs_again_and_again(server: Server, tmp_path: Path) -> None:
    pipeline = Pipeline(server, tmp_path)
    with Client(server.url) as client:
        for path in STREAMS.values():
            client.stream(path).create()
        books = Books(client)
        books.send(300)
        for number in range(RUNS):
            done = pipeline.run(*ON_DISK)
            assert done.returncode == 0, f"run {number}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            books.check(pipeline)
            books.send(20)
    shutil.rmtree(pipeline.home / "spark-warehouse" / "shop_events")  # as Spark's error advises, so rows are missing
    done = pipeline.run(*ON_DISK, "--full-refresh-all")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    books.check(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "place", "reason"),
    [
        ((), "shop", "Spark's catalog is in memory"),
        (ON_DISK, ".", "apart from earlier runs; run spark-pipelines in"),
    ],
    ids=["catalog in memory", "another directory"],
)
def test_a_run_that_the_next_one_cannot_continue_is_refused(
    server: Server, tmp_path: Path, flags: tuple[str, ...], place: str, reason: str
) -> None:
    with Client(server.url) as client:
        client.stream("shop/orders").create()
    pipeline = Pipeline(server, tmp_path)
    done = pipeline.run(*flags, directory=tmp_path / place)
    assert done.returncode != 0
    assert reason in done.stdout + done.stderr
    assert not pipeline.storage.exists()
    assert not list(tmp_path.rglob("*.parquet"))
