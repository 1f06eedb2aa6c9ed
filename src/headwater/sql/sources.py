"""What DuckDB scans: streams, states and tables as Arrow record batches.

A row of a batch is a whole response: its JSON array as one text. DuckDB splits and parses it, twice as fast as message
by message. Columns that are not in the messages, such as offsets, are lists beside it, with an element for each. A scan
begins anew each time, and always ends where the stream ended when the query began.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater import limits
from headwater.client import Client, Stream
from headwater.client.columns.texts import join
from headwater.client.fetching import can_fetch, continuing, fetch_ahead
from headwater.client.session import Timeouts
from headwater.client.transport import tls_context
from headwater.errors import ProtocolError
from headwater.log.content import ContentKind, kind_of

BODY = "body"
_decode = msgspec.json.Decoder(list[Any]).decode


class ArrowSource:
    """Batches that can be scanned any number of times. It keeps the error of a scan, of which DuckDB keeps the text."""

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self.schema = schema
        self._batches = batches
        self.failure: BaseException | None = None

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, self._scan()).__arrow_c_stream__()

    def _scan(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches()
        except GeneratorExit:  # DuckDB needs no more rows
            raise
        except BaseException as error:
            self.failure = error
            raise


class Direct:
    """How to read from the client's server without httpx, which takes less time than the client."""

    def __init__(self, client: Client) -> None:
        times = Timeouts()
        self.connect_timeout, self.request_timeout = times.connect_s, times.answer_s
        self._client = client

    def credentials(self) -> dict[str, str]:
        return self._client.headers

    def tls(self) -> ssl.SSLContext:
        return tls_context()


class StreamPart(msgspec.Struct, frozen=True):
    """A range of one stream. It ends where the stream ended when the query began, or before."""

    stream: Stream
    path: str
    content_type: str
    offset: str
    until: str

    @property
    def kind(self) -> ContentKind:
        return kind_of(self.content_type)


def stream_source(parts: Sequence[StreamPart], hidden: Sequence[str], direct: Direct | None) -> ArrowSource:
    """The messages of streams of one kind, with the hidden columns that a query uses. Streams of bytes have no body,
    but always the column `_value`."""
    is_json = parts[0].kind is ContentKind.JSON
    listed = [name for name in ("_offset", "_time", "_value") if name in hidden or (name == "_value" and not is_json)]
    types = {"_offset": pa.string(), "_time": pa.timestamp("ms", "UTC")}
    types["_value"] = pa.binary() if parts[0].kind is ContentKind.BINARY else pa.string()
    fields = [("_stream", pa.string())] if "_stream" in hidden else []
    fields += [(BODY, pa.string())] if is_json else []
    schema = pa.schema([*fields, *((name, pa.list_(types[name])) for name in listed)])

    def batches() -> Iterator[pa.RecordBatch]:
        for part in parts:
            constant = pa.array([part.path])
            if is_json and not listed:
                rows: Iterator[dict[str, pa.Array]] = ({BODY: text_of(body)} for body in _bodies(part, direct))
            else:
                rows = _listed(part, listed)
            for columns in rows:
                columns["_stream"] = constant
                yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    return ArrowSource(schema, batches)


def _bodies(part: StreamPart, direct: Direct | None) -> Iterator[bytes | bytearray]:
    """The responses of a range, each a JSON array. If reading them directly fails, the client continues."""
    offset = part.offset
    if direct is not None and can_fetch(part.stream.url):
        with continuing(part.stream.url):
            for body, after in fetch_ahead(direct, part.stream.url, offset, part.until):
                yield body
                offset = after
    if offset != part.until:
        for batch in part.stream.batches(offset=offset, until=part.until, columns=["value"]):
            yield array_of(batch.column("value"))


def _listed(part: StreamPart, listed: Sequence[str]) -> Iterator[dict[str, pa.Array]]:
    columns = [name[1:] for name in listed]
    for batch in part.stream.batches(offset=part.offset, until=part.until, columns=list({*columns, "value"})):
        row = {name: list_of(batch.column(name[1:])) for name in listed}
        if part.kind is ContentKind.JSON:
            row[BODY] = text_of(array_of(batch.column("value")))
        yield row


def array_of(values: pa.Array) -> bytes:
    """JSON texts as a JSON array."""
    return b"[" + join(values.cast(pa.binary()), b",") + b"]"


def text_of(data: bytes | bytearray) -> pa.Array:
    """A text as a column of one row, without a copy. The parser of DuckDB checks that it is UTF-8."""
    return pa.StringArray.from_buffers(1, _span(len(data)), pa.py_buffer(data))


def list_of(values: pa.Array) -> pa.Array:
    """A column as one list."""
    return pa.Array.from_buffers(pa.list_(values.type), 1, [None, _span(len(values))], children=[values])


def _span(length: int) -> pa.Buffer:
    return pa.py_buffer(np.array([0, length], np.int32))


def sample(part: StreamPart, messages_max: int) -> list[Any]:
    """Some messages from the beginning, the middle and near the end of a range."""
    messages: list[Any] = []
    for offset in _places(part):
        for batch in part.stream.batches(offset=offset, until=part.until, columns=["value"]):
            messages += decoded(batch.column("value")[:messages_max])
            break
    return messages


def _places(part: StreamPart) -> list[str]:
    """Offsets at which a sample begins. A range of one response has one."""
    if part.offset == part.until:
        return []
    with contextlib.suppress(ProtocolError):
        splits = part.stream.splits(offset=part.offset, until=part.until, parts=8)
        if splits.bytes > limits.SQL_SAMPLE_BYTES:
            return list(dict.fromkeys([part.offset, *splits.splits[1::2]]))
    return [part.offset]


def decoded(values: pa.Array) -> list[Any]:
    if not len(values):
        return []
    try:
        return _decode(array_of(values))
    except msgspec.ValidationError:  # a number that is too large for a float
        messages: list[Any] = json.loads(array_of(values))
        return messages
