"""What a snapshot contains, computed from the stored bytes of a stream in pieces.

| stream       | content                                                                                             |
|--------------|-----------------------------------------------------------------------------------------------------|
| state stream | messages that are no state events, and controls that the protocol does not define, word for word;   |
|              | `snapshot-start`, an `insert` for each live entity in the order of its first insertion, with the    |
|              | value and the other headers of its last change; `snapshot-end`                                      |
| table        | the last row of each key, with its SeqNo and timestamp, except deletions before a given time; and   |
|              | the last row, so that the table still ends with it                                                  |

The content is in a private temporary database of SQLite: in memory as long as it is small, in a file that has no name
otherwise. So memory is bounded, and nothing is left behind however the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec import UNSET, Raw

from headwater.protocol.state.events import (
    CONTROLS,
    DELETE,
    RESET,
    ChangeEvent,
    ControlEvent,
    EventDecoder,
    split_messages,
)


class ContentSize(msgspec.Struct, frozen=True):
    """The size of a snapshot, and of a table the last SeqNo after which it has all deletions."""

    size_bytes: int
    complete_since: int = 0


class SnapshotContent(Protocol):
    def add(self, data: bytes) -> None:
        """Continue with a piece of the stream: whole records."""

    def finish(self) -> ContentSize:
        """There are no more pieces."""

    def records(self, size_bytes: int) -> Iterator[bytes]:
        """The bodies of the appends that write the snapshot, each of about this size."""


def open_database(memory_bytes: int) -> sqlite3.Connection:
    database = sqlite3.connect("", isolation_level=None)
    database.execute(f"PRAGMA cache_size = -{memory_bytes // 1024}")
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    return database


# State streams


class _Headers(msgspec.Struct):
    headers: dict[str, Raw]


_encode = msgspec.json.encode
_decoder = EventDecoder(Raw)
_headers = msgspec.json.Decoder(_Headers)


class StateContent:
    """The content of a state stream. `offset` is the one at which reading continues after the snapshot."""

    def __init__(self, database: sqlite3.Connection, offset: str) -> None:
        self._database = database
        self._markers = [
            b'{"headers":{"control":"%b","offset":%b}}' % (control, _encode(offset))
            for control in (b"snapshot-start", b"snapshot-end")
        ]
        database.execute("CREATE TABLE kept (number INTEGER PRIMARY KEY, message BLOB)")
        database.execute(
            "CREATE TABLE live "
            "(number INTEGER PRIMARY KEY AUTOINCREMENT, type TEXT, key TEXT, event BLOB, UNIQUE (type, key))"
        )

    def add(self, data: bytes) -> None:
        if not data:
            return
        text = b"[%b]" % data[:-1]  # stored with a comma after each message
        messages = _Messages(text)
        changed: dict[tuple[str, str], ChangeEvent[Raw] | None] = {}  # None: deleted
        numbers: dict[tuple[str, str], int] = {}
        kept: list[bytes] = []
        removed: set[tuple[str, str]] = set()  # that were deleted in this piece, whatever came after that
        for number, event in enumerate(_decoder.decode_array(text)):
            if type(event) is ChangeEvent:
                entity = (event.type, event.key)
                if event.headers.operation == DELETE:
                    changed.pop(entity, None)  # a later insertion comes after the others
                    removed.add(entity)
                else:
                    changed[entity], numbers[entity] = event, number
            elif not isinstance(event, ControlEvent) or event.headers.control not in CONTROLS:
                kept.append(messages[number])
            elif event.headers.control == RESET:
                self._database.execute("DELETE FROM live")
                changed, removed = {}, set()
        self._database.execute("BEGIN")
        self._database.executemany("DELETE FROM live WHERE type = ? AND key = ?", removed)
        rows = ((*entity, _insertion(event, messages, numbers[entity])) for entity, event in changed.items() if event)
        self._database.executemany(
            "INSERT INTO live (type, key, event) VALUES (?, ?, ?) "
            "ON CONFLICT (type, key) DO UPDATE SET event = excluded.event",
            rows,
        )
        self._database.executemany("INSERT INTO kept (message) VALUES (?)", [(message,) for message in kept])
        self._database.execute("COMMIT")

    def finish(self) -> ContentSize:
        size_bytes = sum(len(marker) + 1 for marker in self._markers)
        for query in ("SELECT sum(length(message) + 1) FROM kept", "SELECT sum(length(event) + 1) FROM live"):
            size_bytes += self._database.execute(query).fetchone()[0] or 0
        return ContentSize(size_bytes)

    def _messages(self) -> Iterator[bytes]:
        for (message,) in self._database.execute("SELECT message FROM kept ORDER BY number"):
            yield message
        yield self._markers[0]
        for (event,) in self._database.execute("SELECT event FROM live ORDER BY number"):
            yield event
        yield self._markers[1]

    def records(self, size_bytes: int) -> Iterator[bytes]:
        for group in _groups(self._messages(), size_bytes):
            yield b"[%b]" % b",".join(group)


class _Messages:
    """The messages of a piece as text, which few pieces need."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._split: list[Raw] | list[bytes] | None = None

    def __getitem__(self, number: int) -> bytes:
        if self._split is None:
            self._split = split_messages(self._text)
        return bytes(self._split[number])


