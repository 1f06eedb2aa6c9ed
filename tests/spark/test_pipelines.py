"""The example of a Spark Declarative Pipeline, run as its users run it."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from bench.servers import ROOT, Server

from headwater.client import Client
from headwater.demo.shop import STREAMS, Shop
from headwater.state import MaterializedState


@pytest.mark.slow
def test_the_declarative_example(server: Server, tmp_path: Path) -> None:
    expected = MaterializedState()
    with Client(server.url) as client:
        for path in STREAMS.values():
            client.stream(path).create()
        for events in itertools.islice(Shop(random.Random(1)).events(), 300):
            for event in events:
                client.stream(STREAMS[event.type]).append(event)  # type: ignore[index]
            expected.apply_batch(events)
        client.stream("shop/orders").append("not an event")
    shutil.copytree(ROOT / "examples" / "declarative", tmp_path / "shop")
    spec = tmp_path / "shop" / "spark-pipeline.yml"
    text = spec.read_text().replace("http://127.0.0.1:4437", server.url.removesuffix("/v1/stream"))
    spec.write_text(text.replace("file:///tmp/headwater-shop-pipeline", (tmp_path / "storage").as_uri()))
    tools = Path(sys.executable).parent
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    env["PATH"] = f"{tools}:{env['PATH']}"
    done = subprocess.run(
        [str(tools / "spark-pipelines"), "run", "--spec", str(spec)],
        cwd=spec.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    warehouse = spec.parent / "spark-warehouse"
    state = pq.read_table(warehouse / "shop_state").to_pylist()
    assert {(row["type"], row["key"]) for row in state} == {
        (kind, key) for kind in expected.types for key in expected.get_type(kind)
    }
    orders = {row["status"]: row["count"] for row in pq.read_table(warehouse / "orders_by_status").to_pylist()}
    assert sum(orders.values()) == len(expected.get_type("order"))
