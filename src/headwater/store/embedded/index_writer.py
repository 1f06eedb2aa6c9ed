"""Writing the index: the data of a fold, in one transaction."""

from __future__ import annotations

import logging
import sqlite3
from array import array
from collections.abc import Iterable, Mapping

import msgspec

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.log.producers import hash_of
from headwater.log.state import Document, StreamState
from headwater.store.embedded.chunks import COLUMNS, ChunkRow, cut, decode_chunk
from headwater.store.embedded.index import IndexReader, Meta, decode_document, document_checksum, untimed_ms

log = logging.getLogger("headwater.store")

_states = msgspec.msgpack.Decoder(StreamState)


class IndexWriter:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self, meta: Meta) -> None:
        found = {**meta._asdict(), "streams_counted_at": meta.folded_segment}
        rows = [(key, value) for key, value in found.items() if key != "timeline"]
        self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def begin_timeline(self, after: int) -> int:
        """Begin a timeline, because data that was acknowledged is not in the directory any more.

        Its id is larger than `after` and all ids in the index. `after` must cover the ids of the lost data, which are
        not known here; it is a time in microseconds, because ids follow the clock (`engine/writer.py`).
        """
        meta = IndexReader(self._connection).meta()
        timeline = max(after, meta.next_id, meta.timeline) + 1
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('timeline', ?)", (timeline,))
        return timeline

    # States before the fold

    def by_id(self, stream_id: int) -> StreamState | None:
        """A state without its producers. A fold only writes producers that changed."""
        row = self._connection.execute("SELECT state FROM streams WHERE id = ?", (stream_id,)).fetchone()
        return None if row is None else _states.decode(row[0])

    def document(self, key: str) -> Document | None:
        row = self._connection.execute(
            "SELECT key, data, version, checksum FROM documents WHERE key = ?", (key,)
        ).fetchone()
        return None if row is None else decode_document(*row)

    # Writes of the fold

    def put_states(self, states: Iterable[StreamState]) -> None:
        streams, producers, expired = [], [], []
        for state in states:
            producers += [(state.id, name, *known) for name, known in state.producers.items()]
            expired += [(state.id, *entry) for entry in state.expired_producers.items()]
            state.producers, state.expired_producers = {}, {}
            deadline_ms = None if state.soft_deleted else state.deadline_ms
            streams.append((state.id, state.path, deadline_ms, msgspec.msgpack.encode(state)))
        self._connection.executemany("INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?)", streams)
        self._connection.executemany(
            "INSERT OR REPLACE INTO producers (stream_id, producer, epoch, seq, at_ms) VALUES (?, ?, ?, ?, ?)",
            producers,
        )
        self._connection.executemany("INSERT OR REPLACE INTO expired_producers VALUES (?, ?, ?)", expired)

    def put_documents(self, documents: Mapping[str, Document | None]) -> None:
        written = [found for found in documents.values() if found is not None]
        self._connection.executemany(
            "INSERT OR REPLACE INTO documents (key, version, checksum, data) VALUES (?, ?, ?, ?)",
            [(found.key, found.version, document_checksum(found), found.data) for found in written],
        )
        deleted = [(key,) for key, found in documents.items() if found is None]
        self._connection.executemany("DELETE FROM documents WHERE key = ?", deleted)

    def delete(self, stream_ids: Iterable[int]) -> None:
        rows = [(stream_id,) for stream_id in stream_ids]
        self._connection.executemany("DELETE FROM streams WHERE id = ?", rows)
        self._connection.executemany("INSERT OR IGNORE INTO garbage VALUES (?)", rows)

    def put_bytes(self, stream_id: int, start: int, ends: array[int], times: array[int], data: bytes) -> None:
        """Add records to the end of a stream. Small chunks are merged in powers of two, so each byte is rewritten at
        most a logarithmic number of times, and a stream has few chunks."""
        while len(data) < limits.SMALL_CHUNK_BYTES:
            last = self._connection.execute(
                "SELECT id, size FROM chunks WHERE stream_id = ? ORDER BY start DESC LIMIT 1", (stream_id,)
            ).fetchone()
            if last is None or last[1] > len(data) or last[1] + len(data) > limits.CHUNK_BYTES:
                break
            row = self._connection.execute(
                f"SELECT {COLUMNS} FROM chunks WHERE id = ?",  # noqa: S608
                (last[0],),
            ).fetchone()
            try:
                before = decode_chunk(ChunkRow(*row), untimed_ms(self._connection, stream_id))
            except DamagedDataError as error:  # a merge would give damaged bytes a valid checksum
                log.error("a damaged chunk was not merged: %s", error)
                break
            merged_ends, merged_times = before.ends[:], array("Q", map(before.time, range(len(before.ends))))
            merged_ends.extend([len(before.data) + end for end in ends])
            merged_times.extend(times)
            start, ends, times, data = before.start, merged_ends, merged_times, before.data + data
            self._connection.execute("DELETE FROM chunks WHERE id = ?", (last[0],))
        self._connection.executemany(
            f"INSERT INTO chunks ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            cut(stream_id, start, ends, times, data),
        )

    # Between folds

    def expire_producers(self, before_ms: int, limit: int) -> None:
        """Expire some producers that were idle since a time: keep only the epoch and the hash of the id."""
        rows = self._connection.execute(
            "SELECT stream_id, producer, epoch FROM producers WHERE at_ms < ? LIMIT ?", (before_ms, limit)
        ).fetchall()
        if not rows:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(
            "INSERT OR REPLACE INTO expired_producers VALUES (?, ?, ?)",
            [(stream_id, hash_of(producer), epoch) for stream_id, producer, epoch in rows],
        )
        self._connection.executemany(
            "DELETE FROM producers WHERE stream_id = ? AND producer = ?", [row[:2] for row in rows]
        )
        self._connection.execute("COMMIT")

    def checkpoint(self, log_pages_max: int) -> int:
        """Checkpoint the write-ahead log, as far as readers allow it. A log of more than `log_pages_max`, for example
        after a backup, is truncated when there is no reader. Returns how many pages could not be checkpointed."""
        _, logged, moved = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if logged == moved and logged > log_pages_max:
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._connection.execute(f"PRAGMA busy_timeout = {limits.INDEX_LOCK_WAIT_S * 1000:.0f}")
        return max(0, int(logged) - int(moved))
