"""The index: folded streams and documents in SQLite.

    meta                the format, `Meta` and the timeline
    streams             one row per stream: its path, deadline and state
    producers           separate from the state, so that a fold writes only those that changed
    expired_producers   the epochs of producers that were idle for long
    chunks              the bytes of streams (`chunks.py`)
    documents           small named values
    garbage             ranges of bytes that nobody reads any more: of trimmed streams, and all bytes of deleted ones

Every row has a checksum, which is verified when the row is read (`row_checksums.py`). The fold worker writes, the
server reads. A fold is one transaction, so a reader sees the streams as of the end of a segment.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial, reduce
from operator import xor
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias, TypeVar

import msgspec

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.log.moments import NEVER, Moment
from headwater.log.producers import ProducerState
from headwater.log.state import Document, StreamState
from headwater.store.deadlines import Deadline
from headwater.store.embedded.chunks import COLUMNS, Chunk, ChunkRow, decode_chunk, outline
from headwater.store.embedded.disk import create_private
from headwater.store.embedded.journal import UnknownFormatError
from headwater.store.embedded.newest import FoldedSegment
from headwater.store.embedded.row_checksums import check_row, name_hash, row_checksum
from headwater.store.pieces import Piece, RecordEnd, boundary_in, list_runs, position_at, read_runs

FORMAT = 4
EVERYTHING = 2**63 - 1  # the end of the range of a deleted stream

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, hash INTEGER NOT NULL, deadline_ms INTEGER,
    producers INTEGER NOT NULL, state BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE INDEX streams_hash ON streams (hash);
CREATE INDEX streams_deadline ON streams (deadline_ms) WHERE deadline_ms IS NOT NULL;
CREATE TABLE producers (
    stream_id INTEGER NOT NULL, producer TEXT NOT NULL, epoch INTEGER NOT NULL, seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (stream_id, producer)
) WITHOUT ROWID;
CREATE INDEX producers_idle ON producers (at_ms);
CREATE TABLE expired_producers (
    stream_id INTEGER NOT NULL, hash INTEGER NOT NULL, epoch INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (stream_id, hash)
) WITHOUT ROWID;
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, stream_id INTEGER NOT NULL, start INTEGER NOT NULL, size INTEGER NOT NULL,
    at_ms INTEGER NOT NULL, ends BLOB NOT NULL, times BLOB NOT NULL, data_checksum INTEGER NOT NULL,
    checksum INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE UNIQUE INDEX chunks_position ON chunks (stream_id, start);
CREATE TABLE documents (
    key TEXT PRIMARY KEY, hash INTEGER NOT NULL, version INTEGER NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX documents_hash ON documents (hash);
CREATE TABLE garbage (
    stream_id INTEGER NOT NULL, low INTEGER NOT NULL, high INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (stream_id, low)
) WITHOUT ROWID;
"""

T = TypeVar("T")
Chunks: TypeAlias = Generator[Chunk, None, None]

_states = msgspec.msgpack.Decoder(StreamState)


class Meta(NamedTuple):
    folded_segment: int = 0
    folded_sequence: int = 0
    folded_salt: int = 0
    next_id: int = 1
    streams: int = 0  # in the index
    latest: Moment = NEVER  # of the last folded batch
    timeline: int = 0  # the id of the current timeline; 0 if the directory was never restored. It has a row of its own

    @property
    def folded(self) -> FoldedSegment:
        return FoldedSegment(self.folded_segment, self.folded_sequence, self.folded_salt)


_metas = msgspec.msgpack.Decoder(Meta)


class StreamRow(NamedTuple):
    """The columns of a stream, in the order of the table."""

    id: int
    path: str
    hash: int  # of the path
    deadline_ms: int | None
    producers: int  # the checksums of all its producers, combined by exclusive or
    state: bytes
    checksum: int


STREAM_COLUMNS = ", ".join(StreamRow._fields)


class ProducerRow(NamedTuple):
    """The columns of a producer, in the order of the table."""

    stream_id: int
    producer: str
    epoch: int
    seq: int
    at_ms: int
    checksum: int


class ExpiredRow(NamedTuple):
    """The columns of an expired producer, in the order of the table."""

    stream_id: int
    hash: int
    epoch: int
    checksum: int


class DocumentRow(NamedTuple):
    """The columns of a document, in the order of the table."""

    key: str
    hash: int
    version: int
    checksum: int
    data: bytes


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
    write_meta(connection, "format", FORMAT)
    write_meta(connection, "folded", Meta())
    write_meta(connection, "timeline", 0)
    connection.execute("COMMIT")


def write_meta(connection: sqlite3.Connection, key: str, value: int | Meta) -> None:
    data = msgspec.msgpack.encode(value)
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, data, row_checksum("meta", key, data)))


