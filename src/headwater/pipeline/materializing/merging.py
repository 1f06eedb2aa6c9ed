"""Merges the events of a batch into the rows of a table, as Arrow tables, whole columns at a time.

An event is ordered in its stream by the stream's incarnation and by its order. A cut is where a stream is reset or
created again. The events between two cuts are an epoch. Events before a cut never affect those after it.

Within an epoch the last event of an entity counts: the last in the stream or, if the user gives a sequence, the one
with the greatest sequence. Of two events with the same sequence the first one in the stream counts. The current state
is that event, unless it is a delete. The history has a row for each event except deletes, which ends at the next event.

With a sequence, events may be late. Earlier deletes then matter, so they are kept. The history also keeps values that
were replaced in their row because no tracked column had changed, because a late event may belong between them.

A batch is merged again after a crash between the commit of the kept events and that of the table. Kept events have the
batch that added them, and those of this batch are left out, so it is merged with what was kept before it. Kept events
that this batch removed do not matter: events of the batch or rows of the table have replaced them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.materializing.layout import CURRENT, Layout, aligned

Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

_REMEMBERED, _ROWS, _EVENTS = 0, 1, 2  # where a candidate comes from, in the order of arrival


class Merged(msgspec.Struct, frozen=True):
    """The content of the tables after a batch. In a history without a sequence, only closed rows of this batch."""

    rows: pa.Table
    remembered: pa.Table
    rows_changed: bool
    remembered_changed: bool


def merge(
    layout: Layout,
    rows: pa.Table,
    remembered: pa.Table,
    events: pa.Table,
    cuts: pa.Table,
    lives: Sequence[tuple[str, int, int]] = (),
) -> Merged:
    """Apply events to `rows`, which must have all rows of the entities that the events change.

    A history without a sequence needs the current rows only. `cuts` has the last cut of each stream before the batch,
    and the cuts of the batch. `lives` has numbers that replace incarnations in streams where these do not increase.
    """
    if lives:
        merged = merge(layout, *(_renumbered(part, lives) for part in (rows, remembered, events, cuts)))
        back = [(stream, life, number) for stream, number, life in lives]
        rows, remembered = _renumbered(merged.rows, back), _renumbered(merged.remembered, back)
        return msgspec.structs.replace(merged, rows=rows, remembered=remembered)
    if layout.is_history:
        return _History(layout, rows, remembered, events, cuts).merged()
    return _merge_current(layout, rows, remembered, events, cuts)


def _renumbered(rows: pa.Table, lives: Sequence[tuple[str, int, int]]) -> pa.Table:
    before = after = rows.column("incarnation")
    for stream, life, number in lives:
        is_it = pc.and_(pc.equal(rows.column("stream"), stream), pc.equal(before, life))
        after = pc.if_else(is_it, pa.scalar(number, pa.int64()), after)
    place = rows.schema.get_field_index("incarnation")
    return rows.set_column(place, rows.schema.field(place), after)


def _merge_current(layout: Layout, rows: pa.Table, remembered: pa.Table, events: pa.Table, cuts: pa.Table) -> Merged:
    schema = layout.events
    parts = [
        _flagged(aligned(remembered, schema), deleted=True),
        _flagged(aligned(rows, schema), deleted=False),
        aligned(events, schema),
    ]
    candidates, source = _candidates(parts)
    epochs = _Epochs(cuts, candidates, "order")
    is_live = epochs.number == epochs.count
    if not is_live.all():
        candidates, source = candidates.filter(pa.array(is_live)), source[is_live]
    winners = _last(_ids(candidates, layout.identity), _ranks(candidates), _arrival(candidates, source))
    won, won_from = candidates.take(pa.array(winners)), source[winners]
    deleted = _flags(won, "deleted")
    kept = won.filter(pa.array(~deleted)).select(layout.rows.names)
    noted = aligned(
        won.filter(pa.array(deleted if layout.sequence is not None else deleted & False)), layout.remembered
    )
    is_new = won_from == _EVENTS
    return Merged(
        kept,
        noted,
        rows_changed=bool((is_new & ~deleted).any()) or kept.num_rows != rows.num_rows,
        remembered_changed=layout.sequence is not None
        and (bool((is_new & deleted).any()) or noted.num_rows != remembered.num_rows),
    )


class _History:
    """Events in the order in which they apply, each with the row that it starts or continues."""

    def __init__(self, layout: Layout, rows: pa.Table, remembered: pa.Table, events: pa.Table, cuts: pa.Table) -> None:
        self._layout = layout
        self._frozen, self._remembered = rows.slice(0, 0), remembered
        if layout.sequence is not None and cuts.num_rows:
            is_over = _Epochs(cuts, rows, "valid_from_order").is_over
            self._frozen, rows = rows.filter(pa.array(is_over)), rows.filter(pa.array(~is_over))
            is_over = _Epochs(cuts, remembered, "order").is_over
            self._remembered = remembered.filter(pa.array(~is_over))
        self._dropped = remembered.num_rows - self._remembered.num_rows
        candidates, source = _candidates(
            [self._as_candidates(self._remembered), self._as_candidates(rows), self._as_candidates(events)]
        )
        epochs = _Epochs(cuts, candidates, "valid_from_order")
        if layout.sequence is None:
            epochs.put_last(source == _ROWS)
        self._cut_streams = bool(((source == _ROWS) & epochs.has_new).any())
        ids, ranks = _ids(candidates, layout.identity), _ranks(candidates)
        arrival = _arrival(candidates, source)
        ranks = arrival if ranks is None else ranks
        order = np.lexsort((arrival, ranks, epochs.number, ids))
        entity = _differs(ids[order]) | _differs(epochs.number[order])
        order = order[entity | _differs(ranks[order])]  # of events with the same sequence, the first one counts
        self._entity = _differs(ids[order]) | _differs(epochs.number[order])
        self._events = candidates.take(pa.array(order))
        self._source = source[order]
        self._deleted = _flags(self._events, "deleted")
        self._epochs = epochs.taken(order)

    def _as_candidates(self, part: pa.Table) -> pa.Table:
        """Add the start of the history row: of the row itself, or of the row that an event would start."""
        if CURRENT in part.column_names:
            part = _flagged(part, deleted=False)
            if self._layout.sequence is not None:
                part = part.append_column("sequence", part.column("valid_from"))
        else:
            begin = part.column("updated_at" if self._layout.sequence is None else "sequence")
            part = part.append_column("valid_from", begin).append_column("valid_from_order", part.column("order"))
        schema = self._layout.events
        bounds = [self._layout.rows.field(name) for name in ("valid_from", "valid_from_order")]
        return aligned(part, pa.schema([*schema, *bounds]))

    def merged(self) -> Merged:
        goes_on = self._goes_on()
        firsts = np.flatnonzero(~goes_on)
        lasts = np.append(firsts[1:], len(goes_on)) - 1
        lengths = lasts - firsts + 1
        has_row = ~self._deleted[firsts]
        rows = self._rows(firsts[has_row], lasts[has_row])
        remembered = self._remembered
        if self._layout.sequence is not None:
            hidden = (self._deleted | np.repeat(lengths > 1, lengths)) & (self._source != _REMEMBERED)
            added = aligned(self._events.filter(pa.array(hidden)), self._layout.remembered)
            remembered = pa.concat_tables([remembered, added])
            return Merged(
                pa.concat_tables([self._frozen.select(rows.column_names), rows]),
                remembered,
                rows_changed=self._is_changed,
                remembered_changed=bool(added.num_rows or self._dropped),
            )
        return Merged(rows, remembered, rows_changed=self._is_changed, remembered_changed=False)

    @property
    def _is_changed(self) -> bool:
        return self._cut_streams or bool((self._source == _EVENTS).any())

    def _goes_on(self) -> Flags:
        """Whether an event continues the row of the previous event: neither is a delete, and no tracked column
        changed."""
        tracked = self._layout.tracked
        count = len(self._entity)
        if tracked is None or not count:
            return np.zeros(count, np.bool_)
        same = ~self._entity & ~self._deleted
        same[1:] &= ~self._deleted[:-1]
        for name in tracked:
            column = self._events.column(name).combine_chunks()
            before, after = column.slice(0, count - 1), column.slice(1)
            both_null = pc.and_(pc.is_null(before), pc.is_null(after))
            equal = pc.or_(both_null, pc.fill_null(pc.equal(before, after), False))
            same[1:] &= equal.to_numpy(zero_copy_only=False)
        return same

    def _rows(self, firsts: Numbers, lasts: Numbers) -> pa.Table:
        count = self._events.num_rows
        following = lasts + 1
        has_next = following < count
        has_next[has_next] = ~self._entity[following[has_next]]
        cut, is_cut = self._epochs.closing(lasts)
        is_cut &= ~has_next
        next_index = pa.array(np.where(has_next, following, 0), mask=~has_next)
        cut_index = pa.array(np.where(is_cut, cut, 0), mask=~is_cut)
        first_index, last_index = pa.array(firsts), pa.array(lasts)
        at = self._epochs.cuts.column("at").take(cut_index)
        columns = {
            "incarnation": self._events.column("incarnation").take(first_index),
            "valid_from": self._events.column("valid_from").take(first_index),
            "valid_from_order": self._events.column("valid_from_order").take(first_index),
            "valid_to": self._events.column("valid_from").take(next_index),
            "valid_to_order": pc.coalesce(
                self._events.column("valid_from_order").take(next_index),
                self._epochs.cuts.column("order").take(cut_index),
            ),
            CURRENT: pa.array(~has_next & ~is_cut),
        }
        if self._layout.sequence is None:
            columns["valid_to"] = pc.if_else(pa.array(has_next), columns["valid_to"], at)
        values = self._events.take(last_index)
        arrays = [
            columns.get(name, values.column(name) if name not in columns else None) for name in self._layout.rows.names
        ]
        return pa.Table.from_arrays(arrays, schema=self._layout.rows)


class _Epochs:
    """The epoch of each row of a table, in its stream."""

    def __init__(self, cuts: pa.Table, rows: pa.Table, order: str) -> None:
        keys = [("stream", "ascending"), ("incarnation", "ascending"), ("order", "ascending")]
        self.cuts = cuts.take(pc.sort_indices(cuts, keys))
        count = rows.num_rows
        streams = self.cuts.column("stream").combine_chunks().dictionary_encode()
        of_cut = streams.indices.to_numpy().astype(np.int64)
        size = len(streams.dictionary) + 1  # the last one is for streams without cuts
        indexes = pc.index_in(rows.column("stream"), value_set=streams.dictionary)
        self._stream = pc.fill_null(indexes, size - 1).to_numpy().astype(np.int64)
        self._starts = np.searchsorted(of_cut, np.arange(size))
        total = np.bincount(of_cut, minlength=size)
        fresh = np.bincount(of_cut[_flags(self.cuts, "is_new")], minlength=size)
        self.count = total[self._stream]
        self.has_new = fresh[self._stream] > 0
        self._old = (total - fresh)[self._stream]
        self.number = np.zeros(count, np.int64)
        if len(of_cut) and count:
            places = (
                np.append(np.zeros(len(of_cut)), np.ones(count)),  # a cut is before an event at the same position
                np.append(_numbers(self.cuts, "order"), _numbers(rows, order)),
                np.append(_numbers(self.cuts, "incarnation"), _numbers(rows, "incarnation")),
                np.append(of_cut, self._stream),
            )
            sorted_ = np.lexsort(places)
            before = np.empty(len(sorted_), np.int64)
            before[sorted_] = np.cumsum(sorted_ < len(of_cut))
            self.number = before[len(of_cut) :] - self._starts[self._stream]

    @property
    def is_over(self) -> Flags:
        """Which rows belong to an epoch that had ended before the batch."""
        over: Flags = self.number < self._old
        return over

    def put_last(self, chosen: Flags) -> None:
        """Put the chosen rows, which are current, into the last epoch before the batch."""
        self.number = np.where(chosen, self._old, self.number)

    def taken(self, order: Numbers) -> _Epochs:
        self._stream, self.number, self.count = self._stream[order], self.number[order], self.count[order]
        return self

    def closing(self, chosen: Numbers) -> tuple[Numbers, Flags]:
        """The number of the cut that ends the epoch of each chosen row, and whether there is one."""
        return (self._starts[self._stream] + self.number)[chosen], (self.number < self.count)[chosen]


def _candidates(parts: Sequence[pa.Table]) -> tuple[pa.Table, Numbers]:
    source = np.repeat(np.arange(len(parts)), [part.num_rows for part in parts])
    return pa.concat_tables(parts).combine_chunks(), source


def _ids(rows: pa.Table, columns: Sequence[str]) -> Numbers:
    """A number for each entity."""
    ids, size = np.zeros(rows.num_rows, np.int64), 1
    for name in columns:
        column = pc.dictionary_encode(rows.column(name).combine_chunks(), null_encoding="encode")
        if size * (len(column.dictionary) + 1) >= 2**62:
            distinct, ids = np.unique(ids, return_inverse=True)
            size = len(distinct)
        ids = ids * len(column.dictionary) + column.indices.to_numpy()
        size *= len(column.dictionary) + 1
    return ids


def _ranks(candidates: pa.Table) -> Numbers | None:
    """The rank of each sequence. Equal sequences have equal ranks."""
    if "sequence" not in candidates.column_names:
        return None
    column = pc.rank(candidates.column("sequence").combine_chunks(), tiebreaker="dense")
    ranks: Numbers = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return ranks


def _arrival(candidates: pa.Table, source: Numbers) -> Numbers:
    """The rank of each candidate in the order of arrival."""
    order = np.lexsort((_numbers(candidates, "order"), _numbers(candidates, "incarnation"), source))
    arrival = np.empty(len(order), np.int64)
    arrival[order] = np.arange(len(order))
    return arrival


def _last(ids: Numbers, ranks: Numbers | None, arrival: Numbers) -> Numbers:
    """The event that wins for each entity."""
    order = np.lexsort((arrival, ids)) if ranks is None else np.lexsort((-arrival, ranks, ids))
    is_last = np.append(_differs(ids[order])[1:], True) if len(order) else np.zeros(0, np.bool_)
    last: Numbers = order[is_last]
    return last


def _differs(numbers: Numbers) -> Flags:
    """Whether each number differs from the previous one."""
    return np.append(True, numbers[1:] != numbers[:-1]) if len(numbers) else np.zeros(0, np.bool_)


def _flagged(rows: pa.Table, *, deleted: bool) -> pa.Table:
    flags = pa.repeat(pa.scalar(deleted), rows.num_rows)
    if "deleted" not in rows.column_names:
        return rows.append_column("deleted", flags)
    return rows.set_column(rows.schema.get_field_index("deleted"), "deleted", flags)


def _numbers(rows: pa.Table, name: str) -> Numbers:
    numbers: Numbers = rows.column(name).to_numpy().astype(np.int64)
    return numbers


def _flags(rows: pa.Table, name: str) -> Flags:
    flags: Flags = rows.column(name).combine_chunks().to_numpy(zero_copy_only=False).astype(np.bool_)
    return flags
