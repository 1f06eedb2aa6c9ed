"""The columns of the formats, and how the messages of a range become Arrow batches of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructType, TimestampType

from headwater.client import Client, Reader, Stream
from headwater.client.columns.records import Numbers
from headwater.client.fetching import can_fetch, continuing, fetch
from headwater.errors import DataLossError, InvalidEventError, MessageError, SchemaError
from headwater.log.content import ContentKind, kind_of
from headwater.positions import Position, byte_position
from headwater.spark.decoding import VALUES, ColumnDecoder, Events, Values
from headwater.spark.latest import check_columns, latest
from headwater.spark.options import KEEPING, BadEvents, ReadOptions, StateReadOptions
from headwater.spark.positions import StreamRange
from headwater.spark.skipping import SkippedEvents
from headwater.spark.snapshots import placed, rows_of, with_needed
from headwater.spark.times import AppendTimes

STREAM_COLUMNS = {
    "stream": "STRING",
    "offset": "STRING",
    "position": "BIGINT",
    "order": "BIGINT",
    "timestamp": "TIMESTAMP_LTZ",
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
    "append_time": "TIMESTAMP_LTZ",
}
BAD_COLUMNS = {"bad": "STRING", "message": "STRING"}  # of state events with badEvents=keep
_KINDS: dict[str, DataType] = {"STRING": StringType(), "BIGINT": LongType(), "TIMESTAMP_LTZ": TimestampType()}


def ddl(columns: dict[str, str], value: str) -> str:
    """The schema of a format as DDL, with values of a type. `old_value` is informative and stays text."""
    return ", ".join(f"`{name}` {value if name == 'value' else kind}" for name, kind in columns.items())


def values_type(schema: str | dict[str, str] | None) -> str:
    """The type of the column `value` of state events: text, a struct, or a struct with a field for each type."""
    if isinstance(schema, dict):
        fields = (f"`{name.replace('`', '``')}`: STRUCT<{fields}>" for name, fields in schema.items())
        return f"STRUCT<{', '.join(fields)}>"
    return f"STRUCT<{schema}>" if schema else "STRING"


def check_schema(schema: StructType, columns: dict[str, str]) -> None:
    """Check a user's schema. It may leave out columns, and choose the type of values: text, bytes, or a struct."""
    for field in schema.fields:
        if field.name not in columns:
            raise SchemaError(f"there is no column {field.name}; the columns are {', '.join(columns)}")
        kind = field.dataType
        if field.name not in VALUES:
            fits = kind == _KINDS[columns[field.name]]
        elif "old_value" in columns:
            fits = isinstance(kind, (StringType, StructType))
        else:
            fits = isinstance(kind, (StringType, BinaryType))
        if not fits:
            message = f"the column {field.name} cannot be {kind.simpleString()}"
            raise SchemaError(f"{message}; read it with its own type, then cast it or parse it with from_json")


