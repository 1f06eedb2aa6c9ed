"""Bad events: skipped, counted, and kept in a stream."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from headwater.client import Client
from headwater.errors import InvalidEventError, OptionError
from headwater.spark.columns import RangeReader
from headwater.spark.options import ReadOptions, read_options
from headwater.spark.planning import Planner
from tests.servers import Server

_numbers = itertools.count()
COLUMNS = StructType(
    [StructField("stream", StringType()), StructField("key", StringType()), StructField("position", LongType())]
)
GOOD = {"type": "t", "key": "k", "value": 1, "headers": {"operation": "insert"}}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def options_of(server: Server, path: str, **texts: str) -> ReadOptions:
    return read_options({"url": server.url, "streams": path, **texts}, bounded=True)


def read(options: ReadOptions, client: Client, schema: StructType = COLUMNS) -> list[dict[str, Any]]:
    planner = Planner(options, client)
    end = planner.resolve(options.ending_offsets, planner.check())
    reader = RangeReader(options, client, schema)
    ranges = [one for part in planner.partitions({}, end) for one in part]
    return [row for one in ranges for batch in reader.read(one) for row in batch.to_pylist()]


def test_a_response_with_only_bad_events(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This raised a KeyError at every restart if the response was the first of its range."""
    path = f"skipping/{next(_numbers)}"
    client.stream(path).create(messages=[{"bad": True}, 7])
    with caplog.at_level(logging.WARNING):
        assert read(options_of(server, path, badEvents="skip"), client) == []
    assert f"{path}: skipped 2 bad events from {client.stream(path).splits(parts=1).offset} to" in caplog.text
    client.stream(path).append(GOOD)
    assert read(options_of(server, path, badEvents="skip"), client) == [{"stream": path, "key": "k", "position": 2}]
    with pytest.raises(InvalidEventError):
        read(options_of(server, path), client)


def test_kept_events_have_the_reason(server: Server, client: Client) -> None:
    path = f"skipping/{next(_numbers)}"
    delete = {"type": "t", "key": "k", "value": {"n": "x"}, "headers": {"operation": "delete"}}
    messages = [{**GOOD, "value": {"n": 1}}, {"é": True}, {**delete, "value": {"n": 7}}, delete]
    client.stream(path).create(messages=messages)
    fields = StructType([StructField("n", LongType())])
    schema = StructType([StructField("key", StringType()), StructField("value", fields)])
    kept = StructType([*schema.fields, StructField("bad", StringType()), StructField("message", StringType())])
    good, bad, deleted, deleted_badly = read(
        options_of(server, path, badEvents="keep", deleteValues="true"), client, kept
    )
    assert (good["bad"], good["message"]) == (None, None)
    whole = read(options_of(server, path, badEvents="keepMessages"), client, kept)
    assert [json.loads(row["message"]) for row in whole] == messages
    assert [row["bad"] is None for row in whole] == [True, False, True, True]
    assert (bad["key"], bad["value"], bad["message"]) == (None, None, '{"é":true}')
    assert "headers" in bad["bad"]
    assert (deleted["value"], deleted["bad"]) == ({"n": 7}, None)
    assert (deleted_badly["value"], deleted_badly["bad"]) == (None, None)
    assert [row["value"] for row in read(options_of(server, path, badEvents="skip"), client, schema)][1:] == [
        None,
        None,
    ]


def test_dead_letters_are_stored_once(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the range is read several times, and if there are more than fit in an append."""
    monkeypatch.setattr("headwater.limits.SPARK_INLINE_BYTES", 500)
    path = f"skipping/{next(_numbers)}"
    bad = [{"no": number, "text": "é" * number} for number in range(50)]
    client.stream(path).create(messages=[GOOD, *bad, GOOD])
    options = options_of(server, path, badEvents="deadLetter", deadLetterStream=f"{path}/bad")
    for _ in range(2):
        assert [row["position"] for row in read(options, client)] == [0, 51]
    letters = client.stream(f"{path}/bad").read().all()
    assert [letter["message"] for letter in letters] == bad
    assert letters[3]["stream"] == path
    assert (letters[3]["offset"], letters[3]["position"]) == (client.stream(path).splits(parts=1).offset, 4)
    assert "it has no headers" in letters[3]["reason"]


def test_a_pattern_does_not_read_the_dead_letters(server: Server, client: Client) -> None:
    path = f"skipping/{next(_numbers)}"
    client.stream(f"{path}/a").create(messages=[GOOD, 1])
    texts = {"url": server.url, "pattern": f"{path}/**", "badEvents": "deadLetter", "deadLetterStream": f"{path}/bad"}
    for _ in range(2):
        assert len(read(read_options(texts, bounded=True), client)) == 1
    assert len(client.stream(f"{path}/bad").read().all()) == 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"badEvents": "deadLetter"}, "must be set together"),
        ({"deadLetterStream": "x"}, "must be set together"),
        ({"badEvents": "deadLetter", "deadLetterStream": "a"}, "a cannot be the deadLetterStream"),
        ({"badEvents": "drop"}, "badEvents must be fail or skip or keep or keepMessages or deadLetter"),
    ],
)
def test_errors_name_the_mistake(server: Server, texts: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options_of(server, "a", **texts)


def test_events_that_are_bad_by_another_schema_are_stored_too(server: Server, client: Client) -> None:
    path = f"skipping/{next(_numbers)}"
    values: list[Any] = [{"age": 1}, {"age": "2"}]
    client.stream(path).create(messages=[{**GOOD, "key": str(n), "value": value} for n, value in enumerate(values)])
    options = options_of(server, path, badEvents="deadLetter", deadLetterStream=f"{path}/bad")
    for kind in (StringType(), LongType(), LongType()):
        value = StructType([StructField("age", kind)])
        assert len(read(options, client, StructType([StructField("value", value)]))) == 1
    letters = client.stream(f"{path}/bad").read().all()
    assert [letter["message"]["key"] for letter in letters] == ["0", "1"]


def test_a_required_field(server: Server, client: Client) -> None:
    path = f"skipping/{next(_numbers)}"
    numbers = ArrayType(LongType(), containsNull=False)
    fields = StructType([StructField("a", LongType(), nullable=False), StructField("b", numbers)])
    good: list[Any] = [{"a": 1}, {"a": 2, "b": [3]}]
    bad: list[Any] = [{}, {"a": None}, {"a": 1, "b": [None]}]
    client.stream(path).create(messages=[{**GOOD, "value": value} for value in (*good, *bad)])
    rows = read(options_of(server, path, badEvents="skip"), client, StructType([StructField("value", fields)]))
    assert [row["value"] for row in rows] == [{"a": 1, "b": None}, {"a": 2, "b": [3]}]
