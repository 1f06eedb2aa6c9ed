"""The index: folded streams and documents in SQLite.

    meta        the format, how far the journal is folded, the next stream id, the number of streams, the timeline
    streams     one row per stream: its path, deadline and state
    producers   separate from the state, so that a fold writes only those that changed
    chunks      the bytes of streams (`chunks.py`)
    untimed     the latest time that records folded by format 1 can have
    documents   small named values
    garbage     ids of deleted streams whose chunks are still to be reclaimed

The fold worker writes, the server reads. A fold is one transaction, so a reader sees the streams as of the end of a
segment.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.log.producers import ProducerState
from headwater.log.state import Document, StreamState
from headwater.store.embedded.chunks import COLUMNS, Chunk, ChunkRow, checksum_of, decode_chunk, outline
from headwater.store.embedded.disk import create_private
from headwater.store.embedded.journal import UnknownFormatError
from headwater.store.pieces import Piece, RecordEnd, boundary_in, list_runs, position_at, read_runs

FORMAT = 2

TABLES_OF_FORMAT_2 = """
CREATE TABLE untimed (stream_id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL);
CREATE TABLE expired_producers (
    stream_id INTEGER NOT NULL, hash INTEGER NOT NULL, epoch INTEGER NOT NULL, PRIMARY KEY (stream_id, hash)
) WITHOUT ROWID;
CREATE INDEX producers_idle ON producers (at_ms);
CREATE TABLE documents (
    key TEXT PRIMARY KEY, version INTEGER NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL
) WITHOUT ROWID;
"""
_SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, deadline_ms INTEGER, state BLOB NOT NULL
);
CREATE INDEX streams_deadline ON streams (deadline_ms) WHERE deadline_ms IS NOT NULL;
CREATE TABLE producers (
    stream_id INTEGER NOT NULL, producer TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (stream_id, producer)
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, stream_id INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    checksum INTEGER NOT NULL, at_ms INTEGER, ends BLOB NOT NULL, times BLOB, data BLOB NOT NULL
);
CREATE UNIQUE INDEX chunks_position ON chunks (stream_id, start);
CREATE TABLE garbage (stream_id INTEGER PRIMARY KEY);
{TABLES_OF_FORMAT_2}
"""

T = TypeVar("T")

_states = msgspec.msgpack.Decoder(StreamState)


class Meta(NamedTuple):
    folded_segment: int
    folded_sequence: int
    next_id: int
    streams: int  # in the index
    timeline: int = 0  # the id of the current timeline; 0 if the directory was never restored. Not changed by a fold


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """Open a connection, for writes of the fold or for reads, to be used by one thread at a time."""
    uri = f"{path.absolute().as_uri()}?mode={'rw' if write else 'ro'}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=limits.INDEX_LOCK_WAIT_S
    )
    if write:
        connection.execute("PRAGMA synchronous = FULL")
    return connection


def create(path: Path) -> None:
    """Create an empty index."""
    create_private(path)
    connection = connect(path, write=True)
    try:
        # The page size and vacuum mode can only be set before the first table is created.
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        install(connection)
    finally:
        connection.close()


def install(connection: sqlite3.Connection) -> None:
    """Create the tables of an empty index."""
    connection.executescript(f"BEGIN; {_SCHEMA}")
    connection.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
    connection.execute("COMMIT")


def format_of(connection: sqlite3.Connection) -> int:
    [found] = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() or [0]
    return int(found)


def check_format(connection: sqlite3.Connection) -> None:
    found = format_of(connection)
    if found != FORMAT:
        raise UnknownFormatError(f"the index has format {found}; this version supports {FORMAT}")


