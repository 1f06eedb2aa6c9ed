"""A day of batches of `materialize` in fast forward: files, log, time of a batch and memory of the driver.

python -m bench.day [--batches 1440] [--out bench/results]

A day at one batch a minute has 1,440 batches. With fewer, each stands for a longer time. An hour of retention lasts as
long as the batches of an hour took, so files become old at the right batch. The table has the
defaults of the job, except that files are kept for 4 hours instead of a day, because nothing is deleted on the first
day otherwise. Beside it runs the same job with 64 buckets and files that are kept for a week.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.history import RESULTS, save
from bench.servers import Server, headwater
from headwater import limits
from headwater.client import Client
from headwater.pipeline import materialize
from headwater.pipeline.running import StreamingJob
from headwater.spark import session

STREAM = "day"
DAY, HOURS = 1_440, 24  # batches
EVENTS, KEYS = 200, 20_000  # of a batch; of the table
SAMPLES = 120
LOOK_S = 0.2
SERIES: dict[str, dict[str, Any]] = {
    "defaults": {"retain_hours": 4},
    "64 buckets, kept for a week": {"buckets": 64, "retain_hours": 7 * 24},
}

Sample = dict[str, Any]


def run_series(name: str, batches: int) -> Iterator[Sample]:
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as created:
        directory = Path(created)
        with headwater("--data-dir", str(directory / "data")) as server:
            spark = session("bench", master="local[2]")
            spark.sparkContext.setLogLevel("ERROR")
            try:
                for sample in _Day(spark, server, directory / "table", SERIES[name]).samples(batches):
                    yield {"series": name, **sample}
            finally:
                spark.stop()


class _Day:
    """A stream and the table that is made of it."""

    def __init__(self, spark: SparkSession, server: Server, table: Path, options: dict[str, Any]) -> None:
        self._spark = spark
        self._server = server
        self._table = table
        self._options = options
        self._chance = random.Random(24)

    def samples(self, batches: int) -> Iterator[Sample]:
        self._append([range(KEYS)])
        self._start().wait()
        self._append(self._chosen(batches))
        yield from self._watch(self._start(max_records=EVENTS), batches)

    def _chosen(self, batches: int) -> list[list[int]]:
        return [[self._chance.randrange(KEYS) for _ in range(EVENTS)] for _ in range(batches)]

    def _append(self, batches: Any) -> None:
        with Client(self._server.url) as client:
            stream = client.stream(STREAM, content_type="application/json")
            stream.create()
            for number, keys in enumerate(batches):
                stream.append_body(b"[" + b",".join(_event(key, number) for key in keys) + b"]")

    def _start(self, **more: Any) -> StreamingJob:
        table = str(self._table)
        return materialize(
            self._spark, url=self._server.url, streams=STREAM, table=table, once=True, **self._options, **more
        )

    def _watch(self, job: StreamingJob, batches: int) -> Iterator[Sample]:
        spans_ms: dict[int, int] = {}
        step = max(1, batches // SAMPLES)
        for due in itertools.count(step, step):
            while len(spans_ms) < due and not job.wait(LOOK_S):
                spans_ms |= _spans_ms(job)
                self._set_hour(spans_ms, batches)
            spans_ms |= _spans_ms(job)
            last = [spans_ms[number] for number in sorted(spans_ms)][-step:]
            yield {"batch": len(spans_ms), "of": batches, "batch_ms": statistics.median(last), **self._measured()}
            if not job.is_active:
                return

    def _set_hour(self, spans_ms: dict[int, int], batches: int) -> None:
        """An hour of retention lasts as long as its batches took, at the pace of the newest ones."""
        retained = round(self._options["retain_hours"] * batches / HOURS)
        newest = [spans_ms[number] for number in sorted(spans_ms)][-retained:]
        if newest:
            limits.PIPELINE_HOUR_S = sum(newest) / len(newest) / 1000 * batches / HOURS

    def _measured(self) -> Sample:
        sizes = _sizes(self._table)
        log = {path: size for path, size in sizes.items() if "_delta_log" in path.parts}
        return {
            "files": len(sizes) - len(log),
            "disk_mb": round(sum(sizes.values()) / 1e6, 1),
            "log_files": len(log),
            "log_mb": round(sum(log.values()) / 1e6, 2),
            "driver_mb": round(sum(_memory_bytes(pid) for pid in _driver()) / 1e6, 1),
        }


def _event(key: int, number: int) -> bytes:
    value = b'{"id":%d,"name":"customer %d","n":%d,"pad":"%x"}' % (key, key, number, random.getrandbits(512))
    return b'{"type":"t","key":"key %d","value":%s,"headers":{"operation":"upsert"}}' % (key, value)


def _spans_ms(job: StreamingJob) -> dict[int, int]:
    reports = job.query.recentProgress
    return {one["batchId"]: one["durationMs"]["triggerExecution"] for one in reports if one["numInputRows"]}


def _sizes(directory: Path) -> dict[Path, int]:
    sizes = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                sizes[path] = path.stat().st_size
    return sizes


def _driver() -> list[int]:
    """This process and its Java."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    java = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    return [os.getpid(), *java]


def _memory_bytes(pid: int) -> int:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=DAY, help="of the day")
    parser.add_argument("--series", choices=SERIES, help="run only this one, and print its samples")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.series is not None:
        for sample in run_series(arguments.series, arguments.batches):
            print(json.dumps(sample), flush=True)
        return
    samples = [sample for name in SERIES for sample in _in_own_process(name, arguments.batches)]
    save("day", {"samples": samples}, arguments.out)


def _in_own_process(series: str, batches: int) -> Iterator[Sample]:
    """The samples of a series whose driver has a process of its own, so that its memory is."""
    command = [sys.executable, "-m", "bench.day", "--series", series, "--batches", str(batches)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            yield json.loads(line)
    if process.returncode:
        sys.exit(f"{series} ended with {process.returncode}")


if __name__ == "__main__":
    main()
