"""Streams and tables as Arrow: every row once, with its offset and time, by both shells."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headwater.client import AsyncClient, Client, Put, Remove, Stream
from headwater.errors import MessageError, MissingExtraError, OffsetTrimmedError, StreamNotFoundError
from tests.servers import Server

_numbers = itertools.count()


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    with Client(server.url) as client:
        yield client.stream(f"batches/{next(_numbers)}")


def filled(stream: Stream) -> list[dict[str, Any]]:
    """Appends of one to four messages; the rows that they are."""
    stream.create()
    texts = [b'{"n": 1}', b"12345678901234567890123", b'"\xc3\xa9, [\\u0000"', b"[1,{}]"]
    for count in (1, 4, 2, 3):
        stream.append_body(b"[" + b",".join(texts[:count]) + b"]")
        time.sleep(0.002)
    records = list(stream.records())
    return [
        {"offset": record.offset, "time": record.time, "value": text.decode()}
        for record, count in zip(records, (1, 4, 2, 3), strict=True)
        for text in texts[:count]
    ]


def test_rows_are_messages_with_the_offset_and_time_of_their_append(stream: Stream) -> None:
    rows = filled(stream)
    assert stream.arrow(columns=["offset", "time", "value"]).to_pylist() == rows
    assert stream.arrow().schema == pa.schema([("offset", pa.string()), ("value", pa.string())])
    assert stream.arrow(columns=["value"])["value"].to_pylist() == [row["value"] for row in rows]
    for row in rows:
        first = next(iter(stream.batches(offset=row["offset"]))).to_pylist()[0]
        assert first["offset"] == row["offset"]


def test_a_range_by_offsets_and_by_times(stream: Stream) -> None:
    rows = filled(stream)
    columns = ["offset", "time", "value"]
    offset, until = rows[1]["offset"], rows[-1]["offset"]
    assert stream.arrow(offset=offset, until=until, columns=columns).to_pylist() == rows[1:-3]
    assert stream.arrow(offset=rows[1]["time"], until=rows[-1]["time"], columns=columns).to_pylist() == rows[1:-3]
    assert stream.arrow(offset=datetime.now(UTC)).num_rows == 0


def test_an_empty_stream_has_the_columns(stream: Stream) -> None:
    stream.create()
    assert stream.arrow(columns=["time", "offset"]).schema.names == ["time", "offset"]
    assert stream.arrow().num_rows == 0


def test_rows_of_bytes_are_appends(stream: Stream) -> None:
    stream.create(content_type="application/octet-stream")
    appends = [bytes([number]) * size for number, size in enumerate((3, 200_000, 1, 1_000_000, 500_000, 900_000, 5))]
    for append in appends:
        stream.append(append)
    table = stream.arrow(columns=["value", "offset"])
    assert table.schema.types == [pa.binary(), pa.string()]
    assert table["value"].to_pylist() == appends
    assert table["offset"].to_pylist() == [record.offset for record in stream.records()]


def test_rows_of_text_are_appends_and_must_be_text(stream: Stream) -> None:
    stream.create(content_type="text/plain")
    stream.append("é\n")
    stream.append("two lines\nof text")
    assert stream.arrow(columns=["value"])["value"].to_pylist() == ["é\n", "two lines\nof text"]
    stream.append("é".encode()[:1])
    with pytest.raises(MessageError, match="an append is not UTF-8 by itself"):
        stream.arrow()


def test_offsets_of_a_fork_are_valid(stream: Stream, server: Server) -> None:
    rows = filled(stream)
    fork = stream.fork(f"{stream.path}-fork", offset=rows[-1]["offset"])
    fork.append_many([{"own": 1}, {"own": 2}])
    table = fork.arrow(columns=["offset", "time", "value"])
    assert table["value"].to_pylist() == [row["value"] for row in rows[:-3]] + ['{"own":1}', '{"own":2}']
    for row in table.to_pylist():
        assert fork.arrow(offset=row["offset"]).to_pylist()[0]["offset"] == row["offset"]
    assert table["time"].to_pylist()[: len(rows) - 3] == [row["time"] for row in rows[:-3]]


def test_a_trimmed_stream_begins_at_its_first_offset(stream: Stream) -> None:
    rows = filled(stream)
    stream.trim(rows[1]["offset"])
    assert stream.arrow(columns=["offset", "time", "value"]).to_pylist() == rows[1:]
    with pytest.raises(OffsetTrimmedError):
        stream.arrow(offset=rows[0]["offset"])


class Plain(httpx.HTTPTransport):
    """A server without extensions."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_remove_param("until")
        if "/__ds/" in request.url.path:
            return httpx.Response(404, request=request)
        return super().handle_request(request)


def test_a_server_without_record_times(stream: Stream, server: Server) -> None:
    rows = filled(stream)
    with httpx.Client(transport=Plain(verify=False)) as http:
        plain = Client(server.url, http=http).stream(stream.path or "")
        table = plain.arrow(columns=["offset", "time", "value"])
        assert table["value"].to_pylist() == [row["value"] for row in rows]
        assert set(table["offset"].to_pylist()) == {"-1"}
        assert table["time"].null_count == len(rows)


def test_what_cannot_be_asked_for(stream: Stream) -> None:
    with pytest.raises(StreamNotFoundError):
        stream.arrow()
    stream.create()
    with pytest.raises(ValueError, match="there is no column 'key'; the columns of a stream are offset, time, value"):
        stream.arrow(columns=["key"])
    for columns in ("value", [], ["value", "value"]):
        with pytest.raises(ValueError, match="columns are a list of different names"):
            stream.arrow(columns=columns)


def test_without_pyarrow_or_duckdb(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.create()
    monkeypatch.delitem(sys.modules, "headwater.sql", raising=False)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match=r"SQL needs the package duckdb(.|\n)*pip install '.\[sql\]'"):
        importlib.import_module("headwater.sql")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="Arrow needs pyarrow, which is not installed"):
        stream.arrow()


def test_the_asyncio_shell(stream: Stream, server: Server) -> None:
    rows = filled(stream)

    async def read() -> tuple[pa.Table, pa.Table]:
        async with AsyncClient(server.url) as client:
            table = client.table(f"batches-{next(_numbers)}")
            await table.create()
            await table.append([Put("tea", "1")])
            whole = await client.stream(stream.path or "").arrow(columns=["offset", "time", "value"])
            return whole, await table.arrow(columns=["key", "record"])

    whole, table = asyncio.run(read())
    assert whole.to_pylist() == rows
    assert table.to_pylist() == [{"key": "tea", "record": "1"}]


def test_a_table(server: Server) -> None:
    with Client(server.url) as client:
        table = client.table(f"batches-{next(_numbers)}")
        table.create()
        assert table.arrow().num_rows == 0
        table.append([Put("tea", "1"), Put("oil", "2"), Remove("tea"), Put("oil", "3")])
        rows = table.arrow()
        assert rows.schema.names == ["seqno", "timestamp", "action", "key", "record"]
        assert rows["seqno"].to_pylist() == [1, 2, 3, 4]
        assert table.arrow(since_id=1, until_id=3, columns=["action"])["action"].to_pylist() == ["+", "-"]
        assert table.arrow(active=True, columns=["key", "record"]).to_pylist() == [{"key": "oil", "record": "3"}]
        with pytest.raises(ValueError, match="there is no column 'value'"):
            table.arrow(columns=["value"])
