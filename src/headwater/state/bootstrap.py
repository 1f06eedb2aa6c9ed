"""The initial state of a database: from its checkpoint file, from a snapshot stream, or by reading the whole stream.

The convention for snapshots: the state of the stream at `path` at an offset is the stream `{path}.snapshots/{offset}`.
It has an insert for every entity of every type, with the values as they are in the stream, between a snapshot-start and
a snapshot-end. A snapshot is valid once it is closed, and never changes after that. Readers use the newest closed one.
If it has more than one snapshot-start, only the events after the last one count.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from headwater.client.flows import StreamInfo
from headwater.positions import Position
from headwater.protocol.state.events import (
    BadEvent,
    ChangeEvent,
    ChangeHeaders,
    ControlEvent,
    StateEvent,
    control_event,
)
from headwater.state.definitions import StateDefinition

SNAPSHOTS = ".snapshots/"
MAGIC = b"headwater checkpoint 1\n"


class Start(msgspec.Struct, frozen=True):
    """A state, and the position to continue from."""

    position: Position
    texts: dict[str, dict[str, bytes]] = {}  # for each collection the JSON of its rows, as in the stream
    txids: list[str] = []
    unfit: dict[str, list[str]] = {}  # for each collection the keys whose newest value does not match the schema


# Snapshots


def snapshot_path(path: str, offset: str) -> str:
    return f"{path}{SNAPSHOTS}{offset}"


def newest_first(infos: Iterable[StreamInfo], path: str) -> list[tuple[str, str]]:
    """Path and offset of every closed snapshot of a stream. Offsets sort as text."""
    prefix = f"{path}{SNAPSHOTS}"
    snapshots = [(info.path.removeprefix(prefix), info.path) for info in infos if info.closed]
    return [(name, offset) for offset, name in sorted(snapshots, reverse=True) if "/" not in offset]


class RawState:
    """The state of a stream for all types: the JSON of each value, as in the stream."""

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
        """The events of a snapshot of this state."""
        yield control_event("snapshot-start", offset)
        for name, table in self.texts.items():
            for key, text in table.items():
                headers = ChangeHeaders(operation="insert")
                yield ChangeEvent(type=name, key=key, value=msgspec.Raw(text), headers=headers)
        yield control_event("snapshot-end", offset)


class SnapshotFold:
    """The content of a snapshot stream."""

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
        """The rows of each collection; None if the snapshot is incomplete or a value does not match its schema.

        In that case the state has the previous valid value, if there is one, and only the stream itself has it.
        """
        texts = {name: self.state.texts.get(collection.type, {}) for name, collection in definition.items()}
        return texts if self.is_whole and fits(definition, texts) else None


def fits(definition: StateDefinition, texts: Mapping[str, Mapping[str, bytes]]) -> bool:
    """Whether every value matches the schema of its collection."""
    try:
        for name, table in texts.items():
            for key, text in table.items():
                definition[name].row(key, text)
    except Exception:  # noqa: BLE001  # a schema may raise anything
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
    end: str = ""
    unfit: dict[str, list[str]] = {}


def encode_checkpoint(url: str, definition: StateDefinition, start: Start) -> bytes:
    here = start.position
    saved = _Saved(
        url, here.offset, here.skip, _fingerprints(definition), start.texts, start.txids, here.end, start.unfit
    )
    body = msgspec.msgpack.encode(saved)
    return MAGIC + zlib.crc32(body).to_bytes(4, "big") + body


def decode_checkpoint(data: bytes, url: str, definition: StateDefinition) -> Start:
    """Decode a checkpoint. ValueError if it is damaged, of another stream, or of other types and schemas.

    With another schema, other events are valid, so that the whole stream has to be read again.
    """
    body = data[len(MAGIC) + 4 :]
    if not data.startswith(MAGIC):
        raise ValueError("it is not a checkpoint of this version")
    if zlib.crc32(body) != int.from_bytes(data[len(MAGIC) :][:4], "big"):
        raise ValueError("it is damaged")
    saved = msgspec.msgpack.decode(body, type=_Saved)
    if saved.url != url:
        raise ValueError(f"it is of {saved.url}")
    if saved.collections != _fingerprints(definition):
        raise ValueError("it has other collections or schemas")
    if not fits(definition, saved.texts):
        raise ValueError("its values do not fit their schemas")
    return Start(Position(saved.offset, saved.skip, saved.end), saved.texts, saved.txids, saved.unfit)


def _fingerprints(definition: StateDefinition) -> dict[str, str]:
    return {name: collection.fingerprint for name, collection in definition.items()}
