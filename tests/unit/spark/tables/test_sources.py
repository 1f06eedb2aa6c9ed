"""The readers as Spark calls them: planning in the driver, offsets in the checkpoint, reading in tasks."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headwater.client import Client, Put, Table
from headwater.errors import DataLossError, OptionError, StreamNotFoundError
from headwater.spark.tables.columns import SCHEMA
from headwater.spark.tables.options import table_read_options
from headwater.spark.tables.sources import TableBatchReader, TableStreamReader
from tests.servers import Server

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.limits.SPARK_RECHECKS_S", (0.0,))


@pytest.fixture
def table(server: Server) -> Iterator[Table]:
    with Client(server.url) as client:
        table = client.table(f"sources/{next(_numbers)}")
        table.create()
        table.append([Put(f"k{n}", "r") for n in range(10)])
        yield table


def batch(table: Table, **texts: str) -> TableBatchReader:
    return TableBatchReader(table_read_options({"url": table.url, **texts}, bounded=True), SCHEMA)


def stream(table: Table, **texts: str) -> TableStreamReader:
    options = {"url": table.url, "longPollTimeout": "0.05", **texts}
    return TableStreamReader(table_read_options(options, bounded=False), SCHEMA)


def read(reader: Any, parts: Any) -> list[list[int]]:
    """The rows that tasks read with a pickled copy of the reader."""
    copied = pickle.loads(pickle.dumps(reader))
    return [[seqno for rows in copied.read(part) for seqno in rows.column("seqno").to_pylist()] for part in parts]


def test_a_batch_read(table: Table) -> None:
    reader = batch(table, startingSeqNo="3", endingSeqNo="7", minPartitions="2")
    assert read(reader, reader.partitions()) == [[3, 4], [5, 6, 7]]
    assert batch(table, startingSeqNo="latest").partitions() == []
    with pytest.raises(OptionError, match="endingSeqNo 3 is before startingSeqNo 9"):
        batch(table, startingSeqNo="9", endingSeqNo="3").partitions()


def test_the_active_view(table: Table) -> None:
    table.append([Put("k0", "new"), ("-", "k1", "")])
    reader = batch(table, view="active")
    assert read(reader, reader.partitions()) == [[*range(3, 11), 11]]


def test_a_table_that_is_deleted_while_tasks_read(table: Table) -> None:
    strict, lenient = batch(table), batch(table, failOnDataLoss="false")
    parts = strict.partitions()
    table.delete()
    with pytest.raises(DataLossError, match="rows between 1 and 10 are lost"):
        read(strict, parts)
    assert read(lenient, parts) == [[]]
    with pytest.raises(StreamNotFoundError):
        batch(table).partitions()


def test_a_streaming_query(table: Table) -> None:
    reader = stream(table, maxRowsPerTrigger="4", minPartitions="2")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    offset, seen = reader.initialOffset(), []
    for _ in range(3):
        end = reader.latestOffset(offset, limit)
        seen += read(reader, reader.partitions(offset, end))
        offset = end
    assert seen == [[1, 2], [3, 4], [5, 6], [7, 8], [9], [10]]
    assert reader.latestOffset(offset, limit) is offset
    assert reader.reportLatestOffset() == offset
    reader.stop()


def test_available_now_reads_what_existed_at_its_start(table: Table) -> None:
    reader = stream(table)
    reader.prepareForTriggerAvailableNow()
    table.append([Put("later", "")])
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert offset["seqno"] == 10
    assert reader.latestOffset(offset, ReadAllAvailable()) is offset
    reader.stop()


def test_a_trigger_waits_for_a_row(table: Table) -> None:
    reader = stream(table, longPollTimeout="60", startingSeqNo="latest")
    offset = reader.initialOffset()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.latestOffset, offset, ReadAllAvailable())
        table.append([Put("later", "")])
        assert waiting.result()["seqno"] == 11
    reader.stop()


def test_a_table_that_was_created_again(table: Table) -> None:
    reader, lenient = stream(table), stream(table, failOnDataLoss="false")
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    table.delete()
    assert lenient.latestOffset(offset, ReadAllAvailable()) is offset
    with pytest.raises(DataLossError, match="the table does not exist any more"):
        reader.latestOffset(offset, ReadAllAvailable())
    table.create()
    table.append([Put(f"new{n}", "") for n in range(12)])
    with pytest.raises(DataLossError, match="was replaced after it was read up to row 10"):
        reader.latestOffset(offset, ReadAllAvailable())
    end = lenient.latestOffset(offset, ReadAllAvailable())
    assert read(lenient, lenient.partitions(offset, end)) == [list(range(1, 13))]
    reader.stop()
    lenient.stop()
