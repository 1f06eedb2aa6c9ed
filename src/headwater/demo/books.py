"""The expected state of the shop, computed by a plain loop over all events, and the comparison of results with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from headwater.client import Client
from headwater.demo.shop import STREAMS, Known, Value
from headwater.protocol.tables.rows import Row

Entity: TypeAlias = tuple[str, str, str]  # stream, type, key


class Books:
    """Applies events one by one. For each key the highest version counts, and the first event if versions are equal."""

    def __init__(self) -> None:
        self.known: dict[Entity, Known] = {}
        self.bad: list[tuple[str, Any]] = []  # with the path of the stream
        self.events = 0
        self.superseded = 0  # late or repeated: the key already had this version or a higher one

    def note(self, stream: str, message: Any) -> None:
        self.events += 1
        match message:
            case {
                "type": str(kind),
                "key": str(key),
                "headers": {"operation": "insert" | "update" | "delete" as operation},
                "value": {"version": int(version)} as value,
            }:
                self._apply((stream, kind, key), Known(version, None if operation == "delete" else value))
            case _:
                self.bad.append((stream, message))

    def _apply(self, entity: Entity, new: Known) -> None:
        old = self.known.get(entity)
        if old is None or old.version < new.version:
            self.known[entity] = new
        else:
            self.superseded += 1

    def by_type_and_key(self) -> dict[tuple[str, str], Known]:
        """The state from which a shop continues."""
        return {(kind, key): known for (_, kind, key), known in self.known.items()}

    def state(self) -> dict[Entity, Value]:
        return {entity: known.value for entity, known in self.known.items() if known.value is not None}


def read_books(client: Client) -> Books:
    books = Books()
    for path in STREAMS.values():
        for message in client.stream(path).read():
            books.note(path, message)
    return books


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison with the expected state."""

    name: str
    what: str  # the unit that is counted
    count: int
    wrong: int  # missing, superfluous or different

    @property
    def is_right(self) -> bool:
        return self.wrong == 0


def check_state(name: str, state: Mapping[Any, Any], expected: Mapping[Any, Any]) -> Check:
    differing = [key for key in state.keys() | expected.keys() if state.get(key) != expected.get(key)]
    return Check(name=name, what="keys", count=len(state), wrong=len(differing))


def check_quarantine(name: str, quarantined: Iterable[tuple[str, Any]], bad: Iterable[tuple[str, Any]]) -> Check:
    """Compare the quarantine by stream, type, key and value of each event."""
    there, expected = (Counter(_gist(*one) for one in some) for some in (quarantined, bad))
    wrong = (there - expected).total() + (expected - there).total()
    return Check(name=name, what="events", count=there.total(), wrong=wrong)


def _gist(stream: str, message: Any) -> str:
    if isinstance(message, dict):
        message = {name: message.get(name) for name in ("type", "key", "value")}
    return json.dumps([stream, message], sort_keys=True)


def fold_rows(rows: Iterable[Mapping[str, Any]]) -> dict[Entity, Value]:
    """Fold the rows of a materialized table."""
    return {(row["stream"], row["type"], row["key"]): json.loads(row["value"]) for row in rows}


def fold_events(events: Iterable[Any]) -> dict[str, Value]:
    """Fold the events of a published stream, in order. A delete of an unknown key is a KeyError."""
    state: dict[str, Value] = {}
    for event in events:
        if event["headers"]["operation"] == "delete":
            del state[event["key"]]
        else:
            state[event["key"]] = event["value"]
    return state


def fold_table(rows: Iterable[Row]) -> dict[str, Value]:
    """Fold the rows of an STP table, in order."""
    state: dict[str, Value] = {}
    for row in rows:
        if row.action == "-":
            del state[row.key]
        else:
            state[row.key] = json.loads(row.record)
    return state