def _meta_value(connection: sqlite3.Connection, key: str) -> bytes:
    row = connection.execute("SELECT value, checksum FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise DamagedDataError(f"the row {key!r} of meta is missing in the index")
    check_row(f"the row {key!r} of meta", row[1], "meta", key, row[0])
    return bytes(row[0])


def check_format(connection: sqlite3.Connection) -> None:
    version = msgspec.msgpack.decode(_meta_value(connection, "format"))
    if version != FORMAT:
        raise UnknownFormatError(f"the index has format {version}; this version supports {FORMAT}")


class FoldedRows:
    """The states and documents of the index for a replay: without producers, because events carry those that change.
    So damage in a producer does not keep a replay from the state of its stream."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def by_id(self, stream_id: int) -> StreamState | None:
        row = stream_row(self._connection, "id", stream_id)
        return None if row is None else decode_stream(row)

    def document(self, key: str) -> Document | None:
        return read_document(self._connection, key)


class IndexReader:
    """Reads over one connection, used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.text_factory = lossy_text
        self.rows = FoldedRows(connection)

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
        timeline = msgspec.msgpack.decode(_meta_value(self._connection, "timeline"), type=int)
        return _metas.decode(_meta_value(self._connection, "folded"))._replace(timeline=timeline)

    # States

    def by_path(self, path: str) -> StreamState | None:
        with self.snapshot():
            row = stream_row(self._connection, "path", path)
            if row is not None:
                return self._with_producers(row)
            _check_absent(self._connection, "streams", "path", path)
        return None

    def by_id(self, stream_id: int) -> StreamState | None:
        with self.snapshot():
            row = stream_row(self._connection, "id", stream_id)
            return None if row is None else self._with_producers(row)

    def _with_producers(self, row: StreamRow) -> StreamState:
        state = decode_stream(row)
        rows = self._connection.execute("SELECT * FROM producers WHERE stream_id = ? ORDER BY at_ms", (state.id,))
        known = [decode_producer(ProducerRow(*columns)) for columns in rows]
        rows = self._connection.execute("SELECT * FROM expired_producers WHERE stream_id = ?", (state.id,))
        expired = [decode_expired(ExpiredRow(*columns)) for columns in rows]
        if producers_sum([*known, *expired]) != row.producers:
            raise DamagedDataError(f"producers of stream {row.id} ({row.path}) are missing in the index")
        state.producers = {one.producer: ProducerState(one.epoch, one.seq, one.at_ms) for one in known}
        state.expired_producers = {one.hash: one.epoch for one in expired}
        return state

    def states(self) -> Iterator[StreamState]:
        """All states in order of ids, without producers."""
        for row in self._connection.execute(f"SELECT {STREAM_COLUMNS} FROM streams ORDER BY id"):  # noqa: S608
            yield decode_stream(StreamRow(*row))

    def page(self, prefix: str, after: str, limit: int) -> list[StreamState]:
        """States in path order, without producers."""
        where, bounds = _between("path", prefix, after)
        rows = self._connection.execute(
            f"SELECT {STREAM_COLUMNS} FROM streams WHERE {where} ORDER BY path LIMIT ?",  # noqa: S608
            (*bounds, limit),
        )
        return [decode_stream(StreamRow(*row)) for row in rows]

    def due(self, after: Deadline, now_ms: int, limit: int) -> list[tuple[int, int, str]]:
        """Deadlines that have passed, ids and paths of streams, in order, after a deadline and an id."""
        # Two queries: with (deadline_ms, id) > (?, ?), SQLite would scan all streams that have the same deadline.
        columns = "SELECT deadline_ms, id, path FROM streams WHERE deadline_ms"
        rows = self._connection.execute(f"{columns} = ? AND id > ? ORDER BY id LIMIT ?", (*after, limit)).fetchall()
        return (
            rows
            + self._connection.execute(
                f"{columns} > ? AND deadline_ms <= ? ORDER BY deadline_ms, id LIMIT ?",
                (after[0], now_ms, limit - len(rows)),
            ).fetchall()
        )

    # Bytes

    def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        bytes_max = min(bytes_max, limits.CHUNK_BYTES)  # do not join large chunks, because this copies them
        # In a snapshot, because the fold may commit between the reads of a row and its blob.
        with self.snapshot(), closing(self._chunks(stream_id, start, end, bytes_max)) as chunks:
            piece = read_runs(chunks, start, end, bytes_max)
            if piece.next <= start:
                self._raise_missing(stream_id, start)
        return piece

    def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        with self.snapshot(), closing(self._outlines(stream_id, start, end)) as chunks:
            ends = list_runs(chunks, start, end, limit)
            if not ends:
                self._raise_missing(stream_id, start)
        return ends

    def boundary(self, stream_id: int, position: int) -> int:
        return boundary_in(self._outline(stream_id, position), position)

    def position_at(self, stream_id: int, start: int, at_ms: int) -> int | None:
        """Binary search for the first chunk, from that with `start` on, that ends at or after the time."""
        last = self._connection.execute(
            "SELECT start, size FROM chunks WHERE stream_id = ? ORDER BY start DESC LIMIT 1", (stream_id,)
        ).fetchone()
        if last is None or sum(last) <= start:
            return None
        low, high = start, last[0]
        while low < high:
            middle = self._containing(stream_id, (low + high) // 2)
            if middle.time(len(middle.ends) - 1) < at_ms:
                low = middle.start + middle.ends[-1]
            else:
                high = middle.start
        return position_at(self._containing(stream_id, low), start, at_ms)

    def _containing(self, stream_id: int, position: int) -> Chunk:
        """The chunk that contains a position and does not end there, without its data. Any other would make a search
        stay where it is."""
        chunk = self._outline(stream_id, position)
        if not chunk.start <= position < chunk.start + chunk.ends[-1]:
            self._raise_missing(stream_id, position)
        return chunk

    def _outline(self, stream_id: int, position: int) -> Chunk:
        """The chunk that contains a position or ends there, without its data."""
        with self.snapshot(), closing(self._outlines(stream_id, position, position + 1)) as chunks:
            chunk = next(chunks, None)
            if chunk is None:
                self._raise_missing(stream_id, position)
        return chunk

    def _raise_missing(self, stream_id: int, position: int) -> NoReturn:
        row = stream_row(self._connection, "id", stream_id)
        if row is None:
            self._check_deleted(stream_id)
            raise LookupError(f"stream {stream_id} does not exist")
        if decode_stream(row).is_unread(position, position + 1):
            raise LookupError(f"stream {stream_id} was trimmed at {position}")
        raise DamagedDataError(f"the bytes of stream {stream_id} at {position} are missing in the index")

    def _check_deleted(self, stream_id: int) -> None:
        """A stream without a row was deleted, or its id in the row is damaged. Then its bytes are no garbage."""
        [is_lost] = self._connection.execute(
            "SELECT EXISTS (SELECT 1 FROM chunks WHERE stream_id = ?1) "
            "AND NOT EXISTS (SELECT 1 FROM garbage WHERE stream_id = ?1 AND high = ?2)",
            (stream_id, EVERYTHING),
        ).fetchone()
        if is_lost:
            raise DamagedDataError(f"the row of stream {stream_id} is missing in the index")

    def _check_no_gap(self, stream_id: int, start: int, chunk: Chunk, expected: int | None) -> int:
        """Check that the first chunk contains `start` or ends there, and that each one begins where the one before
        ended, at `expected`. Returns where the chunk ends."""
        end = chunk.start + chunk.ends[-1]
        if not (chunk.start <= start <= end if expected is None else chunk.start == expected):
            self._raise_missing(stream_id, start if expected is None else expected)
        return end

    def _outlines(self, stream_id: int, start: int, end: int) -> Chunks:
        expected: int | None = None
        with closing(self._rows(stream_id, start, end, end - start, "x''")) as rows:
            for row, _ in rows:
                chunk = outline(row)
                expected = self._check_no_gap(stream_id, start, chunk, expected)
                yield chunk

    def _chunks(self, stream_id: int, start: int, end: int, bytes_max: int) -> Chunks:
        """Read chunks. Large data is read as a blob, which avoids one copy."""
        data = f"CASE WHEN size <= {limits.BLOB_BYTES_MIN} THEN data END"
        expected: int | None = None
        with closing(self._rows(stream_id, start, end, bytes_max, data)) as rows:
            for row, key in rows:
                chunk = decode_chunk(row, None if row.data is not None else partial(self._blob, key))
                expected = self._check_no_gap(stream_id, start, chunk, expected)
                yield chunk

    def _blob(self, key: int) -> bytes:
        with self._connection.blobopen("chunks", "data", key, readonly=True) as blob:
            return blob.read()

    def _rows(
        self, stream_id: int, start: int, end: int, bytes_max: int, data: str
    ) -> Generator[tuple[ChunkRow, int], None, None]:
        """The rows and keys of the chunk that contains `start` and of the chunks after it that fit as a whole.

        A chunk that fits only in part is not included, because it would have to be read again for the rest.
        """
        columns = f"{COLUMNS.removesuffix('data')}{data}"
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
        return read_document(self._connection, key)

    def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        """Documents in key order."""
        where, bounds = _between("key", prefix, after)
        rows = self._connection.execute(
            f"SELECT * FROM documents WHERE {where} ORDER BY key LIMIT ?",  # noqa: S608
            (*bounds, limit),
        )
        return [decode_document(DocumentRow(*row)) for row in rows]


# Rows


def lossy_text(text: bytes) -> str:
    """Text that is not UTF-8 is damaged. It is decoded, and then its checksum does not match."""
    return text.decode("utf-8", "replace")


def stream_row(connection: sqlite3.Connection, column: str, key: str | int) -> StreamRow | None:
    """The row of a stream, which is verified."""
    row = connection.execute(
        f"SELECT {STREAM_COLUMNS} FROM streams WHERE {column} = ?",  # noqa: S608
        (key,),
    ).fetchone()
    if row is None:
        return None
    stream = StreamRow(*row)
    check_stream(stream)
    return stream


def check_stream(row: StreamRow) -> None:
    check_row(f"stream {row.id} ({row.path})", row.checksum, "streams", *row[:-1])


def decode_stream(row: StreamRow) -> StreamState:
    check_stream(row)
    return _states.decode(row.state)


def encode_stream(state: StreamState, producers: int) -> StreamRow:
    """The row of a state, which has no producers."""
    deadline_ms = None if state.soft_deleted else state.due_ms
    return sealed_stream(
        StreamRow(state.id, state.path, name_hash(state.path), deadline_ms, producers, msgspec.msgpack.encode(state), 0)
    )


def sealed_stream(row: StreamRow) -> StreamRow:
    return row._replace(checksum=row_checksum("streams", *row[:-1]))


def decode_producer(row: ProducerRow) -> ProducerRow:
    what = f"producer {row.producer!r} of stream {row.stream_id}"
    check_row(what, row.checksum, "producers", *row[:-1])
    return row


def encode_producer(stream_id: int, producer: str, known: ProducerState) -> ProducerRow:
    values = (stream_id, producer, known.epoch, known.seq, known.at_ms)
    return ProducerRow(*values, row_checksum("producers", *values))


def decode_expired(row: ExpiredRow) -> ExpiredRow:
    what = f"expired producer {row.hash} of stream {row.stream_id}"
    check_row(what, row.checksum, "expired_producers", *row[:-1])
    return row


def encode_expired(stream_id: int, hash_: int, epoch: int) -> ExpiredRow:
    return ExpiredRow(stream_id, hash_, epoch, row_checksum("expired_producers", stream_id, hash_, epoch))


def producers_sum(rows: Iterable[ProducerRow | ExpiredRow]) -> int:
    return reduce(xor, (row.checksum for row in rows), 0)


def read_document(connection: sqlite3.Connection, key: str) -> Document | None:
    row = connection.execute("SELECT * FROM documents WHERE key = ?", (key,)).fetchone()
    if row is not None:
        return decode_document(DocumentRow(*row))
    _check_absent(connection, "documents", "key", key)
    return None


def decode_document(row: DocumentRow) -> Document:
    check_row(f"document {row.key!r}", row.checksum, "documents", row.key, row.hash, row.version, row.data)
    return Document(row.key, row.data, row.version)


def encode_document(document: Document) -> DocumentRow:
    key, hash_ = document.key, name_hash(document.key)
    checksum = row_checksum("documents", key, hash_, document.version, document.data)
    return DocumentRow(key, hash_, document.version, checksum, document.data)


def _check_absent(connection: sqlite3.Connection, table: str, column: str, name: str) -> None:
    """Raise DamagedDataError if a name that was not found has a row: its name in the row or in an index is damaged."""
    rows = connection.execute(
        f"SELECT {column} FROM {table} WHERE hash = ?",  # noqa: S608
        (name_hash(name),),
    )
    for (other_name,) in rows:
        other = connection.execute(
            f"SELECT hash FROM {table} WHERE {column} = ?",  # noqa: S608
            (other_name,),
        ).fetchone()
        if not isinstance(other_name, str) or name_hash(other_name) != name_hash(name) or other is None:
            raise DamagedDataError(f"the row of {name!r} in {table} has another name, {other_name!r}, in the index")


def _between(column: str, prefix: str, after: str) -> tuple[str, tuple[str, ...]]:
    """The condition for texts that have a prefix and sort after `after`.

    It has one lower and at most one upper bound, because SQLite seeks only by one of each and would scan for the rest.
    """
    end = _past(prefix)
    where, bounds = (f"{column} > ?", (after,)) if after >= prefix else (f"{column} >= ?", (prefix,))
    return (where, bounds) if end is None else (f"{where} AND {column} < ?", (*bounds, end))


def _past(prefix: str) -> str | None:
    """The smallest text that sorts after all texts with a prefix; None if there is none."""
    for position in range(len(prefix) - 1, -1, -1):
        if (following := ord(prefix[position]) + 1) < 0x110000:
            following = 0xE000 if 0xD800 <= following < 0xE000 else following
            return prefix[:position] + chr(following)
    return None