def _insertion(event: ChangeEvent[Raw], messages: _Messages, number: int) -> bytes:
    """An insert with the value and the headers of a change, which stay as they are written."""
    headers = b'"operation":"insert"'
    named = event.headers
    if named.txid is not UNSET or named.timestamp is not UNSET or named.custom:
        others = _headers.decode(messages[number]).headers
        del others["operation"]
        headers += b"".join([b",%b:%b" % (_encode(name), bytes(value)) for name, value in others.items()])
    value = b"null" if event.value is UNSET else bytes(event.value)
    return b'{"type":%b,"key":%b,"value":%b,"headers":{%b}}' % (_encode(event.type), _encode(event.key), value, headers)


# Tables


class TableContent:
    """The content of a table. Deletions before a time are left out. `complete_since` is the last row after which the
    pieces have all deletions."""

    def __init__(self, database: sqlite3.Connection, deleted_before_ms: int, complete_since: int) -> None:
        self._database = database
        self._deleted_before = datetime.fromtimestamp(deleted_before_ms / 1000, UTC)
        self._complete_since = complete_since
        database.execute("CREATE TABLE rows (seqno INTEGER PRIMARY KEY, key BLOB UNIQUE, row BLOB, deletes INTEGER)")

    def add(self, data: bytes) -> None:
        last: dict[bytes, tuple[int, bytes, bytes, bool]] = {}
        for line in data[:-1].split(b"\n"):
            seqno, _, action, key, _ = line.split(b"\t", 4)
            last[key] = (int(seqno), key, line + b"\n", action == b"-")
        self._database.execute("BEGIN")
        self._database.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", last.values())
        self._database.execute("COMMIT")

    def finish(self) -> ContentSize:
        database = self._database
        (last_seqno,) = database.execute("SELECT max(seqno) FROM rows").fetchone()
        deletions = database.execute("SELECT seqno, row FROM rows WHERE deletes AND seqno < ?", (last_seqno or 0,))
        old = [seqno for seqno, row in deletions if self._is_old(row)]
        database.executemany("DELETE FROM rows WHERE seqno = ?", [(seqno,) for seqno in old])
        (size_bytes,) = database.execute("SELECT sum(length(row)) FROM rows").fetchone()
        return ContentSize(size_bytes or 0, max([self._complete_since, *old]))

    def _is_old(self, row: bytes) -> bool:
        """Whether a deletion can be left out. The timestamps of a mirror come from elsewhere."""
        try:
            at = datetime.fromisoformat(row.split(b"\t", 2)[1].decode())
        except ValueError:
            return False
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) < self._deleted_before

    def records(self, size_bytes: int) -> Iterator[bytes]:
        rows = (row for (row,) in self._database.execute("SELECT row FROM rows ORDER BY seqno"))
        for group in _groups(rows, size_bytes):
            yield b"".join(group)


def _groups(items: Iterable[bytes], size_bytes: int) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for item in items:
        if group and size + len(item) > size_bytes:
            yield group
            group, size = [], 0
        group.append(item)
        size += len(item) + 1
    if group:
        yield group
