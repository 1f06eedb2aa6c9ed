"""Decodes the messages of a response to columns."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, UnsetType
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.client.columns.cutting import ends_of
from headwater.client.columns.texts import check_text, checked_text_column, sizes, text_column, texts
from headwater.protocol.state.events import BadEvent, ChangeEvent, ControlEvent, EventDecoder, split_messages
from headwater.spark.options import BadEvents, StateReadOptions
from headwater.spark.values import TypedDecoder, ValueDecoder

VALUES = ("value", "old_value")  # columns whose type the user chooses
_encode = msgspec.json.Encoder().encode


class ColumnDecoder(Protocol):
    """Decodes the messages of a response to columns."""

    def decode_array(self, text: bytes | bytearray, /) -> Any: ...


class Values:
    """Messages as JSON text, which Spark can parse."""

    def __init__(self, value: pa.DataType, sized: bool = False, *, is_checked: bool = False) -> None:
        """`is_checked`: the server has checked the messages when they were appended, so that they need no parser."""
        self._value = value
        self._sized = sized
        self._column = checked_text_column if is_checked else text_column

    def decode_array(self, text: bytes | bytearray) -> pa.RecordBatch:
        """The column `value` and, if requested, `size`: the bytes of each message, including the comma."""
        messages = self._column(text)
        columns = {"value": messages if messages.type == self._value else messages.cast(self._value)}
        if self._sized:
            columns["size"] = pc.add(pc.binary_length(messages).cast(pa.int64()), 1)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class Events:
    """Messages as state events."""

    def __init__(
        self, schema: StructType, options: StateReadOptions, *, sized: bool = False, is_checked: bool = False
    ) -> None:
        self._decoder = EventDecoder(msgspec.Raw)
        arrow = to_arrow_schema(schema, timezone="UTC")
        self._kinds = {name: arrow.field(name).type for name in arrow.names if name in _EVENT_COLUMNS}
        self._by_schema: dict[str, ValueDecoder | TypedDecoder] = {}
        for field in schema.fields:
            if isinstance(field.dataType, StructType):
                decoder = TypedDecoder if options.is_by_type and field.name == "value" else ValueDecoder
                self._by_schema[field.name] = decoder(field.dataType, self._kinds[field.name])
        self._sized = sized
        self._is_checked = is_checked  # as in `Values`
        self._options = options
        self._types = options.types  # the types to decode; None: all
        self._messages = options.bad_events is BadEvents.KEEP_MESSAGES  # whether all events have the column `message`

    def decode_array(self, text: bytes | bytearray) -> pa.RecordBatch:
        """Columns of events, `size` as in `Values`, `wanted` if types are given, and for bad events `bad` with the
        reason and `message` with the text."""
        check_text(text)
        events = self._decoder.decode_array(text)
        are_changes = set(map(type, events)) <= {ChangeEvent}  # the usual case, which is decoded faster
        reasons: list[str | None] = [None] * len(events) if are_changes else list(map(_reason, events))
        operations = list(map(_OPERATION, events)) if are_changes else []
        has_deletes = "delete" in set(operations)  # only deletes may have no value
        keeps_values = self._options.delete_values
        has_values = not has_deletes or (keeps_values and UnsetType not in set(map(type, map(_VALUE, events))))
        is_plain = are_changes and has_values
        columns = {
            name: _column_of(operations, self._kinds[name])
            if are_changes and name == "operation"
            else self._column(name, events, reasons, are_changes, is_plain)
            for name in self._kinds
        }
        if keeps_values and any(reasons):  # the value of a delete never makes it a bad event
            reasons = [None if _is_delete(event) else reason for event, reason in zip(events, reasons, strict=True)]
        has_messages = self._messages or any(reasons)
        ends = ends_of(text) if self._sized and self._is_checked else None
        messages = split_messages(text) if (self._sized and ends is None) or has_messages else []
        if self._sized:
            columns["size"] = pa.array(sizes(messages) if ends is None else np.diff(ends, prepend=0))
        if self._types is not None:
            columns["wanted"] = pa.array([self._is_wanted(event) for event in events], pa.bool_())
        columns["bad"] = pa.array(reasons, pa.string())
        if has_messages:
            pairs = zip(messages, reasons, strict=True)
            originals = [bytes(message) if self._messages or reason else None for message, reason in pairs]
            columns["message"] = pa.array(originals, pa.binary())
        return pa.RecordBatch.from_pydict(columns)

    def _column(
        self, name: str, events: list[Any], reasons: list[str | None], are_changes: bool, is_plain: bool
    ) -> pa.Array:
        """`is_plain`: the values of all events are used unchanged."""
        if are_changes and name == "control":
            return pa.nulls(len(events), self._kinds[name])
        if are_changes and name == "type":
            return _column_of(list(map(_TYPE, events)), self._kinds[name])
        if are_changes and name == "key":
            return pa.array(list(map(_KEY, events)), self._kinds[name])
        values = list(map(self._getter(name, is_plain), events))
        if self._types is not None and name in VALUES:
            values = [value if self._is_wanted(event) else None for value, event in zip(values, events, strict=True)]
        decoder = self._by_schema.get(name)
        if decoder is None:
            return texts(values).cast(self._kinds[name]) if name in VALUES else pa.array(values, self._kinds[name])
        if isinstance(decoder, TypedDecoder):
            return decoder.column(list(map(_EVENT_COLUMNS["type"], events)), values, reasons)
        is_checked = name == "value"  # an invalid old value does not make an event bad
        return decoder.column(values, reasons if is_checked else [None] * len(values))

    def _getter(self, name: str, is_plain: bool) -> Any:
        if name == "value" and is_plain:
            return _VALUE
        return _any_value if name == "value" and self._options.delete_values else _EVENT_COLUMNS[name]

    def _is_wanted(self, event: Any) -> bool:
        """Includes control events, which concern all types, and bad events, which are never left out silently."""
        return type(event) is not ChangeEvent or event.type in (self._types or ())


def _reason(event: Any) -> str | None:
    return event.reason if type(event) is BadEvent else None


def _text(value: Any) -> str | None:
    """A field of any type: text unchanged, anything else as JSON."""
    if value is UNSET or value is None:
        return None
    return value if isinstance(value, str) else _encode(value).decode()


def _column_of(texts: list[str], kind: pa.DataType) -> pa.Array:
    """A column of texts that usually are all the same."""
    if len(set(texts)) == 1:
        return pa.repeat(pa.scalar(texts[0], kind), len(texts))
    return pa.array(texts, kind)


def _raw(value: Any) -> msgspec.Raw | None:
    return None if value is UNSET else value


def _has_value(event: Any) -> bool:
    return type(event) is ChangeEvent and event.headers.operation != "delete"


def _is_delete(event: Any) -> bool:
    return type(event) is ChangeEvent and event.headers.operation == "delete"


def _any_value(event: Any) -> msgspec.Raw | None:
    return _raw(event.value) if type(event) is ChangeEvent else None


def _value(event: Any) -> msgspec.Raw | None:
    return _raw(event.value) if _has_value(event) else None


_EVENT_COLUMNS: dict[str, Any] = {
    "type": lambda event: event.type if type(event) is not ControlEvent else None,
    "key": lambda event: event.key if type(event) is not ControlEvent else None,
    "operation": lambda event: event.headers.operation if type(event) is ChangeEvent else None,
    "value": _value,
    "old_value": lambda event: _raw(event.old_value) if type(event) is ChangeEvent else None,
    "txid": lambda event: _text(event.headers.txid) if type(event) is ChangeEvent else None,
    "timestamp": lambda event: _text(event.headers.timestamp) if type(event) is ChangeEvent else None,
    "control": lambda event: event.headers.control if type(event) is ControlEvent else None,
    "control_offset": lambda event: _text(event.headers.offset) if type(event) is ControlEvent else None,
}

# The fields of an event that is known to be a change
_TYPE, _KEY, _VALUE = attrgetter("type"), attrgetter("key"), attrgetter("value")
_OPERATION = attrgetter("headers.operation")
