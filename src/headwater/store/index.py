"""The index: folded streams in SQLite, states by path and bytes in chunks of whole records.

    meta        the format, how far the journal is folded, the next stream id
    streams     one row a stream: where it is found, when it may expire, its state
    producers   apart from the state, so that a fold writes only those that moved
    chunks      a stream's bytes, with where each record ends and a checksum
    garbage     ids of deleted streams whose chunks are still to be reclaimed

One process writes (the fold), the server reads. A fold is one transaction, so every reader sees the streams as
they were at the end of some segment.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.log.values import StreamState
from headwater.store.journal import UnknownFormatError
from headwater.store.records import boundary_of, gather, stop_of

FORMAT = 1
CHUNK_BYTES = 1024 * 1024
SMALL_CHUNK_BYTES = 64 * 1024

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, deadline_ms INTEGER, state BLOB NOT NULL
);
CREATE INDEX streams_deadline ON streams (deadline_ms) WHERE deadline_ms IS NOT NULL;
CREATE TABLE producers (
    stream_id INTEGER NOT NULL, producer TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY (stream_id, producer)
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, stream_id INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    checksum INTEGER NOT NULL, ends BLOB NOT NULL, data BLOB NOT NULL
);
CREATE UNIQUE INDEX chunks_position ON chunks (stream_id, start);
CREATE TABLE garbage (stream_id INTEGER PRIMARY KEY);
"""

_states = msgspec.msgpack.Decoder(StreamState)


class Chunk(NamedTuple):
    """Whole records of one stream: `ends` are relative to `start`."""

    start: int
    ends: array[int]
    data: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """As the store contract says, within this chunk."""
        first = start - self.start
        stop = stop_of(self.ends, first, end - self.start, bytes_max)
        return self.data if stop - first == len(self.data) else self.data[first:stop]


class Meta(NamedTuple):
    folded_segment: int
    folded_sequence: int
    next_id: int


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """A connection for one thread: the fold's writes, anyone's reads."""
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30)
    connection.execute("PRAGMA mmap_size = 1073741824")
    if write:
        connection.execute("PRAGMA synchronous = FULL")
    return connection


def create(path: Path) -> None:
    """Make an empty index, unless there is one."""
    connection = connect(path, write=True)
    try:
        # The page size and vacuum mode can be chosen only before the first table.
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        install(connection)
    finally:
        connection.close()


