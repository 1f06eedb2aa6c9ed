"""Rows that arrived before rows with smaller SeqNos: sorting within a response, and the SeqNos that were skipped."""

from __future__ import annotations

import bisect
import heapq

from headwater import limits
from headwater.errors import HistoryChangedError
from headwater.protocol.tables.rows import Row


class RowWindow:
    """Rows of one response that wait for the rows before them, with a bounded number of rows and characters."""

    def __init__(
        self, rows_max: int = limits.FOLLOW_WINDOW_ROWS_MAX, bytes_max: int = limits.FOLLOW_WINDOW_BYTES_MAX
    ) -> None:
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._rows: dict[int, Row] = {}
        self._order: list[int] = []  # a heap of the SeqNos
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def first(self) -> int:
        """The smallest SeqNo; the window must not be empty."""
        return self._order[0]

    @property
    def is_full(self) -> bool:
        return len(self._order) > self._rows_max or self._bytes > self._bytes_max

    def is_run_to(self, last: int) -> bool:
        """Whether the rows are consecutive and end with this SeqNo."""
        return last in self._rows and last - self._order[0] + 1 == len(self._order)

    def add(self, row: Row) -> None:
        known = self._rows.get(row.seqno)
        if known is None:
            self._rows[row.seqno] = row
            heapq.heappush(self._order, row.seqno)
            self._bytes += _size(row)
        elif known != row:
            raise HistoryChangedError(f"row {row.seqno} is in the response twice, with different contents")

    def pop(self) -> Row:
        """Remove the row with the smallest SeqNo."""
        row = self._rows.pop(heapq.heappop(self._order))
        self._bytes -= _size(row)
        return row


def _size(row: Row) -> int:
    return len(row.timestamp) + len(row.key) + len(row.record) + limits.CHANGE_OVERHEAD_BYTES


class SkippedSeqNos:
    """Ranges of SeqNos below the position that no row had. The oldest ranges are forgotten."""

    def __init__(self, ranges_max: int = limits.FOLLOW_GAPS_REMEMBERED) -> None:
        self._ranges_max = ranges_max
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Add a range above all others."""
        self._firsts.append(first)
        self._lasts.append(last)
        if len(self._firsts) >= 2 * self._ranges_max:  # seldom, because it copies the lists
            del self._firsts[: -self._ranges_max], self._lasts[: -self._ranges_max]

    def __contains__(self, seqno: int) -> bool:
        index = bisect.bisect_right(self._firsts, seqno) - 1
        return index >= 0 and seqno <= self._lasts[index]
