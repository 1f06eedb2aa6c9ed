"""The columns of the formats, and how the messages of a range become Arrow batches of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType

from headwater.client import Client, Reader, Stream
from headwater.errors import DataLossError, InvalidEventError, MessageError, SchemaError
from headwater.log.content import ContentKind, kind_of
from headwater.log.json_framing import split_array
from headwater.positions import Position
from headwater.spark.fetching import UnexpectedAnswerError, can_fetch, fetch
from headwater.spark.options import BadEvents, ConnectionOptions
from headwater.spark.positions import Range, byte_position
from headwater.spark.skipping import SkippedEvents
from headwater.spark.values import TypedDecoder, ValueDecoder
from headwater.state.events import BadEvent, ChangeEvent, ControlEvent, EventDecoder

STREAM_COLUMNS = {
    "stream": "STRING",
    "offset": "STRING",
    "position": "BIGINT",
    "value": "STRING",
    "content_type": "STRING",
}
STATE_COLUMNS = {
    "stream": "STRING",
    "offset": "STRING",
    "position": "BIGINT",
    "order": "BIGINT",
    "type": "STRING",
    "key": "STRING",
    "operation": "STRING",
    "value": "STRING",
    "old_value": "STRING",
    "txid": "STRING",
    "timestamp": "STRING",
    "control": "STRING",
    "control_offset": "STRING",
}
VALUES = ("value", "old_value")  # whose type is the user's to choose
_KINDS: dict[str, DataType] = {"STRING": StringType(), "BIGINT": LongType()}
_encode = msgspec.json.Encoder().encode


def ddl(columns: dict[str, str], value: str) -> str:
    """The schema of a format as Spark reads it, with values of a type. An old value is for people, and stays text."""
    return ", ".join(f"`{name}` {value if name == 'value' else kind}" for name, kind in columns.items())


def values_type(schema: str | dict[str, str] | None) -> str:
    """The type of the column `value` of state events: text, a struct, or a struct with a field for each type."""
    if isinstance(schema, dict):
        fields = (f"`{name.replace('`', '``')}`: STRUCT<{fields}>" for name, fields in schema.items())
        return f"STRUCT<{', '.join(fields)}>"
    return f"STRUCT<{schema}>" if schema else "STRING"


def check_schema(given: StructType, columns: dict[str, str]) -> None:
    """A schema may leave columns out and choose what a value is: text or bytes, or for state events a struct."""
    for field in given.fields:
        if field.name not in columns:
            raise SchemaError(f"there is no column {field.name}; there are {', '.join(columns)}")
        kind = field.dataType
        if field.name not in VALUES:
            fits = kind == _KINDS[columns[field.name]]
        elif columns is STATE_COLUMNS:
            fits = isinstance(kind, (StringType, StructType))
        else:
            fits = isinstance(kind, (StringType, BinaryType))
        if not fits:
            told = f"{field.name} cannot be {kind.simpleString()}"
            raise SchemaError(f"{told}; read it as it is, then cast it or parse it with from_json")


class ColumnDecoder(Protocol):
    """Decodes the messages of an answer to columns."""

    def decode_array(self, text: bytes | bytearray, /) -> Any: ...


class Values:
    """Messages as they are: JSON text, for the JVM to parse."""

    def __init__(self, value: pa.DataType) -> None:
        self._value = value

    def decode_array(self, text: bytes | bytearray) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([text_column(text).cast(self._value)], names=["value"])


def text_column(text: bytes | bytearray) -> pa.Array:
    """The elements of a JSON array as a column of text. The byte 0 separates them: it occurs in no JSON text."""
    messages = split_array(text)
    joined = b"\0".join(messages)
    if not messages:
        return pa.array([], pa.string())
    _check_text(joined)
    ends = pa.array([0, len(joined)], pa.int32()).buffers()[1]
    whole = pa.StringArray.from_buffers(1, ends, pa.py_buffer(joined))
    return pc.split_pattern(whole, "\0").values


def _check_text(text: bytes | bytearray) -> None:
    """The parser does not look into strings; what is in there may come from any server."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise MessageError(f"a message is not UTF-8: {text[max(0, error.start - 40) : error.end]!r}") from None


