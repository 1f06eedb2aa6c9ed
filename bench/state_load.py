"""Preload one StreamDB in a separate process, so that its memory can be measured: HOW URL CHECKPOINT."""

from __future__ import annotations

import json
import sys
import time

import msgspec

from bench.machine import peak_memory_bytes
from headwater.client import Client
from headwater.state import Collection, StreamDB, define_state

EVENTS, KEYS = 1_000_000, 10_000


class Row(msgspec.Struct):
    id: str
    name: str
    price: float
    count: int


rows = Collection("row", Row)
STATE = define_state({"rows": rows})


def fill(url: str) -> None:
    with Client(url.rpartition("/")[0]) as client:
        stream = client.stream(url)
        stream.create()
        with stream.producer() as producer:
            for number in range(EVENTS):
                key = str(number * 7_919 % KEYS)
                row = Row(key, f"row number {number}", number / 100, number)
                producer.append(rows.upsert(row, txid=str(number // 10)))


def main() -> None:
    how, url, checkpoint = sys.argv[1:]
    if how == "fill":
        fill(url)
        return
    with Client(url.rpartition("/")[0]) as client:
        started_s = time.perf_counter()
        stored = checkpoint if how in ("checkpoint", "save") else None
        db = StreamDB(client.stream(url), STATE, live=False, checkpoint=stored, snapshots=how == "snapshot")
        db.preload()
        seconds = time.perf_counter() - started_s
        if len(db.rows) != KEYS:  # type: ignore[attr-defined]
            raise RuntimeError(f"{len(db.rows)} of {KEYS} rows")  # type: ignore[attr-defined]
        if how == "publish":
            db.publish_snapshot()
        events = db.counts.events
        db.close()
    peak_bytes = peak_memory_bytes()
    print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes, "events": events}))


if __name__ == "__main__":
    main()
