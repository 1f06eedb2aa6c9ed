"""Reads the rows of a range as Arrow batches, in a task.

A range is one response, which is parsed in large pieces as it arrives. At the first unexpected line the client
continues from the last row, one row at a time. It sorts rows, and decides what to retry and what is an error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater import limits
from headwater.client import Client, Table
from headwater.client.columns.rows import RowColumns
from headwater.client.session import LOOPBACK, with_query
from headwater.client.table_reading import AT_ONCE
from headwater.client.transport import POOL
from headwater.errors import DataLossError, MissingRowError, ProtocolError
from headwater.joining import Joined
from headwater.protocol.encodings import GZIP, IDENTITY
from headwater.protocol.inflating import Inflater
from headwater.protocol.tables.content_type import format_table_type, parse_answer_type
from headwater.spark.connection import ConnectionOptions
from headwater.spark.tables.places import RowRange


class RowRangeReader:
    """Reads ranges of one table as batches of a schema."""

    def __init__(self, connection: ConnectionOptions, client: Client, table: str, schema: StructType) -> None:
        self._connection = connection
        self._client = client
        self._name = table
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, part: RowRange) -> Iterator[pa.RecordBatch]:
        table = self._client.table(self._name, table_type=part.table_type)
        columns = RowColumns(self._schema, part.table_type.escape)
        if part.active:
            yield from _in_batches(columns, table)
            return
        position = part.since
        with contextlib.suppress(httpx.HTTPError, ProtocolError):
            for lines in self._lines(table.url, part):
                # After a gap the missing rows may follow later in the response: the client sorts them.
                parsed = columns.parse(lines, position, part.until)
                if parsed is None:
                    break
                batch, position = parsed
                if batch.num_rows:
                    yield batch
                if position >= part.until:
                    return
        yield from _rest(table, columns, part, position)

    def _lines(self, url: str, part: RowRange) -> Iterator[bytes]:
        """Complete lines of the response, enough for a batch at a time. A server that does not support `until_id` sends
        more, which the caller ignores."""
        connection = self._connection
        headers = {
            "accept": format_table_type(part.table_type),
            "accept-encoding": IDENTITY if urlsplit(url).hostname in LOOPBACK else GZIP,
        }
        headers = connection.credentials() | headers  # credentials are for the table's server
        url = with_query(url, since_id=str(part.since), until_id=str(part.until), timeout=AT_ONCE)
        times = httpx.Timeout(connection.request_timeout, connect=connection.connect_timeout)
        with (
            httpx.Client(limits=POOL, verify=connection.tls(), timeout=times) as http,
            http.stream("GET", url, headers=headers, follow_redirects=False) as answer,
        ):
            if answer.status_code != 200 or parse_answer_type(answer.headers.get("content-type")) != part.table_type:
                return
            inflater = Inflater(answer.headers.get("content-encoding"))
            pieces = (piece for chunk in answer.iter_raw() for piece in inflater.feed(chunk))
            yield from _gathered(pieces)


def _rest(table: Table, columns: RowColumns, part: RowRange, position: int) -> Iterator[pa.RecordBatch]:
    """Read the rows of a range after a row. If the last ones are missing, the request is repeated, because they existed
    when the range was planned."""
    last_seqno: int | None = None
    for wait_s in (0.0, *limits.SPARK_RECHECKS_S):
        time.sleep(wait_s)
        with table.rows(since_id=position, until_id=part.until) as reader:
            for rows in reader.batches():
                if rows:
                    yield columns.of_rows(rows)
        position, last_seqno = reader.seqno or position, reader.last_seqno
        gapless = part.gapless and reader.gapless  # the table may have been compacted since
        if position >= part.until or (not gapless and _goes_on(table, part.until)):
            return
    message = f"{table.url} had rows up to {part.until} when the batch was planned, but ends after row {position}"
    if gapless and last_seqno is not None and last_seqno >= part.until:
        raise MissingRowError(f"{message}; the server reports {last_seqno} as the last row")
    raise DataLossError(message)


def _goes_on(table: Table, seqno: int) -> bool:
    """Whether the table has this SeqNo or a later one. If it only has later ones, the SeqNo is in a gap."""
    with table.rows(since_id=seqno - 1) as reader:
        return next(iter(reader), None) is not None


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Cut pieces of a response into complete lines. An incomplete line at the end is dropped."""
    held = Joined()
    for piece in pieces:
        held.add(piece)
        if held.size >= limits.SPARK_PARSED_BYTES:
            lines, end, rest = held.take().rpartition(b"\n")
            if not end:
                return  # longer than any row
            yield lines + end
            held.add(rest)
    lines, end, _ = held.take().rpartition(b"\n")
    if end:
        yield lines + end


def _in_batches(columns: RowColumns, table: Table) -> Iterator[pa.RecordBatch]:
    """The rows of the active view, ordered by SeqNo. Servers without active views send every row."""
    rows = list(table.active().values())
    for first in range(0, len(rows), limits.SPARK_ACTIVE_ROWS):
        yield columns.of_rows(rows[first : first + limits.SPARK_ACTIVE_ROWS])
