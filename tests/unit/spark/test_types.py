"""State events of some types."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from headwater.client import Client
from headwater.errors import InvalidEventError, OptionError
from headwater.spark.options import read_options
from headwater.spark.sources import BatchReader
from tests.servers import Server

_numbers = itertools.count()
TEXT = StringType()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def path(client: Client) -> str:
    path = f"types/{next(_numbers)}"
    event = {"key": "1", "headers": {"operation": "insert"}}
    messages = [{**event, "type": kind, "value": {"n": kind}} for kind in "xyz"]
    client.stream(path).create(messages=[*messages, {"headers": {"control": "reset"}}, messages[0]])
    return path


def rows(server: Server, value: DataType = TEXT, **texts: Any) -> list[dict[str, Any]]:
    options = read_options({"url": server.url, **texts}, bounded=True)
    schema = [StructField(name, TEXT) for name in ("type", "control")] + [StructField("value", value)]
    return read(BatchReader(options, StructType(schema)))


def read(reader: BatchReader) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("types", ["x,z", ' ["z", "x"]'])
def test_control_events_belong_to_all_types(server: Server, path: str, types: str) -> None:
    events = rows(server, streams=path, types=types)
    assert [(row["type"], row["control"]) for row in events] == [("x", None), ("z", None), (None, "reset"), ("x", None)]
    every = rows(server, streams=path)
    assert events == [row for row in every if row["type"] != "y"]


def test_types_work_without_the_column_type(server: Server, path: str) -> None:
    options = read_options({"url": server.url, "streams": path, "types": "y"}, bounded=True)
    reader = BatchReader(options, StructType([StructField("value", TEXT)]))
    assert read(reader) == [{"value": '{"n":"y"}'}, {"value": None}]


def test_values_of_other_types_are_not_decoded(server: Server, path: str, client: Client) -> None:
    client.stream(path).append({"type": "number", "key": "1", "value": {"n": 1}, "headers": {"operation": "insert"}})
    value = StructType([StructField("n", IntegerType())])
    events = rows(server, value, streams=path, types="number")
    assert [row["value"] for row in events] == [None, {"n": 1}]
    with pytest.raises(InvalidEventError):
        rows(server, value, streams=path, types="number,x")


def test_bad_events_are_not_silently_left_out(server: Server, path: str, client: Client) -> None:
    client.stream(path).append({"type": "x", "key": "1", "headers": {"operation": "upside"}})
    with pytest.raises(InvalidEventError):
        rows(server, streams=path, types="y")


def test_invalid_lists(server: Server) -> None:
    with pytest.raises(OptionError, match="types must be a list, a,b or"):
        read_options({"url": server.url, "streams": "a", "types": "[1]"}, bounded=True)
    with pytest.raises(OptionError, match="stream-state"):
        read_options({"url": server.url, "streams": "a", "types": "a"}, bounded=True, state=False)