class Events:
    """Messages as state events."""

    def __init__(self, schema: StructType, *, by_type: bool = False) -> None:
        self._decoder = EventDecoder(msgspec.Raw)
        arrow = to_arrow_schema(schema, timezone="UTC")
        self._kinds = {name: arrow.field(name).type for name in arrow.names if name in _EVENT_COLUMNS}
        self._by_schema: dict[str, ValueDecoder | TypedDecoder] = {}
        for field in schema.fields:
            if isinstance(field.dataType, StructType):
                decoder = TypedDecoder if by_type and field.name == "value" else ValueDecoder
                self._by_schema[field.name] = decoder(field.dataType, self._kinds[field.name])
        self._sized = "order" in arrow.names

    def decode_array(self, text: bytes | bytearray) -> pa.RecordBatch:
        """Columns of events, `size` of each message's bytes, and if anything is wrong with it `bad`, what that is, and
        `message`, its text."""
        _check_text(text)
        events = self._decoder.decode_array(text)
        reasons = [_reason(event) for event in events]
        columns = {name: self._column(name, events, reasons) for name in self._kinds}
        if self._sized:
            sizes = [len(memoryview(message)) + 1 for message in split_array(text)]
            columns["size"] = pa.array(sizes, pa.int64())
        columns["bad"] = pa.array(reasons, pa.string())
        if any(reasons):
            texts = zip(split_array(text), reasons, strict=True)
            columns["message"] = pa.array([bytes(text) if reason else None for text, reason in texts], pa.binary())
        return pa.RecordBatch.from_pydict(columns)

    def _column(self, name: str, events: list[Any], reasons: list[str | None]) -> pa.Array:
        values = list(map(_EVENT_COLUMNS[name], events))
        decoder = self._by_schema.get(name)
        if decoder is None:
            return pa.array(values, self._kinds[name])
        if isinstance(decoder, TypedDecoder):
            return decoder.column(list(map(_EVENT_COLUMNS["type"], events)), values, reasons)
        return decoder.column(values, reasons if name == "value" else [None] * len(values))  # an old one never matters


def _reason(event: Any) -> str | None:
    if type(event) is ChangeEvent:
        if event.value is UNSET and event.headers.operation != "delete":
            return f"{event.headers.operation} without a value"
        return None
    return event.reason if type(event) is BadEvent else None


def _text(value: Any) -> str | None:
    """A field that the protocol leaves open: text as it is, anything else as JSON."""
    if value is UNSET or value is None:
        return None
    return value if isinstance(value, str) else _encode(value).decode()


def _json(value: Any) -> bytes | None:
    if value is UNSET:
        return None
    return bytes(value) if isinstance(value, msgspec.Raw) else _encode(value)


def _has_value(event: Any) -> bool:
    return type(event) is ChangeEvent and event.headers.operation != "delete"


_EVENT_COLUMNS: dict[str, Any] = {
    "type": lambda event: event.type if type(event) is ChangeEvent else None,
    "key": lambda event: event.key if type(event) is ChangeEvent else None,
    "operation": lambda event: event.headers.operation if type(event) is ChangeEvent else None,
    "value": lambda event: _json(event.value) if _has_value(event) else None,
    "old_value": lambda event: _json(event.old_value) if type(event) is ChangeEvent else None,
    "txid": lambda event: _text(event.headers.txid) if type(event) is ChangeEvent else None,
    "timestamp": lambda event: _text(event.headers.timestamp) if type(event) is ChangeEvent else None,
    "control": lambda event: event.headers.control if type(event) is ControlEvent else None,
    "control_offset": lambda event: _text(event.headers.offset) if type(event) is ControlEvent else None,
}


