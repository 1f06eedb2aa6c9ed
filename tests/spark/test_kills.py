"""Archive, replay, snapshot and publish, of which the driver is killed with its tasks, in the middle of the work.

`tests/unit/pipeline/kills` kills jobs at each of their effects, without Spark.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headwater.client import Client, Retry
from headwater.pipeline import archive
from tests.fault.hostile import hostile
from tests.spark.scenes import Scene, scene
from tests.spark.test_chain import kill_at_commit
from tests.unit.pipeline.kills.session import Session

pytestmark = pytest.mark.slow


def event(key: str, value: int | None) -> dict[str, Any]:
    operation = "delete" if value is None else "upsert"
    change = {"type": "thing", "key": key, "headers": {"operation": operation}}
    return change if value is None else {**change, "value": value}


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    state = {one["key"]: one.get("value") for one in events if "key" in one}
    return {key: value for key, value in state.items() if value is not None}


STATE = [event(f"k{number % 7}", None if number % 5 == 0 else number) for number in range(60)]
TEXT = [b"%d " % number for number in range(40)]


@contextlib.contextmanager
def killed(directory: Path, job: str, *aims: str) -> Iterator[tuple[Scene, Client, str]]:
    """A server with the streams, and the job, whose driver is killed at the second request that begins like an aim."""
    victims = ["driver"] if aims else []
    with (
        scene(directory, ["tests.spark.journey", job, str(directory)], 1, victims, aims) as running,
        hostile(running.server, running.decide) as proxy,
        Client(running.server.url, retry=Retry(attempts=20)) as client,
    ):
        client.stream("src/state").create(messages=STATE)
        client.stream("src/text").create(content_type="text/plain")
        for one in TEXT:
            client.stream("src/text").append(one)
        client.stream("src/text").close()
        yield running, client, proxy.url


def test_archive(tmp_path: Path) -> None:
    with killed(tmp_path, "archive") as (running, client, url):
        killer = threading.Thread(target=kill_at_commit, args=(running, tmp_path / "archive"), daemon=True)
        killer.start()

        def more() -> None:
            client.stream("src/state").append(event("k1", 1000))

        running.run(url, more)
        assert running.deaths == Counter(driver=1)
    rows = DeltaTable(tmp_path / "archive").to_pyarrow_table().sort_by("order").to_pylist()
    assert b"".join(row["value"] for row in rows if row["stream"] == "src/text") == b"".join(TEXT)
    assert len([row for row in rows if row["stream"] == "src/state"]) == len(STATE) + 1
    streams = DeltaTable(tmp_path / "archive.streams").to_pyarrow_table().to_pylist()
    assert {row["stream"]: row["closed"] for row in streams} == {"src/state": False, "src/text": True}


def test_replay(tmp_path: Path) -> None:
    with killed(tmp_path, "replay", "POST /v1/stream/copy/") as (running, client, url):
        session: Any = Session()
        archive(session, url=running.server.url, streams="src/*", table=str(tmp_path / "archive"), once=True).wait()
        running.run(url, lambda: None)
        assert running.deaths == Counter(driver=1)
        assert list(client.stream("copy/src/state").read().all()) == STATE
        copy = client.stream("copy/src/text")
        assert b"".join(copy.read(type=bytes).all()) == b"".join(TEXT)
        assert copy.head().closed


def test_snapshot(tmp_path: Path) -> None:
    aims = ("PUT /v1/stream/src/state.snapshots", "POST /v1/stream/src/state.snapshots")
    with killed(tmp_path, "snapshot", *aims) as (running, client, url):
        running.run(url, lambda: None)
        assert running.deaths == Counter(driver=1)
        (made,) = client.list("src/state.snapshots/")
        assert made.closed
        assert made.path.endswith(client.stream("src/state").head().tail_offset)
        events = list(client.stream(made.path).read().all())
        starts = [number for number, one in enumerate(events) if one["headers"].get("control") == "snapshot-start"]
        assert fold(events[starts[-1] :]) == fold(STATE)


def test_publish(tmp_path: Path) -> None:
    prices = {f"item{number}": float(number) for number in range(30)}

    def write() -> None:
        table = pa.table({"item": list(prices), "price": list(prices.values())})
        write_deltalake(tmp_path / "prices", table, mode="overwrite")

    def change() -> None:
        prices["item1"] = 100.0
        del prices["item2"]
        write()

    write()
    with killed(tmp_path, "publish", "POST /v1/stream/out") as (running, client, url):
        running.run(url, change)
        assert running.deaths == Counter(driver=1)
        sent = list(client.stream("out").read().all())
    assert {key: value["price"] for key, value in fold(sent).items()} == prices
    assert len(sent) == 32  # the first version, whose append was sent, and two changes
