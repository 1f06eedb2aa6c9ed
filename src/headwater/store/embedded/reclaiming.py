"""Reclaiming the space of deleted streams, in steps that are bounded in time and bytes.

A step deletes rows of deleted streams and then returns free pages of the index to the file system. It is one
transaction for the rows and a few for the pages, so the index is never locked for long. How often steps run decides the
rate; see `folding.py`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable

from headwater import limits
from headwater.errors import DamagedDataError
from headwater.store.embedded.folder import Reclaimed
from headwater.store.embedded.row_checksums import check_row

log = logging.getLogger("headwater.store")

_ROWS = {"producers": "producer", "expired_producers": "hash"}  # tables with many rows of a stream, and their keys


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
        """Delete rows of deleted streams until the step has used its bytes or its time. Returns their size."""
        size_bytes = 0
        while size_bytes < limits.RECLAIM_STEP_BYTES:
            rows = self._connection.execute(
                "SELECT stream_id, checksum FROM garbage ORDER BY stream_id LIMIT ?", (limits.RECLAIM_STREAMS,)
            ).fetchall()
            if not rows:
                break
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN IMMEDIATE")
            ids = [(stream_id,) for stream_id, checksum in rows if self._is_garbage(stream_id, checksum)]
            if not ids:
                continue
            size_bytes += self._remove_some(ids, limits.RECLAIM_STEP_BYTES - size_bytes)
            if self._clock_s() >= deadline_s:
                break
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        return size_bytes

    def _is_garbage(self, stream_id: int, checksum: int) -> bool:
        """Verify a row. A damaged one may have the id of a stream that exists, so it is removed and logged, and what it
        stood for is not reclaimed: `headwater check` names rows of streams that do not exist."""
        try:
            check_row(f"row {stream_id} of garbage", checksum, "garbage", stream_id)
        except DamagedDataError as error:
            log.error("a deleted stream is not reclaimed: %s", error)
            self._connection.execute("DELETE FROM garbage WHERE stream_id = ?", (stream_id,))
            return False
        return True

    def _remove_some(self, ids: list[tuple[int]], bytes_max: int) -> int:
        """Delete a bounded number of rows of some streams. A stream without rows is removed from the garbage."""
        first, last = ids[0][0], ids[-1][0]
        among = "stream_id IN (SELECT stream_id FROM garbage WHERE stream_id BETWEEN ? AND ?)"
        chunks = self._connection.execute(
            f"SELECT id, size FROM chunks WHERE {among} LIMIT ?",  # noqa: S608
            (first, last, limits.RECLAIM_ROWS),
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
                (first, last, limits.RECLAIM_ROWS),
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