class RangeReader:
    """Reads ranges to batches of a schema."""

    def __init__(
        self,
        connection: ConnectionOptions,
        client: Client,
        schema: StructType,
        *,
        state: bool,
        bad_events: BadEvents = BadEvents.FAIL,
        dead_letters: str | None = None,
        by_type: bool = False,
    ) -> None:
        self._connection = connection
        self._client = client
        self._spark_schema = schema
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._names: list[str] = self._schema.names
        self._state = state
        self._bad_events = bad_events
        self._dead_letters = dead_letters
        self._by_type = by_type

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        batches = self._events(part) if self._is_json(part) else self._bytes(part)
        constant = {"stream": part.path, "offset": part.start.offset, "content_type": part.content_type}
        repeated: dict[str, pa.Array] = {}
        for position, payload in batches:
            columns = {name: payload.column(name) for name in payload.schema.names}
            rows = payload.num_rows
            if not rows:
                continue
            for name in self._names:
                if name in constant:
                    if len(repeated.get(name, ())) < rows:
                        repeated[name] = pa.repeat(pa.scalar(constant[name], pa.string()), rows)
                    columns[name] = repeated[name][:rows]
            if "position" not in columns:
                columns["position"] = pa.array(np.arange(position, position + rows, dtype=np.int64))
            yield pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self._schema)

    def _is_json(self, part: Range) -> bool:
        if kind_of(part.content_type) is ContentKind.JSON:
            return True
        if self._state:
            raise SchemaError(f"{part.path} is a stream of {part.content_type}; state events are JSON")
        return False

    # Streams of messages

    def _decoder(self) -> ColumnDecoder:
        if self._state:
            return Events(self._spark_schema, by_type=self._by_type)
        return Values(self._schema.field("value").type if "value" in self._names else pa.string())

    def _events(self, part: Range) -> Iterator[tuple[int, pa.RecordBatch]]:
        position, at = 0, byte_position(part.start.offset)
        skipped = SkippedEvents(self._client, part, self._dead_letters)
        for payload in self._payloads(part):
            rows = payload.num_rows
            first = max(0, part.start.skip - position)  # what the batch before has read
            if self._state:
                payload, at = self._ordered(part, payload, at)
            if first < rows:
                kept = payload.slice(first)
                numbers = pa.array(np.arange(position + first, position + rows, dtype=np.int64))
                if self._state:
                    kept = kept.append_column("position", numbers)
                    kept = self._without_bad(part, kept, skipped)
                yield position + first, kept
            position += rows
        skipped.finish()
        if position < part.start.skip:
            raise DataLossError(f"{part.path} has {position} messages from {part.start.offset} to {part.end.offset}")

    def _payloads(self, part: Range) -> Iterator[pa.RecordBatch]:
        stream = self._client.stream(part.path, content_type=part.content_type)
        decoder = self._decoder()
        offset = part.start.offset
        if part.exact and can_fetch(stream.url):
            with contextlib.suppress(OSError, UnexpectedAnswerError, ValueError):
                for text, after in fetch(self._connection, stream.url, offset, part.end.offset):
                    payload, offset = decoder.decode_array(text), after
                    yield payload
        if offset != part.end.offset:
            with stream.read(type=decoder, offset=offset, until=part.end.offset) as reader:
                for batch in reader.batches():
                    if len(batch.items):
                        yield batch.items
            if reader.offset != part.end.offset:
                raise DataLossError(f"{part.path} ended at {reader.offset} before {part.end.offset}")
        left = part.end.skip
        if left:
            with stream.read(type=decoder, offset=part.end.offset) as reader:
                for batch in reader.batches():
                    yield batch.items[:left]
                    left -= min(left, len(batch.items))
                    if not left:
                        break
        if left:
            raise DataLossError(f"{part.path} ended {left} messages before {part.end}")

    def _ordered(self, part: Range, payload: pa.RecordBatch, at: int | None) -> tuple[pa.RecordBatch, int | None]:
        """With the position of each event in its stream: its byte where offsets count those, else its number after
        the byte where the range begins. Both grow with the stream and never meet, since no message has no bytes."""
        if "order" not in self._names:
            return payload, at
        if at is None:
            return payload.append_column("order", pa.nulls(payload.num_rows, pa.int64())), None
        sizes = payload.column("size").to_numpy() if part.exact else np.ones(payload.num_rows, np.int64)
        ends = at + np.cumsum(sizes)
        return payload.append_column("order", pa.array(ends - sizes)), int(ends[-1]) if len(ends) else at

    def _without_bad(self, part: Range, payload: pa.RecordBatch, skipped: SkippedEvents) -> pa.RecordBatch:
        bad = payload.column("bad")
        if bad.null_count == len(bad):
            return payload
        if self._bad_events is not BadEvents.FAIL:
            skipped.add(payload.filter(pc.is_valid(bad)))
            return payload.filter(pc.is_null(bad))
        number = pc.index(pc.is_valid(bad), True).as_py()
        position = payload.column("position")[number].as_py()
        told = f"{part.path}, message {position} after {part.start.offset}: {bad[number].as_py()}"
        raise InvalidEventError(told, Position(part.start.offset, position))

    # Streams of bytes

    def _runs(self, stream: Stream, part: Range) -> Iterator[bytes]:
        """The bytes from a place to an offset, and some after that."""
        start, left = part.start, part.end.skip
        if start.offset != part.end.offset:
            reader = stream.read(type=bytes, offset=start, until=part.end.offset)
            yield from _runs_of(reader, None)
            first, last = byte_position(start.offset), byte_position(part.end.offset)
            is_shorter = first is not None and last is not None and last - first < start.skip
            if reader.offset != part.end.offset or is_shorter:
                raise DataLossError(f"{part.path} ended at {reader.offset} before {part.end.offset}")
            start = Position(part.end.offset)
        left -= start.skip
        if left > 0:
            for run in _runs_of(stream.read(type=bytes, offset=start), left):
                yield run
                left -= len(run)
            if left:
                raise DataLossError(f"{part.path} ended {left} bytes before {part.end}")

    def _bytes(self, part: Range) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Bytes have no messages: a row is a run of them, and its position the byte after the range's beginning."""
        stream = self._client.stream(part.path, content_type=part.content_type)
        kind = self._schema.field("value").type if "value" in self._names else pa.binary()
        runs = self._text(stream, part) if kind == pa.string() else self._placed(stream, part)
        for position, run in runs:
            if run:
                yield position, pa.RecordBatch.from_arrays([pa.array([run], pa.binary()).cast(kind)], names=["value"])

    def _placed(self, stream: Stream, part: Range) -> Iterator[tuple[int, bytes]]:
        position = part.start.skip
        for run in self._runs(stream, part):
            yield position, run
            position += len(run)

    def _text(self, stream: Stream, part: Range) -> Iterator[tuple[int, bytes]]:
        """Runs of whole characters. A character belongs to the range in which it begins: that range is read on to the
        character's end, and the next one leaves out what is at its beginning of it."""
        is_first = not part.start.skip and byte_position(part.start.offset) == 0
        foreign = 0 if is_first else _CHARACTER_BYTES_MAX - 1
        whole, held, position = b"", b"", part.start.skip
        for run in self._runs(stream, part):
            own = run[:foreign].lstrip(_CONTINUATION) + run[foreign:]
            position += len(run) - len(own)
            foreign = 0 if own else foreign - len(run)
            whole, held = _whole_text(held + own)
            yield position, whole
            position += len(whole)
        if held:
            reader = stream.read(type=bytes, offset=part.end)
            whole, held = _whole_text(held + b"".join(_runs_of(reader, _missing_bytes(held))))
            yield position, whole
        if held:
            told = f"{part.path}: text ends inside a character at {part.end}, and the rest of it is not there yet"
            here = Position(part.start.offset, position)
            raise MessageError(f"{told}; try again, or set valueType to binary", here)


def _runs_of(reader: Reader[bytes], most: int | None) -> Iterator[bytes]:
    with reader:
        for batch in reader.batches():
            for run in batch.items:
                yield run if most is None else run[:most]
                most = None if most is None else most - min(most, len(run))
            if most == 0:
                return


_CHARACTER_BYTES_MAX = 4
_CONTINUATION = bytes(range(0x80, 0xC0))  # what UTF-8 has after the first byte of a character


def _missing_bytes(held: bytes) -> int:
    """How many bytes a character still needs, by its first byte."""
    return (2 if held[0] < 0xE0 else 3 if held[0] < 0xF0 else _CHARACTER_BYTES_MAX) - len(held)


def _whole_text(data: bytes) -> tuple[bytes, bytes]:
    """The characters that are complete, and the beginning of one that is not."""
    try:
        data.decode()
        return data, b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return data[: error.start], data[error.start :]
        raise MessageError(f"not UTF-8: {data[error.start : error.end]!r}; set valueType to binary") from None
