"""Exactly once, from stream to stream, while drivers, tasks and the server are killed and the network loses requests.

A proxy between Spark and the server sees every request. As a seed decides it kills the driver or the server just when
a request of a certain kind has arrived, before its answer gets through: at the points where a lost answer matters.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from headwater.client import Client, Retry
from tests.fault.hostile import hostile
from tests.spark.scenes import scene

PRODUCER = ("producer-id", "producer-epoch", "producer-seq")
STREAMS = {"a": 800, "b": 200, "c": 30}  # of a, a batch takes several requests; of c, one
PUBLISHING = ("POST /v1/stream/dst/",)
PREPARING = ("POST /v1/stream/_spark/", "PUT /v1/stream/_spark/")
FEW = {"a": 100, "c": 10}


def fill(client: Client, streams: dict[str, int], first: int) -> None:
    for name, count in streams.items():
        stream = client.stream(f"src/{name}")
        stream.create()
        for start in range(first, first + count, 20):
            stream.append_many([{"n": n} for n in range(start, min(start + 20, first + count))])


def copied(client: Client, streams: dict[str, int]) -> dict[str, list[int]]:
    return {name: [message["n"] for message in client.stream(f"dst/{name}").read().all()] for name in streams}


def run_scene(
    directory: Path, seed: int, victims: list[str], streams: dict[str, int], without: tuple[str, ...] = ()
) -> dict[str, list[int]]:
    aims = PUBLISHING if without else (*PUBLISHING, *PREPARING)
    program = ["tests.spark.pipe", "local[2,4]", str(directory / "cp"), "1"]
    with (
        scene(directory, program, seed, victims, aims) as running,
        hostile(running.server, running.decide, without=without, of=PUBLISHING) as proxy,
    ):
        with Client(running.server.url, retry=Retry(attempts=20)) as client:
            fill(client, streams, 0)
            running.run(proxy.url, lambda: fill(client, streams, 10_000))
            assert running.deaths == Counter(victims)
            return copied(client, streams)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS", "1"))))
def test_every_record_arrives_once_and_in_order(tmp_path: Path, seed: int) -> None:
    victims = ["server", "driver", "server", "driver"][seed % 2 :][:2]
    arrived = run_scene(tmp_path, seed, victims, STREAMS)
    assert arrived == {name: [*range(count), *range(10_000, 10_000 + count)] for name, count in STREAMS.items()}


@pytest.mark.slow
def test_without_producer_headers_records_arrive_twice(tmp_path: Path) -> None:
    """Shows that the test above can fail: without producer headers, records arrive twice."""
    arrived = run_scene(tmp_path, 3, ["driver"], FEW, without=PRODUCER)
    assert any(len(numbers) > len(set(numbers)) for numbers in arrived.values())
