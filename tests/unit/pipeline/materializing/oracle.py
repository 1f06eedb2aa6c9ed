"""The expected result of `materialize`, computed one event after the other."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from headwater.pipeline.materializing.layout import TIME

Row = dict[str, Any]


class Event(msgspec.Struct, frozen=True):
    """A change, or a cut: a reset or, with an order of 0, a new incarnation of the stream."""

    stream: str
    incarnation: int
    order: int
    at: int
    key: str = ""
    value: int | None = None  # None: a delete
    shade: int = 0  # the tracked column of a history that does not track all columns
    sequence: int = 0
    is_cut: bool = False
    type: str = "t"
    extra: int | None = None  # a field that is added to the schema later


def current(events: list[Event], *, sequenced: bool) -> list[Row]:
    """The rows of the current state."""
    rows = []
    for epochs in _by_entity(events).values():
        ordered = _ordered(epochs[-1][0], sequenced=sequenced)
        if ordered and ordered[-1].value is not None:
            rows.append(_entity(ordered[-1]))
    return rows


def history(events: list[Event], *, sequenced: bool, tracked: bool) -> list[Row]:
    rows = []
    for epochs in _by_entity(events).values():
        for in_epoch, cut in epochs:
            open_row: Row | None = None
            for event in _ordered(in_epoch, sequenced=sequenced):
                bound = event.sequence if sequenced else event.at
                if open_row is not None:
                    if tracked and event.value is not None and open_row["shade"] == event.shade:
                        open_row |= {**_entity(event), "incarnation": open_row["incarnation"]}
                        continue
                    open_row |= {"valid_to": bound, "valid_to_order": event.order, "is_current": False}
                open_row = None
                if event.value is not None:
                    open_row = {
                        **_entity(event),
                        "valid_from": bound,
                        "valid_from_order": event.order,
                        "valid_to": None,
                        "valid_to_order": None,
                        "is_current": True,
                    }
                    rows.append(open_row)
            if open_row is not None and cut is not None:
                open_row |= {
                    "valid_to": None if sequenced else cut.at,
                    "valid_to_order": cut.order,
                    "is_current": False,
                }
    return rows


def _entity(event: Event) -> Row:
    return {
        "stream": event.stream,
        "type": event.type,
        "key": event.key,
        "value": event.value,
        "shade": event.shade,
        "extra": event.extra,
        "incarnation": event.incarnation,
        "order": event.order,
        "updated_at": event.at,
    }


def _by_entity(events: list[Event]) -> dict[tuple[str, str, str], list[tuple[list[Event], Event | None]]]:
    """The epochs of each entity: its events in one, and the cut that ends it."""
    entities: dict[tuple[str, str, str], list[tuple[list[Event], Event | None]]] = {}
    for name in {(event.stream, event.type, event.key) for event in events if not event.is_cut}:
        epochs: list[tuple[list[Event], Event | None]] = []
        held: list[Event] = []
        for event in events:
            if event.stream == name[0] and event.is_cut:
                epochs.append((held, event))
                held = []
            elif (event.stream, event.type, event.key) == name:
                held.append(event)
        entities[name] = [*epochs, (held, None)]
    return entities


def _ordered(events: list[Event], *, sequenced: bool) -> list[Event]:
    if not sequenced:
        return events
    first: dict[int, Event] = {}
    for event in events:
        first.setdefault(event.sequence, event)
    return [first[number] for number in sorted(first)]


def comparable(rows: list[Row]) -> list[Any]:
    return sorted(([(name, row[name]) for name in sorted(row)] for row in rows), key=repr)


def table_rows(rows: pa.Table) -> list[Any]:
    times = [name for name in rows.column_names if rows.schema.field(name).type == TIME]
    for name in times:
        number = rows.column_names.index(name)
        rows = rows.set_column(number, name, rows.column(name).cast(pa.int64()))
    return comparable(
        rows.drop_columns([name for name in ("offset", "sequence") if name in rows.column_names]).to_pylist()
    )
