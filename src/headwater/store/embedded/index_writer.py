"""Writing the index: the data of a fold, in one transaction."""

from __future__ import annotations

import logging
import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.log.producers import hash_of
from headwater.log.state import Document, StreamState
from headwater.store.embedded.chunks import COLUMNS, ChunkRow, cut, decode_chunk
from headwater.store.embedded.index import (
    EVERYTHING,
    ExpiredRow,
    IndexReader,
    Meta,
    ProducerRow,
    StreamRow,
    decode_producer,
    encode_document,
    encode_expired,
    encode_producer,
    encode_stream,
    lossy_text,
    sealed_stream,
    stream_row,
    write_meta,
)
from headwater.store.embedded.row_checksums import name_hash, row_checksum

log = logging.getLogger("headwater.store")


class IndexWriter:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.text_factory = lossy_text

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self, meta: Meta) -> None:
        before = IndexReader(self._connection).meta().timeline
        if meta.timeline > before:  # in a restored index: it began after the base
            write_meta(self._connection, "timeline", meta.timeline)
        write_meta(self._connection, "folded", meta._replace(timeline=0))
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def begin_timeline(self, after: int, gap: int) -> int:
        """Begin a timeline, because data that was acknowledged is not in the directory any more.

        Its id is larger than `after` and all ids in the index. `after` must cover the ids of the lost data, which are
        not known here; it is a time in microseconds, because ids follow the clock (`engine/writer.py`). `gap` is how
        much larger the id is at least, above 0. It is random, because ids may be ahead of the clock, and then two
        timelines that begin after the same data would have the same id.
        """
        meta = IndexReader(self._connection).meta()
        timeline = max(after, meta.next_id, meta.timeline, meta.latest.at_ms * 1000) + gap
        write_meta(self._connection, "timeline", timeline)
        return timeline

    # Writes of the fold

    def put_states(self, states: Iterable[StreamState]) -> None:
        streams: list[StreamRow] = []
        for state in states:
            producers = [encode_producer(state.id, name, known) for name, known in state.producers.items()]
            expired = [encode_expired(state.id, *entry) for entry in state.expired_producers.items()]
            state.producers, state.expired_producers = {}, {}
            row = self._connection.execute("SELECT producers FROM streams WHERE id = ?", (state.id,)).fetchone()
            if row is None:
                self._put_aside("streams", "path", state.path)
            before = 0 if row is None else row[0]
            streams.append(encode_stream(state, before ^ self._put_producers(producers, expired)))
        self._connection.executemany("INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)", streams)

    def _put_producers(self, producers: list[ProducerRow], expired: list[ExpiredRow]) -> int:
        """Write rows of producers. Returns the change of the sum of their checksums.

        A damaged row that is replaced may be that of another producer, whose key is damaged. Its checksum stays in the
        sum, so that the producer is still missed."""
        change = 0
        for row in producers:
            change ^= row.checksum ^ self._intact_checksum("producers", "producer", row.stream_id, row.producer)
        for one in expired:
            change ^= one.checksum ^ self._intact_checksum("expired_producers", "hash", one.stream_id, one.hash)
        self._connection.executemany("INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?, ?, ?)", producers)
        self._connection.executemany("INSERT OR REPLACE INTO expired_producers VALUES (?, ?, ?, ?)", expired)
        return change

    def _intact_checksum(self, table: str, column: str, stream_id: int, key: str | int) -> int:
        """The checksum in the row of a producer; 0 if there is none, or it is damaged."""
        row = self._connection.execute(
            f"SELECT * FROM {table} WHERE stream_id = ? AND {column} = ?",  # noqa: S608
            (stream_id, key),
        ).fetchone()
        return row[-1] if row is not None and row[-1] == row_checksum(table, *row[:-1]) else 0

    def _put_aside(self, table: str, column: str, name: str) -> None:
        """Rename a row of another stream or document that has this name only because its own name is damaged. If it
        were replaced, nobody would miss it."""
        row = self._connection.execute(
            f"SELECT hash FROM {table} WHERE {column} = ?",  # noqa: S608
            (name,),
        ).fetchone()
        if row is not None and row[0] != name_hash(name):
            log.error("a row of %s with the damaged name %r was renamed", table, name)
            self._connection.execute(
                f"UPDATE {table} SET {column} = ? WHERE {column} = ?",  # noqa: S608
                (f"{name}\0{row[0]}", name),
            )

    def put_documents(self, documents: Mapping[str, Document | None]) -> None:
        for key in documents:
            self._put_aside("documents", "key", key)
        written = [document for document in documents.values() if document is not None]
        self._connection.executemany(
            "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?, ?)",
            [encode_document(document) for document in written],
        )
        deleted = [(key,) for key, document in documents.items() if document is None]
        self._connection.executemany("DELETE FROM documents WHERE key = ?", deleted)

    def delete(self, stream_ids: Iterable[int]) -> None:
        rows = [(stream_id,) for stream_id in stream_ids]
        self._connection.executemany("DELETE FROM streams WHERE id = ?", rows)
        self._connection.executemany("DELETE FROM garbage WHERE stream_id = ?", rows)
        self._put_garbage((stream_id, 0, EVERYTHING) for (stream_id,) in rows)

    def trim(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Note ranges of bytes that nobody reads any more: the id of a stream, where the range begins and ends."""
        self._put_garbage(ranges)

    def _put_garbage(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO garbage VALUES (?, ?, ?, ?)",
            [(*one, row_checksum("garbage", *one)) for one in ranges],
        )

    def put_bytes(
        self,
        stream_id: int,
        start: int,
        ends: array[int],
        times: array[int],
        data: bytes,
        state: StreamState | None = None,
    ) -> None:
        """Add records to the end of a stream. Small chunks are merged in powers of two, so each byte is rewritten at
        most a logarithmic number of times, and a stream has few chunks. `state` is that of the stream, if it is
        known: chunks that were trimmed may be gone."""
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
                before = decode_chunk(ChunkRow(*row))
            except DamagedDataError as error:  # a merge would give damaged bytes a valid checksum
                log.error("a damaged chunk was not merged: %s", error)
                break
            end = before.start + before.ends[-1]
            if end != start:  # a chunk is missing; a merge would hide it
                if state is None or not state.is_unread(end, start):
                    log.error("a chunk of stream %d before %d is missing in the index", stream_id, start)
                break
            merged_ends, merged_times = before.ends[:], array("Q", map(before.time, range(len(before.ends))))
            merged_ends.extend([len(before.data) + end for end in ends])
            merged_times.extend(times)
            start, ends, times, data = before.start, merged_ends, merged_times, before.data + data
            self._connection.execute("DELETE FROM chunks WHERE id = ?", (last[0],))
        self._connection.executemany(
            # A row with this key can only be a damaged one of another position.
            f"INSERT OR REPLACE INTO chunks ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            cut(stream_id, start, ends, times, data),
        )

    # Between folds

    def expire_producers(self, before_ms: int, limit: int) -> None:
        """Expire some producers that were idle since a time: keep only the epoch and the hash of the id.

        This changes nothing that a client can see: `decide` treats a producer that was idle for so long as expired.
        """
        rows = self._connection.execute("SELECT * FROM producers WHERE at_ms < ? LIMIT ?", (before_ms, limit))
        idle: dict[int, list[ProducerRow]] = defaultdict(list)
        for row in rows.fetchall():
            idle[row[0]].append(ProducerRow(*row))
        if not idle:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        for stream_id, some in idle.items():
            try:
                self._expire_of(stream_id, [decode_producer(row) for row in some])
            except DamagedDataError as error:
                log.error("producers of stream %d are not expired: %s", stream_id, error)
        self._connection.execute("COMMIT")

    def _expire_of(self, stream_id: int, rows: list[ProducerRow]) -> None:
        stream = stream_row(self._connection, "id", stream_id)
        if stream is None:  # deleted; its producers are reclaimed
            return
        change = 0
        for row in rows:
            change ^= row.checksum
        expired = [encode_expired(stream_id, hash_of(row.producer), row.epoch) for row in rows]
        change ^= self._put_producers([], expired)
        self._connection.executemany(
            "DELETE FROM producers WHERE stream_id = ? AND producer = ?", [row[:2] for row in rows]
        )
        changed = sealed_stream(stream._replace(producers=stream.producers ^ change))
        self._connection.execute(
            "UPDATE streams SET producers = ?, checksum = ? WHERE id = ?",
            (changed.producers, changed.checksum, stream_id),
        )

    def checkpoint(self, log_pages_max: int) -> int:
        """Checkpoint the write-ahead log, as far as readers allow it. A log of more than `log_pages_max`, for example
        after a backup, is truncated when there is no reader. Returns how many pages could not be checkpointed."""
        _, logged, moved = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if logged == moved and logged > log_pages_max:
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._connection.execute(f"PRAGMA busy_timeout = {limits.INDEX_LOCK_WAIT_S * 1000:.0f}")
        return max(0, int(logged) - int(moved))
