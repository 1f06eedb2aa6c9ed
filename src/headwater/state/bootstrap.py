"""How a database gets its first state: from a checkpoint of its own, from a snapshot stream, or by reading everything.

The convention for snapshots: the state of the stream at `path` at an offset is the stream `{path}.snapshots/{offset}`.
Its events are inserts of every entity of every type, with the values as they are in the stream, between a
snapshot-start and a snapshot-end. It counts once it is closed, and is never changed
after that; the newest closed one counts. If it was begun more than once, what follows the last snapshot-start counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from headwater.client.flows import StreamInfo
from headwater.positions import Position
from headwater.state.definitions import StateDefinition
from headwater.state.events import BadEvent, ChangeEvent, ChangeHeaders, ControlEvent, StateEvent, control_event

SNAPSHOTS = ".snapshots/"
MAGIC = b"headwater checkpoint 1\n"


class Start(msgspec.Struct, frozen=True):
    """A state, and where to read on from it."""

    position: Position
    texts: dict[str, dict[str, bytes]] = {}  # for each collection the JSON of its rows, as it was in the stream
    txids: list[str] = []


# Snapshots


def snapshot_path(path: str, offset: str) -> str:
    return f"{path}{SNAPSHOTS}{offset}"


def newest_first(infos: Iterable[StreamInfo], path: str) -> list[tuple[str, str]]:
    """Path and offset of every closed snapshot of a stream; offsets are ordered as text."""
    prefix = f"{path}{SNAPSHOTS}"
    found = [(info.path.removeprefix(prefix), info.path) for info in infos if info.closed]
    return [(name, offset) for offset, name in sorted(found, reverse=True) if "/" not in offset]


class RawState:
    """The state of a stream whatever its types are: the JSON of each value, as it was in the stream."""

    def __init__(self) -> None:
        self.texts: dict[str, dict[str, bytes]] = {}

    def apply(self, events: Iterable[ChangeEvent[Any] | ControlEvent | BadEvent]) -> None:
        for event in events:
            if isinstance(event, ChangeEvent):
                self.put(event)
            elif isinstance(event, ControlEvent) and event.headers.control == "reset":
                self.texts.clear()

    def put(self, event: ChangeEvent[Any]) -> None:
        table = self.texts.setdefault(event.type, {})
        if event.headers.operation == "delete":
            table.pop(event.key, None)
        elif event.value is not UNSET:
            table[event.key] = bytes(event.value)

    def events(self, offset: str) -> Iterator[StateEvent]:
        """The events of a snapshot of it."""
        yield control_event("snapshot-start", offset)
        for name, table in self.texts.items():
            for key, text in table.items():
                headers = ChangeHeaders(operation="insert")
                yield ChangeEvent(type=name, key=key, value=msgspec.Raw(text), headers=headers)
        yield control_event("snapshot-end", offset)


class SnapshotFold:
    """What a snapshot stream holds."""

    def __init__(self) -> None:
        self.state = RawState()
        self._is_open = False
        self.is_whole = False

    def apply(self, events: Iterable[ChangeEvent[Any] | ControlEvent | BadEvent]) -> None:
        for event in events:
            if isinstance(event, ControlEvent):
                self._control(event)
            elif isinstance(event, ChangeEvent) and self._is_open:
                self.state.put(event)
            else:
                self._is_open = self.is_whole = False

    def _control(self, event: ControlEvent) -> None:
        control = event.headers.control
        if control == "snapshot-start":
            self.state.texts.clear()
            self._is_open, self.is_whole = True, False
        elif control == "snapshot-end":
            self.is_whole = self._is_open
            self._is_open = False

    def texts(self, definition: StateDefinition) -> dict[str, dict[str, bytes]] | None:
        """The rows of each collection; None if the snapshot is not whole, or a value does not fit its schema.

        Then the value before it counts, if there was a good one, which only the stream itself can tell.
        """
        found = {name: self.state.texts.get(made.type, {}) for name, made in definition.items()}
        return found if self.is_whole and fits(definition, found) else None


def fits(definition: StateDefinition, texts: Mapping[str, Mapping[str, bytes]]) -> bool:
    """Whether every value is what its collection's schema says."""
    try:
        for name, table in texts.items():
            for key, text in table.items():
                definition[name].row(key, text)
    except Exception:  # noqa: BLE001  # whatever a schema raises
        return False
    return True


# Checkpoints


class _Saved(msgspec.Struct):
    url: str
    offset: str
    skip: int
    collections: dict[str, str]  # their fingerprints
    texts: dict[str, dict[str, bytes]]
    txids: list[str]


def encode_checkpoint(url: str, definition: StateDefinition, start: Start) -> bytes:
    here = start.position
    saved = _Saved(url, here.offset, here.skip, _fingerprints(definition), start.texts, start.txids)
    body = msgspec.msgpack.encode(saved)
    return MAGIC + zlib.crc32(body).to_bytes(4, "big") + body


def decode_checkpoint(data: bytes, url: str, definition: StateDefinition) -> Start:
    """What was saved; ValueError if it is damaged, of another stream, or of other types and schemas.

    By another schema other events would have been good, which only the stream itself can tell.
    """
    body = data[len(MAGIC) + 4 :]
    if not data.startswith(MAGIC):
        raise ValueError("it is no checkpoint of this version")
    if zlib.crc32(body) != int.from_bytes(data[len(MAGIC) :][:4], "big"):
        raise ValueError("it is damaged")
    saved = msgspec.msgpack.decode(body, type=_Saved)
    if saved.url != url:
        raise ValueError(f"it is of {saved.url}")
    if saved.collections != _fingerprints(definition):
        raise ValueError("it is of other collections or schemas")
    if not fits(definition, saved.texts):
        raise ValueError("its values do not fit their schemas")
    return Start(Position(saved.offset, saved.skip), saved.texts, saved.txids)


def _fingerprints(definition: StateDefinition) -> dict[str, str]:
    return {name: collection.fingerprint for name, collection in definition.items()}