def install(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        check_format(connection)
        return
    connection.executescript(f"BEGIN; {_SCHEMA}")
    connection.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
    connection.execute("COMMIT")


def check_format(connection: sqlite3.Connection) -> None:
    [found] = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() or [None]
    if found != FORMAT:
        raise UnknownFormatError(f"the index has format {found}; this version knows {FORMAT}")


class IndexReader:
    """Reads over one connection, used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads of one state of the index, whatever the fold commits meanwhile."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def meta(self) -> Meta:
        found = dict(self._connection.execute("SELECT key, value FROM meta").fetchall())
        return Meta(found.get("folded_segment", 0), found.get("folded_sequence", 0), found.get("next_id", 1))

    def by_path(self, path: str) -> StreamState | None:
        return self._state("SELECT state FROM streams WHERE path = ?", path)

    def by_id(self, stream_id: int) -> StreamState | None:
        return self._state("SELECT state FROM streams WHERE id = ?", stream_id)

    def _state(self, query: str, key: str | int) -> StreamState | None:
        row = self._connection.execute(query, (key,)).fetchone()
        if row is None:
            return None
        state = _states.decode(row[0])
        producers = self._connection.execute(
            "SELECT producer, epoch, seq FROM producers WHERE stream_id = ?", (state.id,)
        )
        state.producers = {producer: (epoch, seq) for producer, epoch, seq in producers}
        return state

    def page(self, prefix: str, after: str, limit: int) -> list[StreamState]:
        """States in path order, without their producers."""
        rows = self._connection.execute(
            "SELECT state FROM streams WHERE path >= ? AND path > ? AND (? IS NULL OR path < ?) ORDER BY path LIMIT ?",
            (prefix, after, *[_past(prefix)] * 2, limit),
        )
        return [_states.decode(state) for (state,) in rows]

    def due(self, now_ms: int, limit: int) -> list[int]:
        rows = self._connection.execute(
            "SELECT id FROM streams WHERE deadline_ms <= ? ORDER BY deadline_ms LIMIT ?", (now_ms, limit)
        )
        return [stream_id for (stream_id,) in rows]

    def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> bytes:
        return gather(self._chunks(stream_id, start, end), start, end, bytes_max)

    def boundary(self, stream_id: int, position: int) -> int:
        row = self._connection.execute(
            "SELECT start, ends FROM chunks WHERE stream_id = ?1 AND start <= ?2 "
            "AND EXISTS (SELECT 1 FROM streams WHERE id = ?1) ORDER BY start DESC LIMIT 1",
            (stream_id, position),
        ).fetchone()
        if row is None:
            raise LookupError(f"stream {stream_id} has no bytes at {position}")
        start, ends = row
        return int(start) + boundary_of(array("I", ends), position - start)

    def _chunks(self, stream_id: int, start: int, end: int) -> Iterator[Chunk]:
        """The chunk that holds `start` and those after it, read one at a time."""
        rows = self._connection.execute(
            "SELECT start, ends, data FROM chunks WHERE stream_id = ?1 AND start < ?3 AND start >= "
            "(SELECT max(start) FROM chunks WHERE stream_id = ?1 AND start <= ?2) "
            "AND EXISTS (SELECT 1 FROM streams WHERE id = ?1) ORDER BY start",
            (stream_id, start, end),
        )
        try:
            for first, ends, data in rows:
                yield Chunk(first, array("I", ends), data)
        finally:
            rows.close()


def _past(prefix: str) -> str | None:
    """The least text that sorts after everything with a prefix; None where there is no such bound."""
    for position in range(len(prefix) - 1, -1, -1):
        if (following := ord(prefix[position]) + 1) < 0x110000:
            following = 0xE000 if 0xD800 <= following < 0xE000 else following
            return prefix[:position] + chr(following)
    return None


class IndexWriter:
    """What a fold writes, within its one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self, meta: Meta) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(meta._asdict().items()))
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def state(self, stream_id: int) -> StreamState | None:
        """A state without its producers: those a fold moves are the only ones it writes."""
        row = self._connection.execute("SELECT state FROM streams WHERE id = ?", (stream_id,)).fetchone()
        return None if row is None else _states.decode(row[0])

    def put_states(self, states: Iterable[StreamState]) -> None:
        streams, producers = [], []
        for state in states:
            producers += [(state.id, name, epoch, seq) for name, (epoch, seq) in state.producers.items()]
            state.producers = {}
            deadline_ms = None if state.soft_deleted else state.deadline_ms
            streams.append((state.id, state.path, deadline_ms, msgspec.msgpack.encode(state)))
        self._connection.executemany("INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?)", streams)
        self._connection.executemany("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)", producers)

    def delete(self, stream_ids: Iterable[int]) -> None:
        rows = [(stream_id,) for stream_id in stream_ids]
        self._connection.executemany("DELETE FROM streams WHERE id = ?", rows)
        self._connection.executemany("INSERT OR IGNORE INTO garbage VALUES (?)", rows)

    def put_bytes(self, stream_id: int, start: int, ends: array[int], data: bytes) -> None:
        """Add records to the end of a stream. Small chunks are joined as a binary counter carries: a stream that
        trickles in is rewritten a logarithmic number of times and is never in many pieces."""
        while len(data) < SMALL_CHUNK_BYTES:
            last = self._connection.execute(
                "SELECT id, start, size FROM chunks WHERE stream_id = ? ORDER BY start DESC LIMIT 1", (stream_id,)
            ).fetchone()
            if last is None or last[2] > len(data) or last[2] + len(data) > CHUNK_BYTES:
                break
            before_ends, before = self._connection.execute(
                "SELECT ends, data FROM chunks WHERE id = ?", (last[0],)
            ).fetchone()
            joined = array("I", before_ends)
            joined.extend([len(before) + end for end in ends])
            start, ends, data = last[1], joined, before + data
            self._connection.execute("DELETE FROM chunks WHERE id = ?", (last[0],))
        self._connection.executemany(
            "INSERT INTO chunks (stream_id, start, size, checksum, ends, data) VALUES (?, ?, ?, ?, ?, ?)",
            _cut(stream_id, start, ends, data),
        )

    def reclaim(self, chunks_max: int) -> bool:
        """Drop some of what deleted streams left behind; whether there is more."""
        row = self._connection.execute("SELECT stream_id FROM garbage LIMIT 1").fetchone()
        if row is None:
            return False
        self._connection.execute("BEGIN IMMEDIATE")
        removed = self._connection.execute(
            "DELETE FROM chunks WHERE id IN (SELECT id FROM chunks WHERE stream_id = ? LIMIT ?)", (row[0], chunks_max)
        ).rowcount
        if removed < chunks_max:
            self._connection.execute("DELETE FROM producers WHERE stream_id = ?", row)
            self._connection.execute("DELETE FROM garbage WHERE stream_id = ?", row)
        self._connection.execute("COMMIT")
        return True

    def shrink(self, pages_max: int) -> None:
        """Give free pages back to the file system."""
        # As a script: it frees one page a step, and `execute` takes a single step of what returns no columns.
        self._connection.executescript(f"PRAGMA incremental_vacuum({pages_max:d})")

    def checkpoint(self) -> None:
        """Move committed pages from the write-ahead log into the database, as far as no reader is in the way."""
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _cut(stream_id: int, start: int, ends: array[int], data: bytes) -> Iterator[tuple[object, ...]]:
    """Rows of chunks of about CHUNK_BYTES, each of whole records."""
    first = index = 0
    while index < len(ends):
        last = max(index, bisect_right(ends, first + CHUNK_BYTES, lo=index) - 1)
        stop = ends[last]
        part = data[first:stop]
        own = array("I", [end - first for end in ends[index : last + 1]])
        yield stream_id, start + first, len(part), zlib.crc32(part), own.tobytes(), part
        first, index = stop, last + 1
