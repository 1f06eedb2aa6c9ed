"""Views of a server that is killed during appends: each event becomes one row, in order."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fault.test_chains import Link
from tests.waiting import LIMIT_S, wait_for

EVENTS = 4_000
KILLS = 8
KINDS = ("price", "price", "stock")


def event(number: int) -> dict[str, Any]:
    """Events of two types, a few of them invalid or resets. Each row contains the number of its event."""
    if number % 211 == 210:
        return {"headers": {"control": "reset"}}
    if number % 97 == 96:
        return {"type": "price", "key": "", "value": number, "headers": {"operation": "insert"}}
    operation = "delete" if number % 7 == 6 else "upsert"
    value = {"n": number, "text": "x " * (number % 100)}
    return {"type": KINDS[number % 3], "key": f"k{number % 31}", "value": value, "headers": {"operation": operation}}


def expected() -> list[str]:
    """The rows of the view, without SeqNo and timestamp."""
    rows: list[str] = []
    live: dict[str, None] = {}  # in the order of their last rows
    for number in range(EVENTS):
        made = event(number)
        if "control" in made["headers"]:
            rows += [f"-\t{key}\t" for key in live]
            live.clear()
        elif made["type"] == "price" and made["key"]:
            key = made["key"]
            live.pop(key, None)
            if made["headers"]["operation"] == "delete":
                rows.append(f"-\t{key}\t")
            else:
                live[key] = None
                rows.append(f"+\t{key}\t{json.dumps(made['value'], separators=(',', ':'))}")
    return rows


class Writer(threading.Thread):
    """Appends events as a producer: a request without a response is retried and stored once."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{link.port}/v1/stream/s"

    def run(self) -> None:
        chosen = random.Random(15)
        written = seq = 0
        with httpx.Client(timeout=LIMIT_S) as client:
            while written < EVENTS:
                count = min(EVENTS - written, chosen.choice((1, 1, 2, 5, 40, 200)))
                body = [event(number) for number in range(written, written + count)]
                headers = {"producer-id": "w", "producer-epoch": "0", "producer-seq": str(seq)}
                while True:
                    with contextlib.suppress(httpx.HTTPError):
                        if client.post(self.url, json=body, headers=headers).status_code in (200, 204):
                            break
                    time.sleep(0.02)
                written, seq = written + count, seq + 1
                time.sleep(chosen.random() * 0.03)


@pytest.mark.slow
def test_a_view_has_each_event_once_and_in_order_although_the_server_is_killed(tmp_path: Path) -> None:
    chosen = random.Random(16)
    link = Link(tmp_path / "data")
    root = f"http://127.0.0.1:{link.port}/v1"
    link.start()
    try:
        httpx.put(f"{root}/stream/s", headers={"content-type": "application/json"}).raise_for_status()
        view = {"stp-view-of": "/v1/stream/s", "stp-view-type": "price"}
        httpx.put(f"{root}/table/v", headers=view).raise_for_status()
        back = {"stream-view-of": "/v1/table/v", "stream-view-type": "again"}
        httpx.put(f"{root}/stream/back", headers=back).raise_for_status()
        writer = Writer(link)
        writer.start()
        for _ in range(KILLS):
            time.sleep(chosen.random() * 0.5)
            link.end(signal.SIGKILL)
            link.start()
        writer.join()
        wanted = expected()
        wait_for(lambda: _seqnos(root), [len(wanted)] * 2)
        read = httpx.get(f"{root}/table/v", params={"timeout": "0"}).text.splitlines()
        assert [int(line.split("\t")[0]) for line in read] == list(range(1, len(wanted) + 1))
        assert [line.split("\t", 2)[2] for line in read] == wanted
        events = httpx.get(f"{root}/stream/back").json()
        assert [int(one["headers"]["seqno"]) for one in events] == list(range(1, len(wanted) + 1))
        assert [one.get("value") for one in events] == [
            json.loads(row.split("\t")[2]) if row[0] == "+" else None for row in wanted
        ]
        by_name = {one["name"]: one for one in httpx.get(f"{root}/table/__stp/views").json()["views"]}
        assert by_name["v"]["skipped"] == len([n for n in range(EVENTS) if n % 97 == 96 and n % 211 != 210])
        assert link.end(signal.SIGTERM) == 0
    finally:
        if link.process is not None:
            link.end(signal.SIGKILL)


def _seqnos(root: str) -> list[int]:
    views = httpx.get(f"{root}/table/__stp/views").json()["views"]
    back = next(int(one["position"] or 0) for one in views if one["name"] == "back")
    return [int(httpx.head(f"{root}/table/v").headers["stp-last-seqno"]), back]
