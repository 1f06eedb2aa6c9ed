"""Cuts: where a stream is reset or created again. Found in the events of a batch and in the table of streams."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import DataLossError
from headwater.pipeline.lake import TableBatch
from headwater.pipeline.materializing.layout import RESET, Layout
from headwater.pipeline.materializing.tables import STREAMS_SCHEMA, Tables


class NewIncarnation(msgspec.Struct, frozen=True, order=True):
    """An incarnation of a stream that was not seen before."""

    stream: str
    incarnation: int
    begin: int  # the first byte that was read of it
    at: datetime | None


class BatchStart(msgspec.Struct, frozen=True):
    """Where a batch starts in a stream."""

    incarnation: int
    position: int


Starts: TypeAlias = Mapping[str, BatchStart]


class Reset(msgspec.Struct, frozen=True, order=True):
    stream: str
    incarnation: int
    order: int
    at: datetime | None


class Cuts(msgspec.Struct, frozen=True):
    """The cuts of streams (resets and new incarnations): the last one before a batch, and those in it."""

    old: tuple[Reset, ...] = ()
    new: tuple[Reset, ...] = ()
    lives: tuple[
        tuple[str, int, int], ...
    ] = ()  # of streams whose incarnations do not increase: numbers in their place

    def table(self, layout: Layout) -> pa.Table:
        rows = [(cut, False) for cut in self.old] + [(cut, True) for cut in self.new]
        names = ("stream", "incarnation", "order", "at")
        columns = {name: [getattr(cut, name) for cut, _ in rows] for name in names}
        return pa.table({**columns, "is_new": [is_new for _, is_new in rows]}, schema=layout.cuts)


class StreamsTable:
    """The incarnations of streams, numbered as they were seen, and the last cut of each stream.

    A fork has a lower incarnation than the stream before it at its path, if its source is older.
    """

    def __init__(self) -> None:
        self.lives: dict[str, dict[int, int]] = {}
        self.cuts: dict[str, tuple[int, int, object]] = {}

    def note(self, rows: pa.Table) -> None:
        ordered = sorted(rows.to_pylist(), key=lambda row: (row["batch"], row["incarnation"]))
        for row in ordered:
            lives = self.lives.setdefault(row["stream"], {})
            lives.setdefault(row["incarnation"], len(lives))
        cuts = [row for row in ordered if row["is_cut"]]
        for row in sorted(cuts, key=lambda row: (self.lives[row["stream"]][row["incarnation"]], row["order"])):
            self.cuts[row["stream"]] = (row["incarnation"], row["order"], row["at"])


def read_streams(tables: Tables, batch: TableBatch) -> StreamsTable:
    """The streams of earlier batches. Rows of this batch, from an attempt that was killed, are ignored."""
    rows = pa.table(tables.streams.open().to_pyarrow_table())
    streams = StreamsTable()
    kept = [row for row in rows.to_pylist() if row["job"] != batch.job or row["batch"] < batch.number]
    streams.note(pa.Table.from_pylist(kept, schema=STREAMS_SCHEMA))
    return streams


def resets(rows: pa.Table) -> list[Reset]:
    events = rows.filter(pc.and_(pc.is_null(rows.column("bad")), pc.equal(rows.column("control"), RESET)))
    columns = (events.column(name).to_pylist() for name in ("stream", "incarnation", "order", "updated_at"))
    return [Reset(*row) for row in zip(*columns, strict=True)]


def new_lives(rows: pa.Table, known: Mapping[str, Mapping[int, int]]) -> list[NewIncarnation]:
    lives = rows.group_by(["stream", "incarnation"]).aggregate([("begin", "min"), ("updated_at", "min")])
    columns = (lives.column(name).to_pylist() for name in ("stream", "incarnation", "begin_min", "updated_at_min"))
    return [NewIncarnation(*row) for row in zip(*columns, strict=True) if row[1] not in known.get(row[0], ())]


def continued(rows: pa.Table, known: Mapping[str, Mapping[int, int]]) -> list[str]:
    """The streams of which there are more events of an incarnation that was seen before."""
    lives = rows.group_by(["stream", "incarnation"]).aggregate([])
    pairs = zip(lives.column("stream").to_pylist(), lives.column("incarnation").to_pylist(), strict=True)
    return sorted({stream for stream, life in pairs if life in known.get(stream, ())})


def check_forward(rows: pa.Table, known: Mapping[str, Mapping[int, int]], starts: Starts) -> None:
    """Refuse events of a known incarnation that are before the start of the batch in their stream.

    The stream is read again, because its server was restored and data loss is accepted. The table has rows of events
    that were lost, and nothing tells them from the others.
    """
    firsts = rows.group_by(["stream", "incarnation"]).aggregate([("order", "min")])
    for stream, life, order in zip(*(firsts.column(n).to_pylist() for n in firsts.column_names), strict=True):
        start = starts.get(stream)
        if start is not None and order < start.position and life in known.get(stream, ()):
            message = f"{stream} was read up to position {start.position}, and is read again from its beginning"
            why = "its server was restored to an earlier state, and the table has rows of events that were lost"
            raise DataLossError(f"{message}: {why}; start with a new table and a new checkpoint")


def joined(lives: Iterable[NewIncarnation]) -> list[NewIncarnation]:
    """Merge the results of many tasks to one row for each incarnation."""
    by_incarnation: dict[tuple[str, int], NewIncarnation] = {}
    for life in lives:
        before = by_incarnation.setdefault((life.stream, life.incarnation), life)
        times = [at for at in (before.at, life.at) if at is not None]
        first = NewIncarnation(life.stream, life.incarnation, min(before.begin, life.begin), min(times, default=None))
        by_incarnation[(life.stream, life.incarnation)] = first
    return sorted(by_incarnation.values(), key=lambda life: (life.stream, life.incarnation))


def cuts_of(
    streams: StreamsTable,
    lives: Iterable[NewIncarnation],
    new_resets: Iterable[Reset],
    continued: Collection[str] = (),
    starts: Starts = MappingProxyType({}),
) -> Cuts:
    """A known stream has a cut where another incarnation starts, unless the batch continues into it from the one
    before: a fork has the offsets of its source up to the point of the fork. Such an incarnation does not start at 0.
    """
    numbered = {stream: dict(known) for stream, known in streams.lives.items()}
    new = list(new_resets)
    for life in lives:
        start = starts.get(life.stream)
        is_there = start is not None and start.incarnation == life.incarnation
        if numbered.get(life.stream) and (life.begin == 0 or not (is_there or life.stream in continued)):
            new.append(Reset(life.stream, life.incarnation, life.begin, life.at))
        continued = {*continued, life.stream}  # a later incarnation in the same batch is that of a fork
        known = numbered.setdefault(life.stream, {})
        known.setdefault(life.incarnation, len(known))
    old = [Reset(stream, *cut) for stream, cut in streams.cuts.items()]  # type: ignore[arg-type]
    lives_by_age = [
        (stream, life, number - len(known))  # negative, as no incarnation is
        for stream, known in numbered.items()
        if list(known) != sorted(known)
        for life, number in known.items()
    ]
    ordered = sorted(new, key=lambda cut: (cut.stream, cut.incarnation, cut.order))
    return Cuts(tuple(old), tuple(ordered), tuple(lives_by_age))


def stream_rows(lives: Iterable[NewIncarnation], cuts: Cuts, batch: TableBatch) -> pa.Table:
    """Rows of the table of streams: what a batch has found."""
    new = [(life.stream, life.incarnation, life.begin, life.at, False) for life in lives]
    new += [(one.stream, one.incarnation, one.order, one.at, True) for one in cuts.new]
    rows = [dict(zip(STREAMS_SCHEMA.names, (*one, batch.job, batch.number), strict=True)) for one in new]
    return pa.Table.from_pylist(rows, schema=STREAMS_SCHEMA)
