"""Following a SURL, without input and output: what to ask for next, and what answers, rows and failures mean.

The caller requests `since_id`, tells of the answer with `begin`, `feed` and `finish`, and of whatever went wrong with
`failed`; then it requests again, until `ended`:

    while not following.ended:
        try:
            ...  # GET surl?since_id={following.since_id}
            following.begin(headers)
            for piece in body:
                deliver(following.feed(piece))
                if following.is_done():
                    break
            wait(following.finish(elapsed_s))
        except HeadwaterError as error:
            back_off(following.failed(error, attempts_max))

The caller may drop an answer at any point: the next `begin` starts anew after the last row that was taken.

Rows that `feed` returns are new and in the order of their SeqNos. Rows at or below the position are repeats and are
dropped; this makes overlapping answers harmless, also those of a server that ignores `since_id`.

| what an answer shows                                     | what follows                                      |
|----------------------------------------------------------|---------------------------------------------------|
| a repeat that differs from the row that was taken        | HistoryChangedError                               |
| a row that was not there when its successor was taken    | RowOrderError or HistoryChangedError              |
| STP-Last-SeqNo below the position                        | asked again, then RowsGoneError                   |
| a gap, where the server promises gapless SeqNos          | asked again from before it, then MissingRowError  |
| an end within a line                                     | asked again, then InvalidRowError                 |
| a line that is no row, or too long                       | InvalidRowError                                   |
| another content type, schema or version                  | ProtocolError or SchemaChangedError               |
| more bytes than a table has, and no new row              | ProtocolError                                     |

"Asked again" is a few times in a row, with growing waits, because a replica may lag behind; a new row, or an answer
without a fault, starts the count anew.

The last rows are remembered by their hashes. A request asks for the last row once more, so that a table that was
deleted and made again is noticed even if it has more rows by then: its deletion looks like any other end of an answer.
A server may hold a request until there is a row, and then answers this one at once. So the last row is not asked for
after an answer that ended at once and had nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater import limits
from headwater.errors import (
    HeadwaterError,
    HistoryChangedError,
    InvalidRowError,
    MissingRowError,
    ProtocolError,
    RowOrderError,
    RowsGoneError,
    SchemaChangedError,
)
from headwater.protocol.streams.headers import parse_closed
from headwater.protocol.tables.content_type import TableType, format_table_type, parse_answer_type
from headwater.protocol.tables.headers import parse_gapless, parse_last_seqno
from headwater.protocol.tables.row_reader import RowReader
from headwater.protocol.tables.rows import Row


class Following:
    """One follower of one table. `position` is the SeqNo of the last row it took.

    `since_id` is where it begins, negative for the last rows; `last_row` is the row at that position, if it is known.
    `table` is the type that the table must have; without it the first answer decides. A `snapshot` ends with the rows
    that the table had at the first answer, and `until_id` with the row of that SeqNo. With `gaps`, gaps are no fault
    even if the server promises none, as in a view that leaves rows out.
    """

    def __init__(
        self,
        since_id: int = 0,
        *,
        until_id: int | None = None,
        snapshot: bool = False,
        gaps: bool = False,
        table: TableType | None = None,
        last_row: Row | None = None,
        repeated_bytes_max: int = limits.FOLLOW_REPEATED_BYTES_MAX,
    ) -> None:
        if abs(since_id) > limits.SEQNO_MAX:
            raise ValueError(f"since_id must be from -(2^63-1) to 2^63-1, got {since_id}")
        self._asked = since_id
        self.position = since_id if since_id >= 0 else None
        self.table = table
        self.last_seqno: int | None = None  # that the last answer named
        self.closed = False
        self._target = until_id
        self._snapshot = snapshot
        self._snapshot_taken = False
        self.ended = until_id is not None and self.position is not None and self.position >= until_id
        self._gaps = gaps
        self._seen: dict[int, int] = {}  # SeqNo and hash of every row that was taken above the floor
        self._floor = max(since_id, 0)
        if last_row is not None:
            self._seen[last_row.seqno] = hash(last_row)
            self.position, self._floor = last_row.seqno, last_row.seqno - 1
        self._repeated_bytes_max = repeated_bytes_max
        self._verify = True  # the last row, if it is remembered
        self._contacted = False
        self._failures = 0  # in a row
        self._doubts = 0  # answers in a row that were asked for again
        self._empty_answers = 0  # in a row, that ended at once
        self._taken = 0  # rows, altogether
        self._start_answer()

    def _start_answer(self) -> None:
        self._reader = RowReader()
        self.gapless = False  # whether the answer promises SeqNos without gaps
        self._new = 0  # rows of this answer
        self._verifying = self.since_id != self.position
        self._repeated_bytes = 0  # since the last new row
        self._fault: HeadwaterError | None = None

    @property
    def since_id(self) -> int:
        """What the next request asks for."""
        if self.position is None:
            return self._asked
        if self._verify and self.position > 0 and self.position in self._seen:
            return self.position - 1
        return self.position

    def is_done(self) -> bool:
        """Whether nothing further of this answer is needed: `finish` comes next."""
        return self.ended or self._fault is not None

    @property
    def up_to_date(self) -> bool:
        """Whether every row was taken that the table had when the answer began, as far as the server says."""
        return self.last_seqno is not None and self.position is not None and self.position >= self.last_seqno

    @property
    def awaits_rows(self) -> bool:
        """Whether rows of a snapshot have yet to come, as far as the server says."""
        return self._snapshot_taken and not self.ended

    # An answer

    def begin(self, headers: Mapping[str, str]) -> None:
        """The headers of an answer with status 200, their names in lower case."""
        self._start_answer()
        self._contacted = True
        table = parse_answer_type(headers.get("content-type"))
        if self.table is None:
            self.table = table
        elif self.table != table:
            raise SchemaChangedError(f"the table was {format_table_type(self.table)} and is {format_table_type(table)}")
        self.last_seqno = parse_last_seqno(headers)
        self.closed = parse_closed(headers)
        self.gapless = not self._gaps and parse_gapless(headers)
        if self.last_seqno is not None:
            self._compare_last(self.last_seqno)

    def _compare_last(self, last_seqno: int) -> None:
        position = self.position
        if position is not None and last_seqno < position and (self._taken or not self._snapshot):
            raise _doubtful(
                RowsGoneError(f"the table ends with row {last_seqno}, and rows up to {position} were read before")
            )
        if self._snapshot and not self._snapshot_taken:
            self._snapshot_taken = True
            self._target = last_seqno if self._target is None else min(self._target, last_seqno)
            self.ended = last_seqno == 0 or (position is not None and position >= self._target)

    def feed(self, piece: bytes) -> list[Row]:
        """The new rows that are complete now. What is wrong after them is raised by `finish`."""
        rows: list[Row] = []
        if self.is_done():
            return rows
        try:
            for row in self._reader.feed(piece):
                if self._take(row):
                    rows.append(row)
                if self.ended:
                    break
        except HeadwaterError as error:
            self._fault = error
        self._repeated_bytes = 0 if rows else self._repeated_bytes + len(piece)
        if self._fault is None and self._repeated_bytes > self._repeated_bytes_max:
            self._fault = ProtocolError(f"an answer of more than {self._repeated_bytes_max} bytes brought no new row")
        return rows

    def _take(self, row: Row) -> bool:
        """Whether the row is new; then it is the position."""
        seqno, position = row.seqno, self.position
        if position is None:
            self._floor = seqno - 1
        elif seqno <= position:
            self._check_repeat(row, position)
            return False
        elif self.gapless and seqno != position + 1:
            raise _doubtful(
                MissingRowError(
                    f"row {position + 1} is missing: row {seqno} follows row {position}, "
                    "and the server promises SeqNos without gaps"
                )
            )
        if self._target is not None and seqno > self._target:
            self.ended = True
            return False
        self.position = seqno
        self.remember(row)
        self._new += 1
        self._taken += 1
        self._doubts = self._failures = 0
        self.ended = seqno == self._target
        return True

    def remember(self, row: Row) -> None:
        """Keep what is needed to tell a repeat of the row from another row."""
        self._seen[row.seqno] = hash(row)
        if len(self._seen) > limits.FOLLOW_ROWS_REMEMBERED:
            self._floor = next(iter(self._seen))
            del self._seen[self._floor]

    def _check_repeat(self, row: Row, position: int) -> None:
        """Rows at or below the floor are not remembered: they count as repeats."""
        if row.seqno <= self._floor:
            return
        known = self._seen.get(row.seqno)
        if known is not None and known != hash(row):
            raise HistoryChangedError(f"row {row.seqno} is not the row that was read before under this SeqNo")
        if known is None and self._new:
            raise RowOrderError(f"row {row.seqno} comes after row {position}")
        if known is None:
            raise HistoryChangedError(f"row {row.seqno} was not there when row {position} was read")

    def finish(self, elapsed_s: float = 0.0) -> float:
        """The end of an answer that took so long: how long to wait before the next request."""
        if self._fault is not None:
            raise self._fault
        if not self.ended:
            self._finish_line()
            self._check_target()
        self._doubts = self._failures = 0
        self._verify = bool(self._new) or not self._verifying or elapsed_s >= limits.FOLLOW_POLL_S
        if self._snapshot:
            self.ended = self.ended or not self._new or self._target is None
        elif self.closed and self.up_to_date:
            self.ended = True
        if self.position is None and self.last_seqno is not None:
            self.position = self._floor = self.last_seqno  # none of the last rows is left, or there were none
        return self._wait_s(elapsed_s)

    def _finish_line(self) -> None:
        try:
            self._reader.finish()
        except InvalidRowError as error:
            raise _doubtful(error) from None

    def _check_target(self) -> None:
        """A snapshot of a table without gaps ends with the row that the server named, not with an empty answer."""
        if self._snapshot and self.gapless and not self._new and self.position is not None and self._target is not None:
            raise _doubtful(
                MissingRowError(
                    f"the table was to have rows up to row {self._target}, and ends after row {self.position}"
                )
            )

    def _wait_s(self, elapsed_s: float) -> float:
        """A server that answers at once, and with nothing new, is asked ever less often."""
        if self._new or elapsed_s >= limits.FOLLOW_POLL_S:
            self._empty_answers = 0
            return 0.0
        if not self._verify and not self._empty_answers:
            return 0.0  # a server that holds requests until there is a row holds the next one
        self._empty_answers += 1
        return min(limits.FOLLOW_POLL_MAX_S, limits.FOLLOW_POLL_S * 2.0 ** min(self._empty_answers - 1, 30))

    # A failure

    def failed(self, error: HeadwaterError, attempts_max: int) -> int:
        """The number of failures in a row, if it makes sense to ask again; raises the error otherwise.

        Before the first answer, and in a snapshot, there are as many attempts as given. After that a follower goes on
        for as long as it takes.
        """
        self._verify = True
        self._failures += 1
        if isinstance(error, ProtocolError) and error.retryable:
            self._doubts += 1
            if self._doubts >= limits.FOLLOW_TRIES_MAX:
                error.retryable = False
        if not error.retryable:
            raise error
        if self._failures >= attempts_max and (self._snapshot or not self._contacted):
            raise error
        return self._failures


def _doubtful(error: ProtocolError) -> ProtocolError:
    """An error that another answer may clear up."""
    error.retryable = True
    return error
