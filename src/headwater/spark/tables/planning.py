"""The driver's side of a source: how far the table has come, whether it still is the same, and what a batch reads.

It works against any server of the State Transfer Protocol. Where SeqNos count rows without gaps, equal ranges of them
are equal shares. Where they have gaps, only as many tasks are made as were asked for, and rows are counted by reading
them.
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


class Tail(msgspec.Struct, frozen=True):
    """Where a table ends, and what the server said of it."""

    place: RowPlace
    table_type: TableType
    gapless: bool


class TablePlanner:
    """Knows the table of one query. Lives in the driver, for as long as the query does."""

    def __init__(self, options: TableReadOptions, client: Client) -> None:
        self._options = options
        self._table = client.table(options.table)
        self._reported: set[str] = set()  # losses that were logged

    # How far it has come

    def tail(self) -> Tail:
        """The end of the table as it is now, by its last row: servers need not give the SeqNo in a header."""
        last: Row | None = None
        with self._table.rows(since_id=-1) as reader:
            for rows in reader.batches():
                last = rows[-1] if rows else last
                if rows and reader.last_seqno is None:
                    break  # a server that does not say where the table ends may hold the answer open
        if reader.table_type is None:
            raise ProtocolError("the server did not say what the table is")
        if last is None and reader.last_seqno and (last := self._row(reader.last_seqno)) is None:
            raise MissingRowError(f"the table ends with row {reader.last_seqno}, which the server does not serve")
        place = BEGINNING if last is None else place_after(last)
        return Tail(place, reader.table_type, reader.gapless)

    def find_tail(self) -> Tail | None:
        """The same; None if the table is gone, which is a loss."""
        try:
            return self.tail()
        except (StreamNotFoundError, StreamGoneError) as error:
            self._report_loss(f"the table is gone: {error}")
            return None

    def place_at(self, seqno: int) -> RowPlace:
        row = self._row(seqno)
        return RowPlace(seqno) if row is None else place_after(row)

    def _row(self, seqno: int) -> Row | None:
        if seqno < 1:
            return None
        with self._table.rows(since_id=seqno - 1, until_id=seqno) as reader:
            return next(iter(reader), None)

    def start(self, tail: Tail) -> RowPlace:
        """Where startingSeqNo is: after the row before it."""
        wanted = self._options.starting
        if isinstance(wanted, str):
            return BEGINNING if wanted == EARLIEST else tail.place
        if wanted > tail.place.seqno + 1:
            raise OptionError(f"startingSeqNo is {wanted}, and the table ends at {tail.place}")
        return self.place_at(wanted - 1)

    def end(self, tail: Tail) -> RowPlace:
        wanted = self._options.ending
        if isinstance(wanted, str) or wanted == tail.place.seqno:
            return tail.place
        if wanted > tail.place.seqno:
            raise OptionError(f"endingSeqNo is {wanted}, and the table ends at {tail.place}")
        return self.place_at(wanted)

    # Whether it is the same

    def _has(self, place: RowPlace, tail: Tail) -> bool:
        """Whether what was read up to a place still is in the table.

        An answer that lacks it is asked for again: a replica may lag behind. A row that is another one settles it.
        """
        for wait_s in limits.SPARK_RECHECKS_S:
            if (found := self._looks_the_same(place, tail)) is not None:
                return found
            time.sleep(wait_s)
            tail = self.tail()
        return bool(self._looks_the_same(place, tail))

    def _looks_the_same(self, place: RowPlace, tail: Tail) -> bool | None:
        """None if rows are lacking."""
        if place == tail.place or place == BEGINNING:
            return True
        if place.seqno > tail.place.seqno:
            return None
        if place.row is None:
            return True
        row = self._row(place.seqno)
        if row is None:
            return None if tail.gapless else True  # where gaps are legal, a row may be compacted away
        return place_after(row) == place

    def _report_loss(self, what: str) -> None:
        told = f"{self._table.url}: {what}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{told}; set failOnDataLoss to false to go on with what there is now")
        if told not in self._reported:
            self._reported.add(told)
            log.warning("%s", told)

    def _same_start(self, start: RowPlace, tail: Tail) -> RowPlace:
        """Where to read on: where the query stopped, or at the beginning of a table that is another one."""
        if self._has(start, tail):
            return start
        self._report_loss(f"the table is not the one that was read up to {start}: it now ends at {tail.place}")
        return BEGINNING

    # What a batch reads

    def advance(self, start: RowPlace, tail: Tail, *, limited: bool) -> RowPlace:
        """Where a batch that begins at `start` ends: at the table's end, or where a limit is reached."""
        if start == tail.place:
            return start
        begin = self._same_start(start, tail)
        if begin == start and start.seqno >= tail.place.seqno:
            return start
        most = self._options.rows_max
        if most is None or not limited:
            return tail.place
        if not tail.gapless:
            return self._counted(begin, tail, most)
        if begin.seqno + most >= tail.place.seqno:
            return tail.place
        return self.place_at(begin.seqno + most)

    def _counted(self, begin: RowPlace, tail: Tail, most: int) -> RowPlace:
        with self._table.rows(since_id=begin.seqno, until_id=tail.place.seqno) as reader:
            last = collections.deque(itertools.islice(reader, most), maxlen=1)
        return place_after(last[0]) if last else tail.place

    def partitions(self, start: RowPlace, end: RowPlace) -> list[RowRange]:
        """The ranges of a batch, in order, for as many tasks as the options ask for or the rows are worth."""
        if start == end:
            return []
        tail = self.find_tail()
        if tail is None:
            return []
        if not self._has(end, tail):
            self._report_loss(f"the table is not the one that had rows up to {end}: it now ends at {tail.place}")
            return []
        begin = self._same_start(start, tail)
        count = end.seqno - begin.seqno
        options = self._options
        wanted = math.ceil(count / options.partition_rows) if tail.gapless else 1
        wanted = min(count, max(options.partitions_min, min(wanted, limits.SPARK_PARTITIONS_MAX)))
        edges = [begin.seqno + count * number // wanted for number in range(wanted + 1)] if count > 0 else []
        return [RowRange(tail.table_type, tail.gapless, *edge) for edge in itertools.pairwise(edges)]
