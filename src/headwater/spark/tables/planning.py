"""The driver's side of a source: finds the end of the table, checks that it is still the same, and plans batches.

It works with any STP server. In a gapless table, equal ranges of SeqNos have equal numbers of rows. In other tables,
there are only as many tasks as the options say, and rows are counted by reading them.
"""

from __future__ import annotations

import collections
import itertools
import logging
import math
import time

import msgspec

from headwater import limits
from headwater.client import Client
from headwater.errors import (
    DataLossError,
    MissingRowError,
    OptionError,
    ProtocolError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.rows import Row
from headwater.spark.options import EARLIEST
from headwater.spark.tables.options import TableReadOptions
from headwater.spark.tables.places import BEGINNING, RowPlace, RowRange, place_after

log = logging.getLogger(__name__)


class TableEnd(msgspec.Struct, frozen=True):
    """The end of a table, and its properties."""

    place: RowPlace
    table_type: TableType
    gapless: bool


class TablePlanner:
    """Plans the batches of one query. It lives in the driver as long as the query."""

    def __init__(self, options: TableReadOptions, client: Client) -> None:
        self._options = options
        self._table = client.table(options.table)
        self._reported: set[str] = set()  # losses that were logged

    # The end of the table

    def tail(self) -> TableEnd:
        """The current end of the table, from its last row, because servers need not send the SeqNo in a header."""
        last: Row | None = None
        with self._table.rows(since_id=-1) as reader:
            for rows in reader.batches():
                last = rows[-1] if rows else last
                if rows and reader.last_seqno is None:
                    break  # a server that does not send the last SeqNo may hold the response open
        if reader.table_type is None:
            raise ProtocolError("the response does not have the type of the table")
        if last is None and reader.last_seqno and (last := self._row(reader.last_seqno)) is None:
            raise MissingRowError(f"the last row of the table is {reader.last_seqno}, but the server does not send it")
        place = BEGINNING if last is None else place_after(last)
        return TableEnd(place, reader.table_type, reader.gapless)

    def find_tail(self) -> TableEnd | None:
        """The same; None if the table was deleted, which is a data loss."""
        try:
            return self.tail()
        except (StreamNotFoundError, StreamGoneError) as error:
            self._report_loss(f"the table does not exist any more: {error}")
            return None

    def place_at(self, seqno: int) -> RowPlace:
        row = self._row(seqno)
        return RowPlace(seqno) if row is None else place_after(row)

    def _row(self, seqno: int) -> Row | None:
        if seqno < 1:
            return None
        with self._table.rows(since_id=seqno - 1, until_id=seqno) as reader:
            return next(iter(reader), None)

    def start(self, tail: TableEnd) -> RowPlace:
        """The place of startingSeqNo: after the row before it."""
        wanted = self._options.starting_seq_no
        if isinstance(wanted, str):
            return BEGINNING if wanted == EARLIEST else tail.place
        if wanted > tail.place.seqno + 1:
            raise OptionError(f"startingSeqNo is {wanted}, but the table ends at {tail.place}")
        return self.place_at(wanted - 1)

    def end(self, tail: TableEnd) -> RowPlace:
        wanted = self._options.ending_seq_no
        if isinstance(wanted, str) or wanted == tail.place.seqno:
            return tail.place
        if wanted > tail.place.seqno:
            raise OptionError(f"endingSeqNo is {wanted}, but the table ends at {tail.place}")
        return self.place_at(wanted)

    # Identity of the table

    def _has(self, place: RowPlace, tail: TableEnd) -> bool:
        """Whether the table still has the rows that were read up to a place.

        If rows are missing, the request is repeated, because a replica may lag behind. A different row is conclusive.
        """
        for wait_s in limits.SPARK_RECHECKS_S:
            if (is_same := self._looks_the_same(place, tail)) is not None:
                return is_same
            time.sleep(wait_s)
            tail = self.tail()
        return bool(self._looks_the_same(place, tail))

    def _looks_the_same(self, place: RowPlace, tail: TableEnd) -> bool | None:
        """None if rows are missing."""
        if place == tail.place or place == BEGINNING:
            return True
        if place.seqno > tail.place.seqno:
            return None
        if place.row is None:
            return True
        row = self._row(place.seqno)
        if row is None:
            return None if tail.gapless else True  # if the table is not gapless, the row may have been compacted away
        return place_after(row) == place

    def _report_loss(self, what: str) -> None:
        message = f"{self._table.url}: {what}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message}; set failOnDataLoss to false to continue with the existing rows")
        if message not in self._reported:
            self._reported.add(message)
            log.warning("%s", message)

    def _same_start(self, start: RowPlace, tail: TableEnd) -> RowPlace:
        """Where to continue: where the query stopped, or at the beginning if it is another table."""
        if self._has(start, tail):
            return start
        self._report_loss(f"the table was replaced after it was read up to {start}; it now ends at {tail.place}")
        return BEGINNING

    # The range of a batch

    def advance(self, start: RowPlace, tail: TableEnd, *, limited: bool) -> RowPlace:
        """The end of a batch that starts at `start`: the end of the table, or where a limit is reached."""
        if start == tail.place:
            return start
        begin = self._same_start(start, tail)
        if begin == start and start.seqno >= tail.place.seqno:
            return start
        most = self._options.max_rows_per_trigger
        if most is None or not limited:
            return tail.place
        if not tail.gapless:
            return self._counted(begin, tail, most)
        if begin.seqno + most >= tail.place.seqno:
            return tail.place
        return self.place_at(begin.seqno + most)

    def _counted(self, begin: RowPlace, tail: TableEnd, most: int) -> RowPlace:
        with self._table.rows(since_id=begin.seqno, until_id=tail.place.seqno) as reader:
            last = collections.deque(itertools.islice(reader, most), maxlen=1)
        return place_after(last[0]) if last else tail.place

    def partitions(self, start: RowPlace, end: RowPlace) -> list[RowRange]:
        """The ranges of a batch, in order, for as many tasks as the options say or the number of rows requires."""
        if start == end:
            return []
        tail = self.find_tail()
        if tail is None:
            return []
        if not self._has(end, tail):
            self._report_loss(f"the table was replaced after it had rows up to {end}; it now ends at {tail.place}")
            return []
        begin = self._same_start(start, tail)
        count = end.seqno - begin.seqno
        options = self._options
        wanted = math.ceil(count / options.max_partition_rows) if tail.gapless else 1
        wanted = min(count, max(options.min_partitions, min(wanted, limits.SPARK_PARTITIONS_MAX)))
        edges = [begin.seqno + count * number // wanted for number in range(wanted + 1)] if count > 0 else []
        return [RowRange(tail.table_type, tail.gapless, *edge) for edge in itertools.pairwise(edges)]
