"""Merging equals a naive fold: for any history, in any batches, some of them repeated after a crash."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.pipeline.lake import TableBatch
from headwater.pipeline.materializing.layout import Layout, aligned
from headwater.pipeline.materializing.merging import merge
from headwater.pipeline.materializing.tables import kept_before, kept_by
from tests.unit.pipeline.materializing.oracle import Event, comparable, current, history, table_rows

PAYLOAD = pa.schema([("key", pa.string()), ("value", pa.int64()), ("shade", pa.int64()), ("extra", pa.int64())])

_changes = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(["k", "l", "m"]),
    st.one_of(st.none(), st.integers(0, 99)),
    st.integers(0, 1),
    st.integers(0, 12),
)
_cuts = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["reset", "again"]))
_ends = st.sampled_from(["committed", "crashed", "crashed twice"])
_steps = st.lists(st.one_of(_changes, _changes, _changes, _changes, _cuts, _ends), max_size=60)


class Streams:
    """Places events as a server does, in batches that each end with a commit, or with crashes before it."""

    def __init__(self, steps: list[Any]) -> None:
        self.events: list[Event] = []
        self.batches: list[tuple[list[Event], int]] = []
        self._lives = {"a": 1, "b": 2}
        self._orders = {"a": 0, "b": 0}
        held: list[Event] = []
        for step in [*steps, "committed"]:
            if isinstance(step, str):
                self.batches.append((held, ["committed", "crashed", "crashed twice"].index(step)))
                held = []
            else:
                held.append(self._event(step))
                self.events.append(held[-1])

    def _event(self, step: Any) -> Event:
        stream = step[0]
        if step[1] == "again":
            self._lives[stream] += 2
            self._orders[stream] = 0
            return Event(stream, self._lives[stream], 0, len(self.events), is_cut=True)
        self._orders[stream] += 10
        place = (stream, self._lives[stream], self._orders[stream], len(self.events))
        return Event(*place, is_cut=True) if step[1] == "reset" else Event(*place, *step[1:])


def table(events: list[Event], layout: Layout) -> pa.Table:
    rows = [
        {
            **{
                name: getattr(event, name)
                for name in ("stream", "incarnation", "order", "key", "value", "shade", "extra")
            },
            "type": event.type,
            "updated_at": event.at,
            "sequence": event.sequence,
            "deleted": event.value is None,
        }
        for event in events
        if not event.is_cut
    ]
    names = [name for name in layout.events.names if name != "offset"]
    return aligned(pa.table({name: [row.get(name) for row in rows] for name in names}), layout.events)


def cut_table(events: list[Event], old: dict[str, Event]) -> pa.Table:
    cuts = [(cut, False) for cut in old.values()] + [(event, True) for event in events if event.is_cut]
    rows = [
        {"stream": cut.stream, "incarnation": cut.incarnation, "order": cut.order, "at": cut.at, "is_new": is_new}
        for cut, is_new in cuts
    ]
    return pa.Table.from_pylist(rows, schema=Layout(PAYLOAD).cuts)


def merged_in_batches(layout: Layout, streams: Streams) -> pa.Table:
    """Commit like the job: the kept events first, then the table, with a possible crash in between."""
    rows, remembered = layout.rows.empty_table(), layout.remembered.empty_table()
    closed = rows
    old: dict[str, Event] = {}
    for number, (events, crashes) in enumerate(streams.batches):
        batch = TableBatch("job", number, made_of=number)
        for attempt in range(crashes + 1):
            kept = kept_before(remembered, batch)
            result = merge(layout, rows, kept, table(events, layout), cut_table(events, old))
            if attempt == 0 and result.remembered_changed:
                remembered = kept_by(result.remembered, batch)
        old |= {event.stream: event for event in events if event.is_cut}
        if not result.rows_changed:
            continue
        rows = result.rows
        if layout.is_history and layout.sequence is None:
            is_current = rows.column("is_current")
            closed = pa.concat_tables([closed, rows.filter(pc.invert(is_current))])
            rows = rows.filter(is_current)
    return pa.concat_tables([closed, rows])


_DELETED_THEN_LATE = [("a", "k", 1, 0, 5), ("a", "k", None, 0, 7), "crashed", ("a", "k", 2, 0, 6), "committed"]
_PARTED_LATE = [
    ("a", "k", 1, 0, 1),
    ("a", "k", 3, 0, 3),
    "committed",
    ("a", "k", 2, 1, 2),
    "crashed twice",
    ("a", "reset"),
    ("a", "k", 4, 1, 1),
]


@pytest.mark.parametrize("sequence", [None, pa.int64()], ids=["by order", "by sequence"])
@given(steps=_steps)
@example(steps=_DELETED_THEN_LATE)
@settings(max_examples=60, deadline=None)
def test_current_state(sequence: pa.DataType | None, steps: list[Any]) -> None:
    streams = Streams(steps)
    layout = Layout(PAYLOAD, sequence=sequence)
    expected = current(streams.events, sequenced=sequence is not None)
    assert table_rows(merged_in_batches(layout, streams)) == comparable(expected)


@pytest.mark.parametrize("tracked", [None, ("shade",)], ids=["all", "tracked"])
@pytest.mark.parametrize("sequence", [None, pa.int64()], ids=["by order", "by sequence"])
@given(steps=_steps)
@example(steps=_DELETED_THEN_LATE)
@example(steps=_PARTED_LATE)
@settings(max_examples=60, deadline=None)
def test_history(sequence: pa.DataType | None, tracked: tuple[str, ...] | None, steps: list[Any]) -> None:
    streams = Streams(steps)
    layout = Layout(PAYLOAD, sequence=sequence, is_history=True, tracked=tracked)
    expected = history(streams.events, sequenced=sequence is not None, tracked=tracked is not None)
    assert table_rows(merged_in_batches(layout, streams)) == comparable(expected)
