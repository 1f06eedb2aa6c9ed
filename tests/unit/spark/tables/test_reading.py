"""The rows that a task reads, from our server and from faulty ones."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headwater.client import Client, Put, Remove
from headwater.errors import (
    DataLossError,
    HeadwaterError,
    InvalidRowError,
    MissingRowError,
    ProtocolError,
    SchemaChangedError,
)
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.escaping import Escape
from headwater.spark.tables.columns import COLUMNS, SCHEMA
from headwater.spark.tables.options import table_read_options
from headwater.spark.tables.places import RowRange
from headwater.spark.tables.reading import RowRangeReader
from tests.servers import Server
from tests.table_servers import CONTENT_TYPE, Script, head, hostile_server, lines

_numbers = itertools.count()
FEW = StructType().add("record", COLUMNS["record"])


def read(
    url: str,
    since: int,
    until: int,
    *,
    gapless: bool = False,
    escape: Escape = Escape.NONE,
    schema: StructType = SCHEMA,
) -> list[pa.RecordBatch]:
    options = table_read_options({"url": url, "retryTimeout": "2"}, bounded=True)
    with options.open() as client:
        part = RowRange(TableType(escape=escape), gapless, since, until)
        return list(RowRangeReader(options, client, options.table, schema).read(part))


def seqnos(batches: list[pa.RecordBatch]) -> list[int]:
    return [seqno for batch in batches for seqno in batch.column("seqno").to_pylist()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_RECHECKS_S", (0.0, 0.0))
    monkeypatch.setattr("headwater.limits.SPARK_RETRY_MAX_S", 0.01)


@pytest.mark.parametrize("piece", [50, 1000, 1 << 20])
def test_a_range_of_our_table(server: Server, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_PARSED_BYTES", piece)
    with Client(server.url) as client:
        table = client.table(f"reading/{next(_numbers)}")
        table.create()
        table.append([Put(f"k{n}", "x" * n) for n in range(100)] + [Remove("k3")])
        assert seqnos(read(table.url, 0, 101, gapless=True)) == list(range(1, 102))
        batches = read(table.url, 40, 60, gapless=True)
        assert seqnos(batches) == list(range(41, 61))
        assert batches[0].column("key")[0].as_py() == "k40"
        assert read(table.url, 0, 5, gapless=True, schema=FEW)[0].schema.names == ["record"]
        with pytest.raises(
            DataLossError, match="had rows up to 102 when the batch was planned, but ends after row 101"
        ):
            read(table.url, 0, 102, gapless=True)


def test_escaped_tables(server: Server) -> None:
    hard = "a\tb\nc\rd\\e"
    with Client(server.url) as client:
        table = client.table(f"reading/{next(_numbers)}")
        table.create(escape=Escape.BACKSLASH)
        table.append([Put(hard, hard), Put("plain", "plain")])
        [batch] = read(table.url, 0, 2, gapless=True, escape=Escape.BACKSLASH)
        assert batch.column("key").to_pylist() == batch.column("record").to_pylist() == [hard, "plain"]


# Servers that are not ours


def honest(seqnos: list[int], **headers: str) -> Script:
    """Supports only `since_id`, and sends all rows after it."""

    def script(_: int, path: str) -> Iterator[bytes]:
        since_id = int(path.partition("since_id=")[2].partition("&")[0])
        yield head(**headers) + lines(*[seqno for seqno in seqnos if seqno > since_id])

    return script


def after(*first: bytes, then: Script | None = None) -> Script:
    """Sends some prepared responses, and then correct ones."""

    def script(number: int, path: str) -> Iterator[bytes]:
        if number < len(first):
            yield first[number]
        else:
            yield from (then or honest([1, 2, 3, 4], STP_Gapless="true"))(number, path)

    return script


@pytest.mark.parametrize("until", [3, 4, 9])
def test_a_foreign_table_with_gaps(until: int) -> None:
    with hostile_server(honest([1, 3, 9, 20])) as other:
        assert seqnos(read(f"{other.url}/t", 0, until)) == [seqno for seqno in (1, 3, 9) if seqno <= until]
        assert seqnos(read(f"{other.url}/t?eu=1", 1, until)) == [seqno for seqno in (3, 9) if seqno <= until]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(head(STP_Gapless="true") + lines(1, 2, 3)[:-8], id="truncated within a line"),
        pytest.param(head(STP_Gapless="true") + lines(1, 2), id="truncated between lines"),
        pytest.param(head(STP_Gapless="true", Content_Length="1000") + lines(1, 2), id="cut off"),
        pytest.param(head(STP_Gapless="true") + lines(1, 3, 4), id="a row is missing"),
        pytest.param(head(STP_Gapless="true") + lines(2, 3, 4), id="the first row is missing"),
        pytest.param(head(STP_Gapless="true") + lines(1, 2, 1, 2, 3, 4), id="repeats"),
        pytest.param(head("503 Unavailable"), id="not now"),
        pytest.param(b"", id="nothing"),
        pytest.param(head(Content_Encoding="gzip") + gzip.compress(lines(1, 2, 3, 4))[:-20], id="cut gzip"),
    ],
)
def test_faults_that_a_retry_resolves(answer: bytes) -> None:
    with hostile_server(after(answer, answer)) as other:
        assert seqnos(read(f"{other.url}/t", 0, 4, gapless=True)) == [1, 2, 3, 4]
        assert len(other.seen) > 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (head(content_type="text/html") + b"<html>", ProtocolError),
        (head(content_type=CONTENT_TYPE.replace("version=1", "version=2")) + lines(1, 2, 3, 4), SchemaChangedError),
        (head(STP_Gapless="true") + lines(1, 3, 4), MissingRowError),
        (head(STP_Gapless="true", STP_Last_SeqNo="4") + lines(1, 2), MissingRowError),
        (head(STP_Gapless="true", STP_Last_SeqNo="2") + lines(1, 2), DataLossError),
        (head() + lines(1, 2), DataLossError),
        (head() + b"1\tnow\t+\n", InvalidRowError),
        (head() + lines(1).replace(b"+", b"*") + lines(2, 3, 4), InvalidRowError),
        (head() + lines(1).replace(b"k1", b"\xff") + lines(2, 3, 4), InvalidRowError),
        (head() + b"1" * (6 << 20), InvalidRowError),
        (head("302 Found", Location="http://127.0.0.1:1/") + b"", HeadwaterError),
        (head(Content_Encoding="br") + lines(1, 2, 3, 4), ProtocolError),
    ],
)
def test_faults_that_fail_the_task(answer: bytes, error: type[HeadwaterError]) -> None:
    """A row that the server has promised is never skipped, even if many responses lack it."""

    def always(_: int, path: str) -> Iterator[bytes]:
        yield answer if "since_id=0" in path else answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

    gapless = b"Gapless" in answer
    with hostile_server(always) as other, pytest.raises(error):
        read(f"{other.url}/t", 0, 4, gapless=gapless)


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_rows_of_one_response_may_be_out_of_order(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """The last row of the range does not end it, as long as the rows before it may follow."""
    monkeypatch.setattr("headwater.limits.SPARK_PARSED_BYTES", piece)
    script: Callable[..., Iterator[bytes]] = lambda *_: iter([head(), lines(1, 7, 4), lines(7) * 30_000, lines(2)])  # noqa: E731
    with hostile_server(script) as other:
        assert seqnos(read(f"{other.url}/t", 0, 7)) == [1, 2, 4, 7]


def test_tabs_and_carriage_returns_in_foreign_records() -> None:
    rows = lines(1, record="a\tb") + lines(2, record="c\rd") + lines(3)
    script: Callable[..., Iterator[bytes]] = lambda *_: iter([head(), rows])  # noqa: E731
    with hostile_server(script) as other:
        [batch] = read(f"{other.url}/t", 0, 3)
        assert batch.column("record").to_pylist() == ["a\tb", "c\rd", "r"]


def test_a_server_that_ignores_since_id() -> None:
    with hostile_server(lambda *_: iter([head(), lines(*range(1, 50))])) as other:
        assert seqnos(read(f"{other.url}/t", 20, 30)) == list(range(21, 31))


def test_a_compression_bomb_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(b"1" * (64 << 20))
    monkeypatch.setattr("headwater.spark.tables.reading.LOOPBACK", ())
    pieces: list[int] = []
    from headwater.spark.tables import reading

    gathered = reading._gathered

    def counting(chunks: Iterator[bytes]) -> Iterator[bytes]:
        def counted() -> Iterator[bytes]:
            for piece in chunks:
                pieces.append(len(piece))
                yield piece

        return gathered(counted())

    monkeypatch.setattr(reading, "_gathered", counting)
    with hostile_server(lambda *_: iter([head(Content_Encoding="gzip"), bomb])) as other:
        with pytest.raises(InvalidRowError, match="longer than"):
            read(f"{other.url}/t", 0, 4)
    assert sum(pieces) < 6 << 20
