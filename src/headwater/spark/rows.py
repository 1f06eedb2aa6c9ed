"""Converts rows of a DataFrame to messages, for sinks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET
from pyspark.sql.types import BinaryType, DoubleType, FloatType, StringType, StructType, VariantType

from headwater.client.columns.texts import check_text, join
from headwater.errors import InvalidEventError, InvalidPathError, MessageError, SchemaError
from headwater.log.content import ContentKind
from headwater.log.json_framing import split_array
from headwater.protocol.state.events import control_event, parse_event
from headwater.protocol.streams.paths import RESERVED, parse_path, quote_path
from headwater.spark.options import JOURNAL_ROOT, NonFinite
from headwater.spark.values import holds, to_json, variant_json, with_finite

_EVENT = ("type", "key", "operation", "value", "old_value", "txid", "timestamp", "control", "control_offset")
_encode = msgspec.json.Encoder().encode


class MessageEncoder:
    """Converts batches of a schema to targets and messages."""

    def __init__(
        self,
        schema: StructType,
        target: str | None,
        kind: ContentKind,
        *,
        state: bool,
        non_finite: NonFinite = NonFinite.FAIL,
    ) -> None:
        self._target = target
        self._kind = kind
        self._state = state
        self._non_finite = non_finite
        self._fields = {field.name: field.dataType for field in schema.fields}
        if target is not None:
            check_target(target)
        elif not isinstance(self._fields.get("stream"), StringType):
            raise SchemaError("set the option stream, or add a string column stream with the target of each row")
        if state:
            self._check_state()
        elif not isinstance(self._fields.get("value"), (StringType, BinaryType)):
            problem = f"is {self._fields['value'].simpleString()}" if "value" in self._fields else "is missing"
            raise SchemaError(f"the column value {problem}; it must be a string or binary, such as to_json(struct(*))")

    def _check_state(self) -> None:
        if self._kind is not ContentKind.JSON:
            raise SchemaError("state events are JSON: the target must be a stream of application/json")
        for name in ("type", "key", "operation"):
            if not isinstance(self._fields.get(name), StringType):
                raise SchemaError(f"state events need a column {name} of strings")
        for name in ("txid", "timestamp", "control", "control_offset"):
            if name in self._fields and not isinstance(self._fields[name], StringType):
                raise SchemaError(f"the column {name} is {self._fields[name].simpleString()}; it must be a string")
        if "value" not in self._fields:
            raise SchemaError("state events need a column value: JSON text, or a type that can be written as JSON")
        for name in ("value", "old_value"):
            kind = self._fields.get(name)
            if kind is not None and not isinstance(kind, VariantType) and holds(kind, (VariantType,)):
                raise SchemaError(
                    f"the column {name} contains a VARIANT; cast it, or convert the whole column with to_json"
                )

    def encode(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        """Targets with their messages, in the order of the rows."""
        if not batch.num_rows:
            return
        messages = self._events(batch) if self._state else self._values(batch.column("value"))
        if self._target is not None:
            yield self._target, messages
            return
        targets = batch.column("stream")
        if targets.null_count:
            raise SchemaError("a row has no target: the column stream is null")
        encoded = pc.utf8_trim(targets, "/").dictionary_encode()
        for number, target in enumerate(encoded.dictionary.to_pylist()):
            check_target(target)
            yield target, messages.filter(pc.equal(encoded.indices, number))

    def _values(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            raise SchemaError("a row has no value: null cannot be appended")
        messages = column.cast(pa.binary())
        if self._kind is ContentKind.JSON:
            return checked_json(messages)
        if len(messages) and pc.min(pc.binary_length(messages)).as_py() == 0:
            raise SchemaError("a row has an empty value: there is nothing to append")
        return messages

    def _events(self, batch: pa.RecordBatch) -> pa.Array:
        written = [name for name in batch.schema.names if name in _EVENT]
        columns = {name: batch.column(name).to_pylist(maps_as_pydicts="strict") for name in written}
        rows = batch.num_rows
        nothing = [None] * rows

        def cells(name: str) -> list[Any]:
            column: list[Any] = columns.get(name, nothing)
            return column

        for name in ("value", "old_value"):
            if name in columns:
                columns[name] = self._json_cells(name, columns[name])
        texts = [_event(*row) for row in zip(*map(cells, _EVENT), strict=True)]
        return checked_json(pa.array(texts, pa.binary()))

    def _json_cells(self, name: str, cells: list[Any]) -> list[Any]:
        kind = self._fields[name]
        if isinstance(kind, (StringType, BinaryType)):
            messages = pa.array([cell for cell in cells if cell is not None], pa.binary())
            texts = iter(checked_json(messages).to_pylist())
            return [None if cell is None else msgspec.Raw(next(texts)) for cell in cells]
        if isinstance(kind, VariantType):
            return [None if cell is None else msgspec.Raw(variant_json(cell)) for cell in cells]
        if self._non_finite is not NonFinite.NULL and holds(kind, (FloatType, DoubleType)):
            cells = [with_finite(cell, self._non_finite) for cell in cells]
        return [None if cell is None else msgspec.Raw(to_json(cell)) for cell in cells]


def check_target(path: str) -> None:
    """Refuse invalid paths, and paths of the sink's internal streams."""
    try:
        parse_path(quote_path(path))
    except InvalidPathError as error:
        raise SchemaError(f"{path[:200]!r} is not a valid path of a stream: {error}") from None
    if path.partition("/")[0] in (RESERVED, JOURNAL_ROOT):
        raise SchemaError(
            f"streams below {path.partition('/')[0]}/ are internal and cannot be written, got {path[:200]!r}"
        )


