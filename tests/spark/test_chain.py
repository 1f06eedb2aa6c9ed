"""From state streams through Spark to a follower of a table, while drivers and the server are killed."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headwater.client import Client, Retry, Row
from tests.fault.hostile import hostile
from tests.spark.scenes import Scene, scene
from tests.waiting import wait_until

STREAMS = ("src/a", "src/b")
AIMS = ("POST /v1/table/out", "POST /v1/stream/_spark/")
KEYS = [f"k{number}" for number in range(25)]
State = dict[tuple[str, str], int]


def history(random: random.Random, count: int, first: int) -> list[dict[str, Any]]:
    """Events, some of which are late, repeated or bad."""
    events: list[dict[str, Any]] = []
    for number in range(first, first + count):
        version = max(0, number - random.choice([0, 0, 0, 5, 20]))
        operation = random.choice(["upsert", "upsert", "upsert", "delete"])
        value: dict[str, Any] = {"version": version}
        if operation == "upsert":
            value["n"] = random.choice([number, number, "none"])
        events.append({"type": "item", "key": random.choice(KEYS), "value": value, "headers": {"operation": operation}})
        if random.random() < 0.1:
            events.append(events[-1])
    return events


def fold(stream: str, events: list[dict[str, Any]]) -> State:
    """The expected values of the entities: the greatest version wins, and of equal versions the first."""
    known: dict[str, tuple[int, int | None]] = {}
    for event in events:
        key, value, is_delete = event["key"], event["value"], event["headers"]["operation"] == "delete"
        if not is_delete and not isinstance(value["n"], int):
            continue
        if key not in known or value["version"] > known[key][0]:
            known[key] = (value["version"], None if is_delete else value["n"])
    return {(stream, key): n for key, (_, n) in known.items() if n is not None}


class Follower(threading.Thread):
    """Follows the table until it is closed, also while the server is killed."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._rows: list[Row] = []

    def run(self) -> None:
        with Client(self._url, retry=Retry(attempts=1000, most_s=0.2)) as client:
            for row in client.table("out").follow():
                self._rows.append(row)

    def state(self) -> State:
        """The state after all rows."""
        self.join(30)
        assert [row.seqno for row in self._rows] == list(range(1, len(self._rows) + 1))
        state: State = {}
        for row in self._rows:
            stream, key = json.loads(row.key)
            if row.action == "+":
                state[(stream, key)] = json.loads(row.record)["n"]
            else:
                del state[(stream, key)]  # a row that was sent once has a key to delete
        return state


def kill_at_commit(running: Scene, table: Path) -> None:
    """Kill the first driver after the commit of its second batch, before Spark records it."""
    wait_until(lambda: len(list(table.glob("_delta_log/*.json"))) >= 3, limit_s=300, pause_max_s=0.001)
    running.kill_driver()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4])
def test_the_chain(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    events = {stream: history(chance, 100, 0) for stream in STREAMS}
    victims = ["driver", "server"]
    with (
        scene(tmp_path, ["tests.spark.chain", str(tmp_path)], seed, victims, AIMS) as running,
        hostile(running.server, running.decide) as proxy,
        Client(running.server.url, retry=Retry(attempts=20)) as client,
    ):
        client.table("out").create()
        for stream, first in events.items():
            client.stream(stream).create(messages=first)
        follower = Follower(running.server.url)
        follower.start()
        killer = threading.Thread(target=kill_at_commit, args=(running, tmp_path / "state"), daemon=True)
        killer.start()

        def more() -> None:
            for stream, known in events.items():
                known += (new := history(chance, 60, 100))
                client.stream(stream).append_many(new)

        running.run(proxy.url, more)
        killer.join(1)
        assert running.deaths == Counter(driver=2, server=1)
        client.table("out").close()
        followed = follower.state()
    wanted = {key: n for stream, known in events.items() for key, n in fold(stream, known).items()}
    rows = DeltaTable(tmp_path / "state").to_pyarrow_table().to_pylist()
    assert {(row["stream"], row["key"]): row["n"] for row in rows} == wanted
    assert len(rows) == len(wanted)
    assert followed == wanted
