"""The columns of the tables of `materialize`, and of the events that are merged into them."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

TIME = pa.timestamp("us", tz="UTC")

_PLACE = [
    pa.field("offset", pa.string()),
    pa.field("incarnation", pa.int64()),
    pa.field("order", pa.int64()),
    pa.field("updated_at", TIME),
]
_CUTS = pa.schema(
    [
        ("stream", pa.string()),
        ("incarnation", pa.int64()),
        ("order", pa.int64()),
        ("at", TIME),
        ("is_new", pa.bool_()),
    ]
)
BUCKET = "_bucket"
CURRENT = "is_current"
RESET = "reset"
JOB, NUMBER = "_job", "_batch"  # of the batch that added a kept event
OTHER = "other"  # in place of a control: an event that changes nothing and only shows that its stream exists


class Layout(msgspec.Struct, frozen=True):
    """The columns of a table. `payload` is the event's key and the value, as text or as the columns of a schema."""

    payload: pa.Schema
    keys: tuple[str, ...] = ("key",)
    sequence: pa.DataType | None = None  # the type of `sequence_by`; None: events have the order of their stream
    is_history: bool = False
    tracked: tuple[str, ...] | None = None  # columns whose changes add a row to the history; None: every event adds one

    @property
    def identity(self) -> tuple[str, ...]:
        return ("stream", "type", *self.keys)

    @property
    def row_key(self) -> tuple[str, ...]:
        """The columns that identify a row of the table."""
        return (*self.identity, "incarnation", "valid_from_order") if self.is_history else self.identity

    @property
    def events(self) -> pa.Schema:
        """The columns of the changes of a batch, including deletes."""
        return pa.schema([*self._entity, *_PLACE, *self._sequence, pa.field("deleted", pa.bool_()), *self._added_by])

    @property
    def rows(self) -> pa.Schema:
        """The table itself, without the bucket."""
        if not self.is_history:
            return pa.schema([*self._entity, *_PLACE, *self._sequence])
        bound = self.sequence or TIME
        return pa.schema(
            [
                *self._entity,
                *_PLACE,
                pa.field("valid_from", bound),
                pa.field("valid_to", bound),
                pa.field("valid_from_order", pa.int64()),
                pa.field("valid_to_order", pa.int64()),
                pa.field(CURRENT, pa.bool_()),
            ]
        )

    @property
    def remembered(self) -> pa.Schema:
        """The columns of events that are not in the table and are kept for late events: deletes, and in a history also
        values that were replaced without a new row. Each has the batch that added it."""
        if self.is_history:
            return self.events
        kept = [field for field in self._entity if field.name in (*self.identity, BUCKET)]
        place = [pa.field("incarnation", pa.int64()), pa.field("order", pa.int64())]
        return pa.schema([*kept, *place, *self._sequence, *self._added_by])

    @property
    def cuts(self) -> pa.Schema:
        """The columns of cuts: where a stream was reset or created again."""
        return _CUTS

    @property
    def _entity(self) -> list[pa.Field]:
        return [pa.field("stream", pa.string()), pa.field("type", pa.string()), *self.payload]

    @property
    def _sequence(self) -> list[pa.Field]:
        return [] if self.sequence is None else [pa.field("sequence", self.sequence)]

    @property
    def _added_by(self) -> list[pa.Field]:
        """Null for events of the batch that is merged."""
        return [] if self.sequence is None else [pa.field(JOB, pa.string()), pa.field(NUMBER, pa.int64())]


def changes(rows: pa.Table) -> pa.Table:
    """The events that change an entity, without bad ones and controls."""
    return rows.filter(pc.and_(pc.is_null(rows.column("bad")), pc.is_null(rows.column("control"))))


def aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a schema: missing columns are null, others are dropped."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
