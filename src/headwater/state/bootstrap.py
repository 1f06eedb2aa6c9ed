"""How a database gets its first state: from a checkpoint of its own, from a snapshot stream, or by reading everything.

The convention for snapshots: the state of the stream at `path` at an offset is the stream `{path}.snapshots/{offset}`.
Its events are inserts between a snapshot-start and a snapshot-end. It counts once it is closed, and is never changed
after that; the newest closed one counts. If it was begun more than once, what follows the last snapshot-start counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from headwater.client.codecs import encode_json
from headwater.client.flows import StreamInfo
from headwater.state.definitions import StateDefinition
from headwater.state.events import BadEvent, ChangeEvent, ControlEvent, StateEvent, control_event
from headwater.state.materialized import MaterializedState

SNAPSHOTS = ".snapshots/"
MAGIC = b"headwater checkpoint 1\n"


class Start(msgspec.Struct, frozen=True):
    """A state, and where to read on from it."""

    offset: str
    skip: int = 0
    rows: dict[str, dict[str, Any]] = {}
    txids: list[str] = []


# Snapshots


def snapshot_path(path: str, offset: str) -> str:
    return f"{path}{SNAPSHOTS}{offset}"


def newest_first(infos: Iterable[StreamInfo], path: str) -> list[tuple[str, str]]:
    """Path and offset of every closed snapshot of a stream; offsets are ordered as text."""
    prefix = f"{path}{SNAPSHOTS}"
    found = [(info.path.removeprefix(prefix), info.path) for info in infos if info.closed]
    return [(name, offset) for offset, name in sorted(found, reverse=True) if "/" not in offset]


def snapshot_events(
    definition: StateDefinition, rows: Mapping[str, Mapping[str, Any]], offset: str
) -> Iterator[StateEvent]:
    yield control_event("snapshot-start", offset)
    for name, table in rows.items():
        for key, value in table.items():
            yield definition[name].insert(value, key=key)
    yield control_event("snapshot-end", offset)


class SnapshotFold:
    """The rows of a snapshot stream; None if it is not a whole one."""

    def __init__(self, definition: StateDefinition) -> None:
        self._definition = definition
        self._state = MaterializedState()
        self._is_open = False
        self._is_whole = False

    def apply(self, events: Iterable[ChangeEvent[Any] | ControlEvent | BadEvent]) -> None:
        for event in events:
            if isinstance(event, ControlEvent):
                self._control(event)
            elif isinstance(event, ChangeEvent) and self._is_open:
                self._state.apply(event)
            else:
                self._is_open = self._is_whole = False

    def _control(self, event: ControlEvent) -> None:
        control = event.headers.control
        if control == "snapshot-start":
            self._state.clear()
            self._is_open, self._is_whole = True, False
        elif control == "snapshot-end":
            self._is_whole = self._is_open
            self._is_open = False

    def rows(self) -> dict[str, dict[str, Any]] | None:
        if not self._is_whole:
            return None
        rows: dict[str, dict[str, Any]] = {}
        for name, collection in self._definition.items():
            try:
                found = self._state.get_type(collection.type).items()
                rows[name] = {key: collection.schema.decode(value) for key, value in found}
            except ValueError:
                return None
        return rows


# Checkpoints


class _Saved(msgspec.Struct):
    url: str
    offset: str
    skip: int
    rows: dict[str, dict[str, bytes]]
    txids: list[str]


def encode_checkpoint(url: str, start: Start) -> bytes:
    rows = {name: {key: encode_json(value) for key, value in table.items()} for name, table in start.rows.items()}
    body = msgspec.msgpack.encode(_Saved(url, start.offset, start.skip, rows, start.txids))
    return MAGIC + zlib.crc32(body).to_bytes(4, "big") + body


def decode_checkpoint(data: bytes, url: str, definition: StateDefinition) -> Start:
    """What was saved; ValueError if it is damaged, of another stream, or does not fit the schemas any more."""
    body = data[len(MAGIC) + 4 :]
    if not data.startswith(MAGIC):
        raise ValueError("it is no checkpoint of this version")
    if zlib.crc32(body) != int.from_bytes(data[len(MAGIC) :][:4], "big"):
        raise ValueError("it is damaged")
    saved = msgspec.msgpack.decode(body, type=_Saved)
    if saved.url != url:
        raise ValueError(f"it is of {saved.url}")
    if set(saved.rows) != set(definition):
        raise ValueError("it has other collections")
    rows = {
        name: {key: definition[name].schema.decode(text) for key, text in table.items()}
        for name, table in saved.rows.items()
    }
    return Start(saved.offset, saved.skip, rows, saved.txids)
