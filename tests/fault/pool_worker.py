"""A worker of the pool in `test_workers.py`, as a process: it writes down what it does, one line at a time.

Lines are written with one `write` before the next step begins, so a kill loses none that had an effect. Times are those
of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import msgspec

from headwater.client import Client, WorkBatch, WorkReport
from headwater.client.sync.subscription import Claim


class Line(msgspec.Struct, omit_defaults=True):
    """What a worker did: `claim`, `process`, `ack` (after the response), `end` of a claim, or `ready`."""

    what: str
    worker: str
    time_s: float
    subscription: str = ""
    generation: int = 0
    stream: str = ""
    offset: str = ""
    numbers: list[int] = []
    cursors: dict[str, str] = {}


def main() -> None:
    url, wake_stream, name, file = sys.argv[1:]
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, **members: Any) -> None:
        line = Line(what, name, time.monotonic(), **members)
        os.write(log, msgspec.json.encode(line) + b"\n")

    def process(batch: WorkBatch[Any]) -> None:
        numbers = [message["n"] for message in batch.messages]
        members = {"subscription": batch.subscription, "generation": batch.generation, "stream": batch.stream}
        note("process", **members, offset=batch.offset, numbers=numbers)
        time.sleep(random.choice([0.0, 0.05, 0.2, 0.8]))  # so that kills and pauses happen during a call

    ack = Claim.ack

    def noted_ack(claim: Claim, acks: Any, *, done: bool = False) -> Any:
        result = ack(claim, acks, done=done)
        for stream, offset in acks.items():
            members = {"subscription": claim.subscription, "generation": claim.generation}
            note("ack", **members, stream=stream, offset=offset)
        return result

    def report(event: WorkReport) -> None:
        if event.outcome != "claimed":
            note("end", subscription=event.subscription, generation=event.generation)

    run_batches = Claim.batches

    def noted_batches(claim: Claim, *types: Any) -> Any:
        cursors = {stream.path: stream.acked_offset for stream in claim.streams}
        note("claim", subscription=claim.subscription, generation=claim.generation, cursors=cursors)
        return run_batches(claim, *types)

    Claim.ack = noted_ack  # type: ignore[method-assign,assignment]
    Claim.batches = noted_batches  # type: ignore[method-assign,assignment]
    with Client(url) as client:
        worker = client.worker(wake_stream, process, name=name, on_report=report)
        note("ready")
        worker.run(signals=True)


if __name__ == "__main__":
    main()
