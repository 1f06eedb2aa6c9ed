"""Reclaiming the space of deleted and trimmed streams, in steps that are bounded in time and bytes.

A step deletes rows of deleted streams and chunks that were trimmed, and then returns free pages of the index to the
file system. It is one transaction for the rows and a few for the pages, so the index is never locked for long. How
often steps run decides the rate; see `folding.py`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.store.embedded.chunks import COLUMNS, ChunkRow, cut, decode_chunk
from headwater.store.embedded.folder import Reclaimed
from headwater.store.embedded.index import EVERYTHING
from headwater.store.embedded.row_checksums import check_row

log = logging.getLogger("headwater.store")

_ROWS = {"producers": "producer", "expired_producers": "hash"}  # tables with many rows of a stream, and their keys


class Garbage(NamedTuple):
    """The columns of a range of bytes that nobody reads, in the order of the table."""

    stream_id: int
    low: int
    high: int  # EVERYTHING: the stream is deleted
    checksum: int

    def check(self) -> None:
        check_row(f"row {self.stream_id} of garbage", self.checksum, "garbage", *self[:3])


class Reclaimer:
    def __init__(self, connection: sqlite3.Connection, clock_s: Callable[[], float]) -> None:
        self._connection = connection
        self._clock_s = clock_s

    def step(self, *, urgent: bool = False) -> Reclaimed:
        """Remove rows, and return pages when no rows are left. Until then folds can use the pages, unless the space is
        needed urgently."""
        deadline_s = self._clock_s() + limits.RECLAIM_STEP_S
        size_bytes = self._remove_rows(deadline_s)
        [garbage] = self._connection.execute("SELECT EXISTS (SELECT 1 FROM garbage)").fetchone()
        pages_left = self._return_pages(deadline_s) if urgent or not garbage else 0
        return Reclaimed(size_bytes, bool(garbage), bool(garbage or pages_left))

    def _remove_rows(self, deadline_s: float) -> int:
        """Delete rows of deleted and trimmed streams until the step has used its bytes or its time. Returns their
        size."""
        size_bytes = 0
        while size_bytes < limits.RECLAIM_STEP_BYTES:
            rows = self._connection.execute(
                "SELECT * FROM garbage ORDER BY stream_id LIMIT ?", (limits.RECLAIM_STREAMS,)
            ).fetchall()
            if not rows:
                break
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN IMMEDIATE")
            garbage = [Garbage(*row) for row in rows if self._is_garbage(Garbage(*row))]
            ids = [(row.stream_id,) for row in garbage if row.high == EVERYTHING]
            left = limits.RECLAIM_STEP_BYTES - size_bytes
            if ids:
                size_bytes += self._remove_some(ids, left)
            else:
                size_bytes += self._trim_some(garbage, left, deadline_s)
            if self._clock_s() >= deadline_s:
                break
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        return size_bytes

    def _is_garbage(self, row: Garbage) -> bool:
        """Verify a row. A damaged one may have the id of a stream that exists, so it is removed and logged, and what it
        stood for is not reclaimed: `headwater check` names rows of streams that do not exist."""
        try:
            row.check()
        except DamagedDataError as error:
            log.error("a deleted or trimmed stream is not reclaimed: %s", error)
            self._forget(row)
            return False
        return True

    def _forget(self, row: Garbage) -> None:
        self._connection.execute("DELETE FROM garbage WHERE stream_id = ? AND low = ?", (row.stream_id, row.low))

    def _trim_some(self, garbage: list[Garbage], bytes_max: int, deadline_s: float) -> int:
        """Delete the chunks of trimmed ranges, one range after the other."""
        size_bytes = 0
        for row in garbage:
            chunks = self._connection.execute(
                "SELECT id, size FROM chunks WHERE stream_id = ? AND start >= ? AND start < ? AND start + size <= ?"
                " ORDER BY start LIMIT ?",
                (row.stream_id, row.low, row.high, row.high, limits.RECLAIM_ROWS),
            ).fetchall()
            self._connection.executemany("DELETE FROM chunks WHERE id = ?", [(chunk[0],) for chunk in chunks])
            size_bytes += sum(size + limits.INDEX_ROW_BYTES for _, size in chunks)
            if len(chunks) < limits.RECLAIM_ROWS:
                size_bytes += self._shorten(row)
                self._forget(row)
            if size_bytes >= bytes_max or self._clock_s() >= deadline_s:
                break
        return size_bytes

    def _shorten(self, row: Garbage) -> int:
        """Rewrite the chunk in which the trimmed range ends, if more than half of it is trimmed. So a stream takes at
        most twice the space of what it keeps. Returns how many bytes that frees."""
        last = self._connection.execute(
            f"SELECT id, {COLUMNS} FROM chunks WHERE stream_id = ? AND start < ? ORDER BY start DESC LIMIT 1",  # noqa: S608
            (row.stream_id, row.high),
        ).fetchone()
        if last is None:
            return 0
        key, chunk_row = last[0], ChunkRow(*last[1:])
        cut_bytes = row.high - chunk_row.start
        if chunk_row.start < row.low or cut_bytes * 2 <= chunk_row.size or cut_bytes >= chunk_row.size:
            return 0
        try:
            chunk = decode_chunk(chunk_row)
        except DamagedDataError as error:
            log.error("a damaged chunk was not shortened: %s", error)
            return 0
        kept = [index for index, end in enumerate(chunk.ends) if end > cut_bytes]
        ends, times = [chunk.ends[index] - cut_bytes for index in kept], [chunk.time(index) for index in kept]
        self._connection.execute("DELETE FROM chunks WHERE id = ?", (key,))
        self._connection.executemany(
            f"INSERT INTO chunks ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
            cut(row.stream_id, row.high, ends, times, chunk.data[cut_bytes:]),
        )
        return cut_bytes

    def _remove_some(self, ids: list[tuple[int]], bytes_max: int) -> int:
        """Delete a bounded number of rows of some streams. A stream without rows is removed from the garbage."""
        first, last = ids[0][0], ids[-1][0]
        among = "stream_id IN (SELECT stream_id FROM garbage WHERE stream_id BETWEEN ? AND ? AND high = ?)"
        bounds = (first, last, EVERYTHING)
        chunks = self._connection.execute(
            f"SELECT id, size FROM chunks WHERE {among} LIMIT ?",  # noqa: S608
            (*bounds, limits.RECLAIM_ROWS),
        ).fetchall()
        count = size_bytes = 0
        while count < len(chunks) and size_bytes < bytes_max:
            size_bytes += chunks[count][1] + limits.INDEX_ROW_BYTES
            count += 1
        self._connection.executemany("DELETE FROM chunks WHERE id = ?", [(row[0],) for row in chunks[:count]])
        if count < len(chunks) or count == limits.RECLAIM_ROWS:
            return size_bytes
        for table, key in _ROWS.items():
            removed = self._connection.execute(
                f"DELETE FROM {table} WHERE (stream_id, {key}) IN"  # noqa: S608
                f" (SELECT stream_id, {key} FROM {table} WHERE {among} LIMIT ?)",
                (*bounds, limits.RECLAIM_ROWS),
            ).rowcount
            size_bytes += removed * limits.INDEX_ROW_BYTES
            if removed == limits.RECLAIM_ROWS:
                return size_bytes
        self._connection.executemany("DELETE FROM garbage WHERE stream_id = ?", ids)
        return size_bytes + len(ids) * limits.INDEX_ROW_BYTES

    def _return_pages(self, deadline_s: float) -> int:
        """Return free pages to the file system: some in any case, more until the deadline. Returns the number left."""
        left = self._free_pages()
        while left:
            # As a script: the pragma frees one page per step, and `execute` runs only one step of it.
            self._connection.executescript(f"PRAGMA incremental_vacuum({limits.RECLAIM_PAGES:d})")
            before, left = left, self._free_pages()
            if left >= before:  # an index that cannot shrink
                return 0
            if self._clock_s() >= deadline_s:
                break
        return left

    def _free_pages(self) -> int:
        [pages] = self._connection.execute("PRAGMA freelist_count").fetchone()
        return int(pages)