def _event(
    kind: str | None,
    key: str | None,
    operation: str | None,
    value: Any,
    old_value: Any,
    txid: str | None,
    timestamp: str | None,
    control: str | None,
    control_offset: str | None,
) -> bytes:
    """Encode one event. It is checked against the State Protocol, except for the value, which can be any JSON."""
    if control is not None:
        if operation is not None:
            raise InvalidEventError(f"a row cannot have both an operation and a control: {operation} and {control}")
        about = {"control": control, **({} if control_offset is None else {"offset": control_offset})}
        control_event(control)  # type: ignore[arg-type]  # raises an error if it is invalid
        return _encode({"headers": about})
    headers: dict[str, str | None] = {"operation": operation}
    if txid is not None:
        headers["txid"] = txid
    if timestamp is not None:
        headers["timestamp"] = timestamp
    event = {"type": kind, "key": key, "value": UNSET if value is None else value, "headers": headers}
    if old_value is not None:
        event["old_value"] = old_value
    if operation not in ("insert", "update", "upsert", "delete") or not kind or not key:
        parse_event({**event, "value": None})  # raises an error that names the invalid field
    if value is None and operation != "delete":
        raise InvalidEventError(f"{operation} of {kind} {key} without a value")
    if value is None:
        del event["value"]
    return _encode(event)


def checked_json(messages: pa.Array) -> pa.Array:
    """Check that each message is one JSON text, and strip white space around it."""
    joined = join(messages, b"\0")  # the byte 0 does not occur in JSON
    try:
        texts = split_array(b"[%b]" % join(messages, b","))
        check_text(joined)
        if len(texts) == len(messages) and b"\0".join(texts) == joined:
            return messages
    except (msgspec.DecodeError, MessageError):
        pass
    return pa.array([_checked_one(number, text) for number, text in enumerate(messages.to_pylist())], pa.binary())


def _checked_one(number: int, text: bytes) -> bytes:
    try:
        [message] = split_array(b"[" + text + b"]")
        text.decode()
    except ValueError as error:
        shown = text[:80].decode(errors="replace")
        raise SchemaError(f"a value is not one JSON text: {shown!r} ({error}); encode strings with to_json") from None
    return bytes(message)
