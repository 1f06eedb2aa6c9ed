"""Conditions that Spark hands to a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, GreaterThan, In, IsNotNull, Not
from pyspark.sql.types import StringType, StructField, StructType

from headwater.client import Client
from headwater.spark.options import read_options
from headwater.spark.sources import BatchReader
from tests.servers import Server

_numbers = itertools.count()
STREAM, TYPE, VALUE = (StructField(name, StringType()) for name in ("stream", "type", "value"))


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def prefix(client: Client) -> str:
    prefix = f"filters/{next(_numbers)}"
    for name in "abc":
        event = {"key": "1", "headers": {"operation": "insert"}}
        messages = [{**event, "type": kind, "value": f"{name}{kind}"} for kind in "xy"]
        client.stream(f"{prefix}/{name}").create(messages=[*messages, {"headers": {"control": "reset"}}])
    return prefix


def rows(server: Server, filters: list[Filter], *, state: bool = False, **given: Any) -> tuple[list[Any], list[Filter]]:
    """The rows of a batch, and the conditions that are left to Spark."""
    options = read_options({"url": server.url, **given}, bounded=True, state=state)
    reader = BatchReader(options, StructType([STREAM, TYPE, VALUE] if state else [STREAM, VALUE]), state=state)
    left = list(reader.pushFilters(filters))
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return found, left


def test_streams_that_are_left_out_are_not_asked_for(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Client, "list", lambda *_: pytest.fail("the list is not needed"))
    stream = Client.stream
    monkeypatch.setattr(Client, "stream", lambda self, path, **given: asked.append(path) or stream(self, path, **given))
    wanted = In(
        ("stream",), (f"{prefix}/b", f"{prefix}/missing", f"{prefix}/deep/er", "elsewhere", "../x", "a//b", None)
    )
    found, left = rows(server, [wanted], pattern=f"{prefix}/*")
    assert {row["stream"] for row in found} == {f"{prefix}/b"}
    assert left == []
    assert set(asked) == {f"{prefix}/b", f"{prefix}/missing"}
    asked.clear()
    found, _ = rows(server, [EqualTo(("stream",), f"{prefix}/a")], streams=f"{prefix}/a,{prefix}/b,{prefix}/gone")
    assert len(found) == 3
    assert set(asked) == {f"{prefix}/a"}
    asked.clear()
    both: list[Filter] = [EqualTo(("stream",), f"{prefix}/a"), EqualTo(("stream",), f"{prefix}/b")]
    assert rows(server, both, pattern=f"{prefix}/*") == ([], [])
    assert rows(server, both[:1], streams="other") == ([], [])
    assert asked == []


def test_types(server: Server, prefix: str) -> None:
    found, left = rows(server, [EqualTo(("type",), "y")], state=True, pattern=f"{prefix}/*")
    assert [(row["type"], row["value"]) for row in found] == [("y", f'"{name}y"') for name in "abc"]
    assert left == []
    given = {"streams": f"{prefix}/a", "valueSchema": "n INT"}  # which no value fits
    assert rows(server, [In(("type",), ("z",))], state=True, **given) == ([], [])


def test_what_is_left_to_spark(server: Server, prefix: str) -> None:
    others: list[Filter] = [
        IsNotNull(("stream",)),
        Not(EqualTo(("stream",), f"{prefix}/a")),
        GreaterThan(("stream",), "a"),
        EqualTo(("value",), "1"),
        EqualTo(("stream", "x"), "1"),
    ]
    found, left = rows(server, others, pattern=f"{prefix}/*")
    assert (len(found), left) == (9, others)
    _, left = rows(server, [EqualTo(("type",), "x")], pattern=f"{prefix}/*")  # a column that only state events have
    assert left == [EqualTo(("type",), "x")]


def test_spark_does_not_take_it_for_an_override(server: Server) -> None:
    """As it checks where push-down is off."""
    options = read_options({"url": server.url, "streams": "a"}, bounded=True)
    reader = BatchReader(options, StructType([VALUE]), state=False)
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