class RangeReader:
    """Reads ranges of streams as Arrow batches of a schema."""

    def __init__(self, options: ReadOptions, client: Client, schema: StructType) -> None:
        self._options = options
        self._state = options if isinstance(options, StateReadOptions) else None
        self._client = client
        self._spark_schema = schema
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._names: list[str] = self._schema.names
        self._time = "append_time" if self._state else "timestamp"
        self._is_timed = self._time in self._names
        self._is_ordered = self._is_timed or "order" in self._names

    def read(self, part: StreamRange) -> Iterator[pa.RecordBatch]:
        if self._state is None or not self._state.latest_only:
            return self._read(part)
        check_columns(self._names)
        if part.snapshot_of is not None:
            return latest(self._read(part))
        return self._completed(part)

    def _completed(self, part: StreamRange) -> Iterator[pa.RecordBatch]:
        """The latest events. What all of them have in common is not held in memory with each."""
        common = {name: value for name, value in _common(part).items() if name in self._names}
        varying = StructType([field for field in self._spark_schema.fields if field.name not in common])
        for batch in latest(RangeReader(self._options, self._client, varying)._read(part)):
            columns = [
                pa.repeat(pa.scalar(common[field.name], field.type), batch.num_rows)
                if field.name in common
                else batch.column(field.name)
                for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _read(self, part: StreamRange) -> Iterator[pa.RecordBatch]:
        of = part.snapshot_of
        if of is None:
            yield from self._rows(part)
        elif of.tail is None:
            yield from placed(of, self._with("order")._rows(part), self._schema)
        else:
            yield from rows_of(part, of, self._with("order", "control")._rows(part), self._schema)

    def _with(self, *columns: str) -> RangeReader:
        """A reader that also reads columns that rows of snapshots need."""
        return RangeReader(self._options, self._client, with_needed(self._spark_schema, columns))

    def _rows(self, part: StreamRange) -> Iterator[pa.RecordBatch]:
        batches = self._events(part) if self._is_json(part) else self._bytes(part)
        constant = _common(part)
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
            if "position" in self._names and "position" not in columns:
                columns["position"] = pa.array(np.arange(position, position + rows, dtype=np.int64))
            yield pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self._schema)

    def _is_json(self, part: StreamRange) -> bool:
        if kind_of(part.content_type) is ContentKind.JSON:
            return True
        if self._state is not None:
            raise SchemaError(f"{part.path} is a stream of {part.content_type}; state events are JSON")
        return False

    # Streams of messages

    def _decoder(self, part: StreamRange) -> ColumnDecoder:
        if self._state is not None:
            return Events(self._spark_schema, self._state, sized=self._is_ordered, is_checked=part.exact)
        kind = self._schema.field("value").type if "value" in self._names else pa.string()
        return Values(kind, self._is_ordered, is_checked=part.exact)

    def _events(self, part: StreamRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        position, at = 0, byte_position(part.start.offset)
        times = self._times(part)
        dead_letters = None if self._state is None else self._state.dead_letter_stream
        skipped = SkippedEvents(self._client, part, dead_letters, self._fitting())
        for payload in self._payloads(part):
            rows = payload.num_rows
            first = max(0, part.start.skip - position)  # read by the previous batch
            if self._is_ordered:
                starts, at = _starts(part, payload, at)
                payload = self._ordered(payload, starts, times)
            if first < rows:
                kept = payload.slice(first)
                if self._state is not None:
                    numbers = pa.array(np.arange(position + first, position + rows, dtype=np.int64))
                    kept = kept.append_column("position", numbers)
                    kept = kept if self._state.types is None else kept.filter(kept.column("wanted"))
                    kept = self._without_bad(part, kept, skipped, self._state.bad_events)
                yield position + first, kept
            position += rows
        skipped.finish()
        if position < part.start.skip:
            message = f"{part.path} has only {position} messages from {part.start.offset} to {part.end.offset}"
            raise DataLossError(f"{message}, and {part.start.skip} of them were read before")

    def _fitting(self) -> str:
        """The options that decide whether an event is bad, as text."""
        values = [field.json() for field in self._spark_schema.fields if field.name == "value"]
        if self._state is None:
            return repr((values, False, None))
        return repr((values, self._state.is_by_type, self._state.types and sorted(self._state.types)))

    def _payloads(self, part: StreamRange) -> Iterator[pa.RecordBatch]:
        stream = self._client.stream(part.path, content_type=part.content_type)
        decoder = self._decoder(part)
        offset = part.start.offset
        if part.exact and can_fetch(stream.url):
            with continuing(stream.url):
                for text, after in fetch(self._options, stream.url, offset, part.end.offset):
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

    def _times(self, part: StreamRange) -> AppendTimes | None:
        if not self._is_timed or byte_position(part.start.offset) is None:
            return None
        return AppendTimes(self._client.stream(part.path, content_type=part.content_type), part)

    def _ordered(self, payload: pa.RecordBatch, starts: Numbers | None, times: AppendTimes | None) -> pa.RecordBatch:
        """Add the position of each message, and the time when it was appended if the schema has that column."""
        nothing = pa.nulls(payload.num_rows, pa.int64())
        payload = payload.append_column("order", nothing if starts is None else pa.array(starts))
        if self._is_timed:
            column = nothing if starts is None or times is None else times.column(starts)
            payload = payload.append_column(self._time, column.cast(self._schema.field(self._time).type))
        return payload

    def _without_bad(
        self, part: StreamRange, payload: pa.RecordBatch, skipped: SkippedEvents, bad_events: BadEvents
    ) -> pa.RecordBatch:
        if bad_events in KEEPING:
            return _with_messages(payload)
        bad = payload.column("bad")
        if bad.null_count == len(bad):
            return payload
        if bad_events is not BadEvents.FAIL:
            skipped.add(payload.filter(pc.is_valid(bad)))
            return payload.filter(pc.is_null(bad))
        number = pc.index(pc.is_valid(bad), True).as_py()
        position = payload.column("position")[number].as_py()
        message = f"{part.path}, message {position} after {part.start.offset}: {bad[number].as_py()}"
        raise InvalidEventError(message, Position(part.start.offset, position))

    # Streams of bytes

    def _runs(self, stream: Stream, part: StreamRange) -> Iterator[bytes]:
        """Read the bytes from a position to an offset, and possibly some after it."""
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

    def _bytes(self, part: StreamRange) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows of a stream without messages: a row is a run of bytes, and its position is relative to the range."""
        stream = self._client.stream(part.path, content_type=part.content_type)
        kind = self._schema.field("value").type if "value" in self._names else pa.binary()
        runs = self._text(stream, part) if kind == pa.string() else self._placed(stream, part)
        begin, times = byte_position(part.start.offset), self._times(part)
        for position, run in runs:
            if not run:
                continue
            payload = pa.RecordBatch.from_arrays([pa.array([run], pa.binary()).cast(kind)], names=["value"])
            if self._is_ordered:
                payload = self._ordered(payload, None if begin is None else np.array([begin + position]), times)
            yield position, payload

    def _placed(self, stream: Stream, part: StreamRange) -> Iterator[tuple[int, bytes]]:
        position = part.start.skip
        for run in self._runs(stream, part):
            yield position, run
            position += len(run)

    def _text(self, stream: Stream, part: StreamRange) -> Iterator[tuple[int, bytes]]:
        """Runs of complete characters. A character belongs to the range in which it starts: that range is read up to
        the end of the character, and the next range skips the rest of it."""
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
            message = (
                f"{part.path}: text ends inside a character at {part.end}, and the rest of it has not been appended yet"
            )
            here = Position(part.start.offset, position)
            raise MessageError(f"{message}; retry later, or set valueType to binary", here)


def _with_messages(payload: pa.RecordBatch) -> pa.RecordBatch:
    if "message" not in payload.schema.names:
        return payload.append_column("message", pa.nulls(payload.num_rows, pa.string()))
    messages = payload.column("message").cast(pa.string())
    return payload.set_column(payload.schema.get_field_index("message"), "message", messages)


def _common(part: StreamRange) -> dict[str, str]:
    """The columns that are the same in all rows of a range."""
    return {"stream": part.path, "offset": part.start.offset, "content_type": part.content_type}


def _starts(part: StreamRange, payload: pa.RecordBatch, at: int | None) -> tuple[Numbers | None, int | None]:
    """The positions at which the messages of a response start, and that of the next message. If offsets count bytes, a
    position is a byte; otherwise it is a message number added to the byte at which the range starts. Both increase
    along the stream and cannot collide, because every message has at least one byte."""
    if at is None:
        return None, None
    sizes = payload.column("size").to_numpy() if part.exact else np.ones(payload.num_rows, np.int64)
    ends = at + np.cumsum(sizes)
    return ends - sizes, int(ends[-1]) if len(ends) else at


def _runs_of(reader: Reader[bytes], most: int | None) -> Iterator[bytes]:
    with reader:
        for batch in reader.batches():
            for run in batch.items:
                yield run if most is None else run[:most]
                most = None if most is None else most - min(most, len(run))
            if most == 0:
                return


_CHARACTER_BYTES_MAX = 4
_CONTINUATION = bytes(range(0x80, 0xC0))  # continuation bytes of UTF-8


def _missing_bytes(held: bytes) -> int:
    """The number of continuation bytes of a character, given its first byte."""
    return (2 if held[0] < 0xE0 else 3 if held[0] < 0xF0 else _CHARACTER_BYTES_MAX) - len(held)


def _whole_text(data: bytes) -> tuple[bytes, bytes]:
    """The complete characters, and the start of an incomplete one."""
    try:
        data.decode()
        return data, b""
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return data[: error.start], data[error.start :]
        raise MessageError(f"not UTF-8: {data[error.start : error.end]!r}; set valueType to binary") from None
