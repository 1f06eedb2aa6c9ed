"""The logic of following a table, without I/O: which rows to request, which rows are new, which errors are final.

The caller requests `since_id`, passes the response to `begin`, `feed` and `finish` and any error to `failed`, and
repeats this until `ended`:

    while not following.ended:
        try:
            ...  # GET surl?since_id={following.since_id}
            following.begin(headers)
            for piece in body:
                deliver(following.feed(piece))
                if following.is_done():
                    break
            deliver(following.end())
            wait(following.finish(elapsed_s))
        except HeadwaterError as error:
            back_off(following.failed(error, attempts_max))

The caller may abandon a response at any point: the next `begin` continues after the last row that was taken.

`feed` and `end` return new rows in the order of their SeqNos. Rows at or below the position are repeats and are
dropped, so overlapping responses, and servers that ignore `since_id`, do no harm.

A server may send the rows of a response in any order. A row that continues the position is taken at once. A row after a
gap is held back, because the rows of the gap may follow: in a snapshot until the response ends, otherwise until the
rows of its piece have arrived and, if the response announces a last SeqNo, until that SeqNo has been reached. At most
FOLLOW_WINDOW_ROWS_MAX rows and FOLLOW_WINDOW_BYTES_MAX bytes are held back; above that, the first ones are taken. A row
that arrives after a later one was taken is an error.

| response                                             | result                                            |
|------------------------------------------------------|---------------------------------------------------|
| a repeat that differs from the row that was taken    | HistoryChangedError                               |
| a row that was missing when a later row was taken    | RowOrderError or HistoryChangedError              |
| two different rows with one SeqNo                    | HistoryChangedError                               |
| STP-Last-SeqNo below the position                    | retried, then RowsGoneError                       |
| 410: rows after the position were removed            | OffsetTrimmedError; the caller may `restart`      |
| a gap, if the server promises gapless SeqNos         | retried from before the gap, then MissingRowError |
| an end within a line                                 | retried, then InvalidRowError                     |
| a line that is not a row, or is too long             | InvalidRowError                                   |
| another content type, schema or version              | ProtocolError or SchemaChangedError               |
| too many bytes without a new row                     | ProtocolError                                     |

A request is retried a few times with growing waits, because a replica may lag behind. A new row, or a valid response,
resets the count.

The follower remembers hashes of the last rows, and each request includes the last row. If the table was deleted and
created again, this row differs, even if the new table has more rows. A deletion alone cannot be seen: it looks like any
other end of a response. The last row is not requested if it was removed since, which 410 tells, or after a response
that ended at once with nothing else: a server that holds requests until there is a row would respond at once with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.errors import (
    HeadwaterError,
    HistoryChangedError,
    InvalidRowError,
    MissingRowError,
    OffsetTrimmedError,
    ProtocolError,
    RowOrderError,
    RowsGoneError,
    SchemaChangedError,
)
from headwater.protocol.streams.headers import parse_closed
from headwater.protocol.tables.content_type import TableType, format_table_type, parse_answer_type
from headwater.protocol.tables.headers import parse_first_seqno, parse_gapless, parse_last_seqno
from headwater.protocol.tables.row_window import RowWindow, SkippedSeqNos
from headwater.protocol.tables.rows import Row, RowReader


class TableFollowing:
    """A follower of one table. `position` is the SeqNo of the last row that it took.

    It begins after `since_id`; a negative value means the last rows. `last_row` is the row at that position, if known.
    `table` is the required type of the table; by default it is the type of the first response. A `snapshot` ends with
    the rows that the table had at the first response; `until_id` ends with that row. With `gaps`, gaps are allowed even
    if the server promises none, as in a view that leaves rows out.
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
        self._first_since_id = since_id
        self.position = since_id if since_id >= 0 else None
        self.table = table
        self.last_seqno: int | None = None  # in the last response
        self.closed = False
        self._target = self._until_id = until_id
        self._snapshot = snapshot
        self._snapshot_taken = False
        self.ended = until_id is not None and self.position is not None and self.position >= until_id
        self._gaps = gaps
        self._seen: dict[int, int] = {}  # SeqNo → hash of the rows that were taken above the floor
        self._floor = max(since_id, 0)
        self._skipped = SkippedSeqNos()
        if last_row is not None:
            self._seen[last_row.seqno] = hash(last_row)
            self.position, self._floor = last_row.seqno, last_row.seqno - 1
        self._repeated_bytes_max = repeated_bytes_max
        self._verify = True  # whether to request the last row again
        self._contacted = False
        self._failures = 0  # consecutive
        self._doubts = 0  # consecutive responses that were retried
        self._empty_answers = Streak(Backoff(limits.FOLLOW_POLL_S, limits.FOLLOW_POLL_MAX_S))  # that ended at once
        self._taken = 0  # number of rows
        self.continues_elsewhere = False  # after `continue_after`, until a row is taken
        self._start_answer()

    def _start_answer(self) -> None:
        self._reader = RowReader(lenient=True)
        self._window = RowWindow()
        self._highest = 0  # the largest SeqNo of this response
        self._beyond_bytes = 0  # since the first row after the target
        self.gapless = False  # whether the response promises SeqNos without gaps
        self._new = 0  # rows of this response
        self._verifying = self.since_id != self.position
        self._repeated_bytes = 0  # since the last new row
        self._fault: HeadwaterError | None = None

    @property
    def since_id(self) -> int:
        """The `since_id` of the next request."""
        if self.position is None:
            return self._first_since_id
        if self._verify and self.position > 0 and self.position in self._seen:
            return self.position - 1
        return self.position

    def is_done(self) -> bool:
        """Whether the rest of this response is not needed, so that `finish` can be called."""
        return self.ended or self._fault is not None

    @property
    def up_to_date(self) -> bool:
        """Whether all rows were taken that the table had at the beginning of the response, according to the server."""
        return self.last_seqno is not None and self.position is not None and self.position >= self.last_seqno

    @property
    def awaits_rows(self) -> bool:
        """Whether rows of the snapshot are still missing, according to the server."""
        return self._snapshot_taken and not self.ended and (self._target is None or self._highest < self._target)

    # A response

    def begin(self, headers: Mapping[str, str]) -> None:
        """Start a response with status 200. The names of the headers are in lower case."""
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
        self._skip_trimmed(parse_first_seqno(headers) or 1)
        if self.last_seqno is not None:
            self._compare_last(self.last_seqno)

    def _skip_trimmed(self, first_seqno: int) -> None:
        """A read from the beginning of a trimmed table begins with the first row that is there. Of a compacted table,
        which is not gapless, the last rows of live keys are there before it."""
        is_empty = self.last_seqno is not None and self.last_seqno < first_seqno
        if self.position == 0 and first_seqno > 1 and (self.gapless or is_empty):
            self.position = self._floor = first_seqno - 1

    def _compare_last(self, last_seqno: int) -> None:
        position = self.position
        if position is not None and last_seqno < position and (self._taken or not self._snapshot):
            raise _doubtful(
                RowsGoneError(f"the table ends with row {last_seqno}, but rows up to {position} were read before")
            )
        if self._snapshot and not self._snapshot_taken:
            self._snapshot_taken = True
            self._target = last_seqno if self._target is None else min(self._target, last_seqno)
            self.ended = last_seqno == 0 or (position is not None and position >= self._target)

    def feed(self, piece: bytes) -> list[Row]:
        """The new rows that can be taken after this piece. An error after them is raised by `finish`."""
        rows: list[Row] = []
        if self.is_done():
            return rows
        try:
            self._sort(piece, rows)
            if self._is_sorted():
                self._release(rows)
        except HeadwaterError as error:
            self._fault = error
        self._repeated_bytes = 0 if rows else self._repeated_bytes + len(piece)
        if self._fault is None and self._repeated_bytes > self._repeated_bytes_max:
            self._fault = ProtocolError(f"a response of more than {self._repeated_bytes_max} bytes had no new row")
        return rows

    def end(self) -> list[Row]:
        """The rows that were held back until the response ended. Call it before `finish`."""
        rows: list[Row] = []
        if self.is_done() or self._reader.is_within_row:  # a response that was cut off is requested again
            return rows
        try:
            self._release(rows)
        except HeadwaterError as error:
            self._fault = error
        return rows

    def _sort(self, piece: bytes, rows: list[Row]) -> None:
        """Take the rows of a piece that continue the position, and hold back the others."""
        if self._beyond_bytes:
            self._beyond_bytes += len(piece)
        try:
            for row in self._reader.feed(piece):
                self._arrive(row, rows)
                if self.ended:
                    break
        except InvalidRowError as error:
            self._fault = error  # the rows before it are valid

    def _arrive(self, row: Row, rows: list[Row]) -> None:
        seqno, position, window = row.seqno, self.position, self._window
        if seqno > self._highest:
            self._highest = seqno
        if position is not None and seqno <= position:
            self._check_repeat(row, position)
        elif self._target is not None and seqno > self._target:
            self._beyond_bytes = self._beyond_bytes or 1
        elif not window and position is not None and seqno == position + 1:
            rows.append(self._take(row))
        else:
            window.add(row)
            while window and (window.is_full or (self.position is not None and window.first == self.position + 1)):
                rows.append(self._take(window.pop()))

    def _is_sorted(self) -> bool:
        """Whether to take the rows that are held back, although the response has not ended."""
        if not self._snapshot:
            return self.last_seqno is None or self._highest >= self.last_seqno
        if self._beyond_bytes > limits.FOLLOW_WINDOW_BYTES_MAX:
            return True
        target, window = self._target, self._window  # the last rows, without a gap
        are_last = self.position is None and target is not None and len(window) >= -self._first_since_id
        return are_last and target is not None and window.is_run_to(target)

    def _release(self, rows: list[Row]) -> None:
        while self._window and not self.ended:
            rows.append(self._take(self._window.pop()))
        if self._beyond_bytes:
            self.ended = True

    def _take(self, row: Row) -> Row:
        """Move the position to a row above it, which is not beyond the target."""
        seqno, position = row.seqno, self.position
        if position is None:
            self._floor = seqno - 1
        elif seqno != position + 1:
            if self.gapless:
                raise _doubtful(
                    MissingRowError(
                        f"row {position + 1} is missing: row {seqno} follows row {position}, "
                        "and the server promises SeqNos without gaps"
                    )
                )
            self._skipped.add(position + 1, seqno - 1)
        self.position = seqno
        self.remember(row)
        self._new += 1
        self._taken += 1
        self.continues_elsewhere = False
        self._doubts = self._failures = 0
        self.ended = seqno == self._target
        return row

    def remember(self, row: Row) -> None:
        """Remember the hash of a row, to distinguish a repeat from another row with the same SeqNo."""
        self._seen[row.seqno] = hash(row)
        if len(self._seen) > limits.FOLLOW_ROWS_REMEMBERED:
            self._floor = next(iter(self._seen))
            del self._seen[self._floor]

    def _check_repeat(self, row: Row, position: int) -> None:
        """Check a row at or below the position. Rows at or below the floor count as repeats, unless their SeqNo was
        skipped."""
        if row.seqno <= self._floor and row.seqno not in self._skipped:
            return
        known = self._seen.get(row.seqno)
        if known is not None and known != hash(row):
            raise HistoryChangedError(f"row {row.seqno} differs from the row that was read before with this SeqNo")
        if known is None and self._new:
            raise RowOrderError(f"row {row.seqno} came after row {position}, which was taken without it")
        if known is None:
            raise HistoryChangedError(f"row {row.seqno} was not there when row {position} was read")

    def finish(self, elapsed_s: float = 0.0) -> float:
        """End a response that took `elapsed_s`. Returns the time to wait before the next request."""
        if self._fault is not None:
            raise self._fault
        if not self.ended and self._window and not self._reader.is_within_row:
            raise RuntimeError("rows are held back: call end before finish")
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
            self.position = self._floor = self.last_seqno  # the table has no rows after this one
        return self._wait_s(elapsed_s)

    def _finish_line(self) -> None:
        try:
            self._reader.finish()
        except InvalidRowError as error:
            raise _doubtful(error) from None

    def _check_target(self) -> None:
        """Check that a snapshot of a gapless table has all rows that the server announced."""
        if self._snapshot and self.gapless and not self._new and self.position is not None and self._target is not None:
            raise _doubtful(
                MissingRowError(
                    f"the server announced rows up to {self._target}, but the table ends after row {self.position}"
                )
            )

    def _wait_s(self, elapsed_s: float) -> float:
        """The wait grows while responses end at once without new rows."""
        if self._new or elapsed_s >= limits.FOLLOW_POLL_S:
            self._empty_answers.reset()
            return 0.0
        if not self._verify and not self._empty_answers.failures:
            return 0.0  # a server that holds requests will hold the next one
        return self._empty_answers.fail()

    # Errors

    def resume(self) -> None:
        """Continue after an error that `failed` raised, or after a response that was abandoned: attempts are counted
        anew, and the next request continues after the last row that was taken."""
        self._verify = True
        self._failures = self._doubts = 0

    def has_lost_nothing(self, error: HeadwaterError) -> bool:
        """Whether the refused request was for the last row only to compare it, and all later rows are there. The next
        request is for these."""
        if not isinstance(error, OffsetTrimmedError) or error.first_seqno is None or self.position is None:
            return False
        if self.since_id == self.position or self.position < error.first_seqno - 1:
            return False
        self._verify = False
        return True

    def continue_after(self, seqno: int) -> None:
        """The rows up to a SeqNo were taken in another way. Nothing of them is known here."""
        self.position = self._floor = seqno
        self._seen, self._skipped, self._taken = {}, SkippedSeqNos(), 0
        self.continues_elsewhere = True
        self.resume()

    def restart(self) -> None:
        """Begin again with the first row that is there: rows after the position were removed, or the table is another
        one. Its type must be the same."""
        self.position = self._first_since_id = self._floor = self._taken = 0
        self._seen, self._skipped = {}, SkippedSeqNos()
        self._target, self._snapshot_taken = self._until_id, False
        self.resume()

    def failed(self, error: HeadwaterError, attempts_max: int) -> int:
        """Return the number of consecutive failures if the request can be retried; raise the error otherwise.

        Before the first response, and in a snapshot, there are at most `attempts_max` attempts. After that a follower
        retries without a limit.
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


def is_final(error: HeadwaterError) -> bool:
    """Whether nothing may be read after an error, because later rows would hide it.

    RowsGoneError is not final: if the table is being filled again, the last row is compared with the one that was read.
    """
    final = (HistoryChangedError, RowOrderError, SchemaChangedError)
    return isinstance(error, final) and not isinstance(error, RowsGoneError)


def _doubtful(error: ProtocolError) -> ProtocolError:
    """Mark an error as retryable, because the next response may be valid."""
    error.retryable = True
    return error
