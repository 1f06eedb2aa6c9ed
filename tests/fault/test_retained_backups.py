"""Backups and restores of streams that are trimmed, compacted and forked meanwhile, over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.limits import Limits
from headwater.store.embedded.backup.restoring import restore
from headwater.store.embedded.backup.status import spans_of
from headwater.store.embedded.backup.targets import DirectoryTarget
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.opening import open_store
from tests.edges import free_port
from tests.fault.killed_server import TEXT, Life
from tests.fault.test_backups import Following, _when_restorable
from tests.servers import serving

ROUNDS = 60
KEYS = 8

State = dict[str, int]


@dataclass
class Round:
    """What there was when a round had ended: the last number, the state, and the offset at which both are."""

    at_s: float
    number: int
    state: State
    offset: str


@dataclass
class Load:
    """Appends numbers to a log and updates with the same numbers to a state stream, and trims, compacts and forks."""

    client: httpx.Client
    random: random.Random
    rounds: list[Round] = field(default_factory=list)
    log_ends: list[str] = field(default_factory=list)
    forks: list[Round] = field(default_factory=list)

    def create(self) -> None:
        for path in ("/log", "/state"):
            assert self.client.put(path, headers=TEXT).status_code == 201

    def run(self) -> None:
        number, state = 0, dict[str, int]()
        for count in range(1, ROUNDS + 1):
            updates = []
            for _ in range(20):
                number += 1
                key = f"k{self.random.randrange(KEYS)}"
                state[key] = number
                updates.append({"type": "t", "key": key, "value": number, "headers": {"operation": "upsert"}})
            self.log_ends.append(self._append("/log", number))
            offset = self._append("/state", updates)
            self.rounds.append(Round(time.time(), number, dict(state), offset))
            if count % 4 == 0:
                self._post("trim", path="log", before=self.log_ends[-4])
            if count % 7 == 0:
                assert self._post("compact", path="state")["compacted"]
            if count % 7 == 3 and count > 7:  # what the snapshot has replaced is freed at once
                self._post("trim", path="state", before=self.rounds[count // 7 * 7 - 2].offset)
            if count % 15 == 0:
                fork = {"stream-forked-from": "/v1/stream/state", "stream-fork-offset": offset}
                assert self.client.put(f"/fork/{count}", headers={**TEXT, **fork}).status_code == 201
                self.forks.append(Round(time.time(), count, dict(state), offset))

    def _append(self, path: str, value: Any) -> str:
        response = self.client.post(path, headers=TEXT, content=json.dumps(value))
        assert response.status_code in (200, 204), response.text
        return response.headers["stream-next-offset"]

    def _post(self, what: str, **query: str) -> Any:
        response = self.client.post(f"/__ds/{what}", params=query)
        assert response.status_code in (200, 204), response.text
        return response.json() if response.content else None


def messages_of(client: httpx.Client, path: str, offset: str = "-1") -> list[Any] | None:
    """What a reader gets from an offset on; None: 410."""
    messages: list[Any] = []
    while True:
        response = client.get(path, params={"offset": offset})
        if response.status_code == 410:
            assert offset != "-1"
            assert "stream-first-offset" in response.headers
            return None
        assert response.status_code == 200, response.text
        messages += response.json()
        offset = response.headers["stream-next-offset"]
        if "stream-up-to-date" in response.headers:
            return messages


def folded(state: State, messages: list[Any]) -> State:
    state = dict(state)
    for message in messages:
        if "operation" in message["headers"]:
            state[message["key"]] = message["value"]
    return state


def check_copy(client: httpx.Client, load: Load, at_s: float) -> int:
    """Check what readers get of a server that was restored to a time. Returns how many held offsets are gone."""
    before = [one for one in load.rounds if one.at_s < at_s]
    last = load.rounds[len(before)] if len(before) < len(load.rounds) else before[-1]  # it may have been under way
    state = folded({}, messages_of(client, "/state") or [])
    assert state in (before[-1].state, last.state)
    numbers = messages_of(client, "/log")
    assert numbers is not None
    everything = [one.number for one in load.rounds]
    assert numbers
    assert numbers[-1] in (before[-1].number, last.number)
    assert numbers == everything[everything.index(numbers[0]) : everything.index(numbers[-1]) + 1]
    assert len(numbers) <= 9
    gone = 0
    for held in before:
        rest = messages_of(client, "/state", held.offset)
        gone += rest is None
        assert rest is None or folded(held.state, rest) == state
    for fork in load.forks:
        if fork.at_s < at_s:
            assert folded({}, messages_of(client, f"/fork/{fork.number}") or []) == fork.state
    return gone


@pytest.mark.slow
def test_a_restore_has_what_was_trimmed_and_compacted_by_then(tmp_path: Path) -> None:
    port, target = free_port(), str(tmp_path / "target")
    life = Life(tmp_path / "data", port)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1/stream", timeout=120) as client:
        load = Load(client, random.Random(27))
        load.create()
        following = Following(tmp_path / "data", target)
        asyncio.run(_when_restorable(target))
        load.run()
        gone = check_copy(client, load, time.time())
    assert gone > ROUNDS // 2
    assert life.end(signal.SIGTERM) == 0
    assert following.end(signal.SIGTERM) == (0, "")
    ended_s = load.forks[-1].at_s + 0.001
    assert spans_of(DirectoryTarget(Path(target)))[-1].to_ms / 1000 > ended_s
    moments = [load.rounds[count].at_s + 0.001 for count in (ROUNDS // 3, 2 * ROUNDS // 3)]
    counts = []
    for number, at_s in enumerate([*moments, ended_s]):
        copy = tmp_path / f"copy{number}"
        restore(DirectoryTarget(Path(target)), copy, round(at_s * 1000), lambda *_: None)
        assert check_directory(copy, lambda _: None).problems == []
        store = open_store(copy, Limits())
        with serving(Limits(), store=store) as server, httpx.Client(base_url=server.url, timeout=120) as client:
            counts.append(check_copy(client, load, round(at_s, 3)))
            assert client.post("/__ds/compact", params={"path": "state"}).status_code == 200
            check_copy(client, load, round(at_s, 3))
    assert counts == sorted(counts)