class IndexReader:
    """Reads over one connection, used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """A read transaction, so that several reads see the same state of the index."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def meta(self) -> Meta:
        found = dict(self._connection.execute("SELECT key, value FROM meta").fetchall())
        folded = found.get("folded_segment", 0)
        streams = found.get("streams", 0)
        if found.get("streams_counted_at", 0) != folded:  # the last fold was done by a version that does not count them
            [streams] = self._connection.execute("SELECT COUNT(*) FROM streams").fetchone()
        return Meta(folded, found.get("folded_sequence", 0), found.get("next_id", 1), streams, found.get("timeline", 0))

    # States

    def by_path(self, path: str) -> StreamState | None:
        return self._state("SELECT state FROM streams WHERE path = ?", path)

    def by_id(self, stream_id: int) -> StreamState | None:
        return self._state("SELECT state FROM streams WHERE id = ?", stream_id)

    def _state(self, query: str, key: str | int) -> StreamState | None:
        row = self._connection.execute(query, (key,)).fetchone()
        if row is None:
            return None
        state = _states.decode(row[0])
        rows = self._connection.execute(
            "SELECT producer, epoch, seq, at_ms FROM producers WHERE stream_id = ?", (state.id,)
        )
        state.producers = {producer: ProducerState(*known) for producer, *known in rows}
        expired = self._connection.execute("SELECT hash, epoch FROM expired_producers WHERE stream_id = ?", (state.id,))
        state.expired_producers = dict(expired.fetchall())
        return state

    def states(self) -> Iterator[StreamState]:
        """All states in order of ids, without producers."""
        for (state,) in self._connection.execute("SELECT state FROM streams ORDER BY id"):
            yield _states.decode(state)

    def page(self, prefix: str, after: str, limit: int) -> list[StreamState]:
        """States in path order, without producers."""
        rows = self._connection.execute(
            "SELECT state FROM streams WHERE path >= ? AND path > ? AND (? IS NULL OR path < ?) ORDER BY path LIMIT ?",
            (prefix, after, *[_past(prefix)] * 2, limit),
        )
        return [_states.decode(state) for (state,) in rows]

    def due(self, after: tuple[int, int], now_ms: int, limit: int) -> list[tuple[int, int]]:
        """Pairs of a deadline that has passed and a stream id, in order, after `after`."""
        rows = self._connection.execute(
            "SELECT deadline_ms, id FROM streams WHERE deadline_ms <= ? AND (deadline_ms, id) > (?, ?) "
            "ORDER BY deadline_ms, id LIMIT ?",
            (now_ms, *after, limit),
        )
        return rows.fetchall()

    # Bytes

    def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        bytes_max = min(bytes_max, limits.CHUNK_BYTES)  # do not join large chunks, because this copies them
        with self.snapshot():  # the fold may commit between the reads of a row and its blob
            piece = read_runs(self._chunks(stream_id, start, end, bytes_max), start, end, bytes_max)
        if not piece.ranges:
            raise LookupError(f"stream {stream_id} has no bytes at {start}")
        return piece

    def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        return list_runs(self._outlines(stream_id, start, end), start, end, limit)

    def boundary(self, stream_id: int, position: int) -> int:
        return boundary_in(self._outline(stream_id, position), position)

    def position_at(self, stream_id: int, at_ms: int) -> int | None:
        """Binary search for the first chunk that ends at or after the time."""
        row = self._connection.execute(
            "SELECT min(start), max(start) FROM chunks WHERE stream_id = ?", (stream_id,)
        ).fetchone()
        if row[0] is None:
            return None
        low, high = row
        while low < high:
            middle = self._outline(stream_id, (low + high) // 2)
            if middle.time(len(middle.ends) - 1) < at_ms:
                low = middle.start + middle.ends[-1]
            else:
                high = middle.start
        return position_at(self._outline(stream_id, low), at_ms)

    def _outline(self, stream_id: int, position: int) -> Chunk:
        """The chunk that contains a position, without its data."""
        for chunk in self._outlines(stream_id, position, position + 1):
            return chunk
        raise LookupError(f"stream {stream_id} has no bytes at {position}")

    def _outlines(self, stream_id: int, start: int, end: int) -> Iterator[Chunk]:
        for row, _ in self._rows(stream_id, start, end, end - start, "x''"):
            yield outline(row, _untimed_ms(self._connection, row))

    def _chunks(self, stream_id: int, start: int, end: int, bytes_max: int) -> Iterator[Chunk]:
        """Read chunks. Large data is read as a blob, which avoids one copy."""
        data = f"CASE WHEN size <= {limits.BLOB_BYTES_MIN} THEN data END"
        for row, key in self._rows(stream_id, start, end, bytes_max, data):
            if row.size > limits.BLOB_BYTES_MIN:
                with self._connection.blobopen("chunks", "data", key, readonly=True) as blob:
                    whole = row._replace(data=blob.read())
            else:
                whole = row
            yield decode_chunk(whole, _untimed_ms(self._connection, row))

    def _rows(self, stream_id: int, start: int, end: int, bytes_max: int, data: str) -> Iterator[tuple[ChunkRow, int]]:
        """The rows and keys of the chunk that contains `start` and of the chunks after it that fit as a whole.

        A chunk that fits only in part is not included, because it would have to be read again for the rest.
        """
        columns = COLUMNS.replace("data", data)
        rows = self._connection.execute(
            f"SELECT id, {columns} FROM chunks WHERE stream_id = ?1 AND start < ?3 AND start >= "  # noqa: S608
            "(SELECT max(start) FROM chunks WHERE stream_id = ?1 AND start <= ?2) "
            "AND (start <= ?2 OR start + size <= ?2 + ?4) "
            "AND EXISTS (SELECT 1 FROM streams WHERE id = ?1) ORDER BY start",
            (stream_id, start, end, bytes_max),
        )
        try:
            for key, *row in rows:
                yield ChunkRow(*row), key
        finally:
            rows.close()

    # Documents

    def document(self, key: str) -> Document | None:
        row = self._connection.execute(
            "SELECT key, data, version, checksum FROM documents WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else decode_document(*row)

    def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        """Documents in key order."""
        rows = self._connection.execute(
            "SELECT key, data, version, checksum FROM documents "
            "WHERE key >= ? AND key > ? AND (? IS NULL OR key < ?) ORDER BY key LIMIT ?",
            (prefix, after, *[_past(prefix)] * 2, limit),
        )
        return [decode_document(*row) for row in rows]


def untimed_ms(connection: sqlite3.Connection, stream_id: int) -> int:
    """The time of records that were folded in format 1."""
    row = connection.execute("SELECT at_ms FROM untimed WHERE stream_id = ?", (stream_id,)).fetchone()
    return 0 if row is None else int(row[0])


def _untimed_ms(connection: sqlite3.Connection, row: ChunkRow) -> int:
    return untimed_ms(connection, row.stream_id) if row.at_ms is None else 0


def decode_document(key: str, data: bytes, version: int, checksum: int) -> Document:
    document = Document(key, data, version)
    if document_checksum(document) != checksum:
        raise DamagedDataError(f"the document {key!r} is damaged")
    return document


def document_checksum(document: Document) -> int:
    return checksum_of(document.key.encode(), document.version.to_bytes(8, "little"), document.data)


def _past(prefix: str) -> str | None:
    """The smallest text that sorts after all texts with a prefix; None if there is none."""
    for position in range(len(prefix) - 1, -1, -1):
        if (following := ord(prefix[position]) + 1) < 0x110000:
            following = 0xE000 if 0xD800 <= following < 0xE000 else following
            return prefix[:position] + chr(following)
    return None
