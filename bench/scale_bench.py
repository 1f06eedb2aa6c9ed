"""Spark with many streams: planning a batch, the size of its checkpoint, and a batch to many targets.

Spark itself does not run. This measures what the driver does between two Spark jobs.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa

from bench.report import Row
from bench.server_bench import Bench
from bench.servers import Server, headwater
from headwater.client import Client
from headwater.log.content import ContentKind
from headwater.spark.options import read_options, write_options
from headwater.spark.planning import Planner, from_json, to_json
from headwater.spark.publishing import Publisher
from headwater.spark.staging import Gatherer, RowChunk, place_of

STREAMS = 10_000
TARGETS = 3_000
TASKS = 2
RUNS = 5


def run_scale(bench: Bench) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-") as name,
        headwater("--data-dir", f"{name}/data") as server,
    ):
        _fill(server)
        paths = ",".join(_path(number) for number in range(STREAMS))
        for how, naming in (("pattern", {"pattern": "sensors/*"}), ("named", {"streams": paths})):
            _plan(bench, server, how, naming)
        _publish(bench, server)


def _path(number: int) -> str:
    return f"sensors/{number:05d}"


def _fill(server: Server) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: client.stream(_path(number)).create(messages=[{"n": number}]), range(STREAMS)))


def _plan(bench: Bench, server: Server, how: str, naming: dict[str, str]) -> None:
    """Measure what a trigger does: find the tails of the streams, the new ranges, and their parts."""
    options = read_options({"url": server.url, **naming}, bounded=False)
    spans = []
    with options.open() as client:
        planner = Planner(options, client)
        start = to_json(planner.resolve("earliest", planner.check()))
        for _ in range(RUNS):
            started = time.perf_counter()
            end = to_json(planner.advance(from_json(start), planner.tails(), limited=False))
            ranges = planner.partitions(from_json(start), from_json(end))
            spans.append((time.perf_counter() - started) * 1000)
        if sum(map(len, ranges)) != STREAMS:
            raise RuntimeError("not every stream is read")
    name = f"planning of {STREAMS:,} streams"
    bench.note(Row(name, f"headwater, {how}", statistics.median(spans), "ms", None, "<= 1000", "all have new data"))
    if how == "pattern":
        size = len(json.dumps(end))
        bench.note(Row(f"checkpoint of {STREAMS:,} streams", "headwater", size / 1000, "kB", None, "", "a batch"))


def _publish(bench: Bench, server: Server) -> None:
    options = msgspec.structs.replace(write_options({"url": server.url}), content_type="application/json")
    with options.open() as client:
        for batch, note in enumerate(("targets are created", "targets exist")):
            started = time.perf_counter()
            parts = [_gathered(client, options.max_request_bytes, batch, task) for task in range(TASKS)]
            Publisher(client, options, "bench").publish(batch, parts)
            span_s = time.perf_counter() - started
            bench.note(Row(f"a batch to {TARGETS:,} targets", "headwater", span_s, "s", None, "", note))


def _gathered(client: Client, request_bytes: int, batch: int, task: int) -> list[RowChunk]:
    gatherer = Gatherer(client, ContentKind.JSON, request_bytes, place_of("bench", batch, task))
    for target in range(TARGETS):
        rows = [b'{"task":%d,"target":%d,"n":%d}' % (task, target, n) for n in range(5)]
        gatherer.add(f"targets/{target:04d}", pa.array(rows, pa.binary()))
    return gatherer.finish()
