"""The current state equals a naive fold, for all kinds of histories and in any micro-batches."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headwater.client import Client
from headwater.errors import SchemaError
from headwater.spark import current_state
from headwater.spark.columns import STATE_COLUMNS, ddl
from headwater.state import Collection, StreamDB, define_state

SCHEMA = ddl(STATE_COLUMNS, "STRING")
Row = dict[str, Any]
State = dict[tuple[str, str, str], str]


class History:
    """One stream: its events, and its rows as a query reads them in small ranges."""

    def __init__(self, stream: str, chance: random.Random, *, bytes_known: bool) -> None:
        self._stream = stream
        self._chance = chance
        self._bytes_known = bytes_known
        self.rows: list[Row] = []
        self.state: State = {}
        self._life = chance.randint(1, 5)
        self._begin_anew()
        for _ in range(chance.randint(0, 40)):
            self._step()

    def _begin_anew(self) -> None:
        """The stream is created, or created again, which discards its earlier events. Its first event is valid."""
        self.state.clear()
        self._life += self._chance.randint(1, 3)
        self._at = self._begin = self._number = 0
        self._change()

    def _step(self) -> None:
        if self._chance.random() < 0.3:  # a range ends, and the next one begins
            self._begin, self._number = self._at, 0
        happening = self._chance.random()
        if happening < 0.04 and self._bytes_known:  # otherwise a stream that was created again is not noticed
            self._begin_anew()
        elif happening < 0.10:
            self._add(control="reset")
            self.state.clear()
        elif happening < 0.15:
            self._add(control=self._chance.choice(("snapshot-start", "snapshot-end")))
        elif happening < 0.25:
            self._advance()  # a bad event, which was skipped
        else:
            self._change()

    def _change(self) -> None:
        operation = self._chance.choice(("insert", "update", "upsert", "delete"))
        kind, key, value = self._chance.choice("tu"), self._chance.choice("abcd"), str(self._chance.randint(0, 999))
        self._add(type=kind, key=key, operation=operation, value=None if operation == "delete" else value)
        if operation == "delete":
            self.state.pop((self._stream, kind, key), None)
        else:
            self.state[(self._stream, kind, key)] = value

    def _add(self, **columns: Any) -> None:
        offset = f"{self._life:016d}_{self._begin:016d}" if self._bytes_known else f"x{self._begin:08d}"
        place = {"stream": self._stream, "offset": offset, "position": self._number}
        nothing = dict.fromkeys(STATE_COLUMNS)
        self.rows.append({**nothing, **place, "order": self._at if self._bytes_known else None, **columns})
        self._advance()

    def _advance(self) -> None:
        self._at += self._chance.randint(20, 90)
        self._number += 1


def folded(rows: DataFrame) -> State:
    return {(row.stream, row.type, row.key): row.value for row in current_state(rows).collect()}


def test_any_history_in_any_batches(spark: SparkSession) -> None:
    chance = random.Random(19)
    histories = [History(f"h{n}", chance, bytes_known=n % 5 > 0) for n in range(400)]
    rows = [row for history in histories for row in history.rows]
    expected = {entity: value for history in histories for entity, value in history.state.items()}
    assert len(expected) > 500
    chance.shuffle(rows)
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], SCHEMA).repartition(3)
    assert folded(frame) == expected
    # the same in batches, each applied to the previous state
    state = spark.createDataFrame([], SCHEMA)
    for number in range(3):
        part = [
            row
            for one in histories
            for row in one.rows[len(one.rows) * number // 3 : len(one.rows) * (number + 1) // 3]
        ]
        batch = spark.createDataFrame([tuple(row.values()) for row in part], SCHEMA)
        whole = current_state(state.unionByName(batch)).selectExpr("*", "'upsert' AS operation")
        kept = [tuple(row.asDict().get(name) for name in STATE_COLUMNS) for row in whole.collect()]
        state = spark.createDataFrame(kept, SCHEMA)
    assert folded(state) == expected


def test_a_fork_has_the_state_of_its_source(spark: SparkSession) -> None:
    """A fork has the offsets of its source up to the point of the fork."""

    def row(life: int, at: int, key: str, value: str) -> tuple[Any, ...]:
        columns = {"stream": "fork", "offset": f"{life:016d}_{at:016d}", "position": 0, "order": at}
        return tuple(
            {
                **dict.fromkeys(STATE_COLUMNS),
                **columns,
                "type": "t",
                "key": key,
                "operation": "upsert",
                "value": value,
            }.values()
        )

    rows = [row(3, 0, "a", "1"), row(3, 50, "b", "2"), row(7, 90, "a", "3")]
    frame = spark.createDataFrame(rows, SCHEMA)
    assert folded(frame) == {("fork", "t", "a"): "3", ("fork", "t", "b"): "2"}


def test_the_columns_and_schemas_that_current_state_accepts(
    read: Callable[..., DataFrame], client: Client, path: str, spark: SparkSession
) -> None:
    def change(key: str, operation: str, value: Any = None) -> dict[str, Any]:
        return {
            "type": "t",
            "key": key,
            **({} if value is None else {"value": value}),
            "headers": {"operation": operation},
        }

    client.stream(f"{path}/a").create(messages=[change("old", "insert", 1), {"headers": {"control": "reset"}}])
    client.stream(f"{path}/a").append_many([change("1", "insert", 2), change("2", "insert", 3), change("2", "delete")])
    client.stream(f"{path}/b").create(messages=[change("old", "insert", {"n": 4})])
    events = read("stream-state", streams=f"{path}/a,{path}/b", minPartitions=3)
    state = current_state(events)
    assert {(row.stream, row.key): json.loads(row.value) for row in state.collect()} == {
        (f"{path}/a", "1"): 2,
        (f"{path}/b", "old"): {"n": 4},
    }
    assert state.columns == ["stream", "type", "key", "value", "order", "offset", "position"]
    incarnation = client.stream(f"{path}/a").head().tail_offset.partition("_")[0]
    [first] = events.where(f"stream = '{path}/a'").orderBy("order").take(1)
    assert first.offset == f"{incarnation}_{0:016d}"  # not -1, which has no incarnation
    with pytest.raises(SchemaError, match="needs all columns of stream-state; position, control are missing"):
        current_state(events.drop("position", "control"))
    with pytest.raises(SchemaError, match="needs a batch DataFrame"):
        current_state(spark.readStream.format("rate").load().selectExpr(*(f"'' AS `{name}`" for name in STATE_COLUMNS)))


def test_a_snapshot_replaces_earlier_events(read: Callable[..., DataFrame], client: Client, path: str) -> None:
    stream = client.stream(path)
    stream.create()

    def change(key: str, value: int | None) -> dict[str, Any]:
        operation = "delete" if value is None else "upsert"
        return {"type": "t", "key": key, "value": value, "headers": {"operation": operation}}

    stream.append_many([change("a", 1), change("b", 2), change("c", 3), change("b", None)])
    with StreamDB(stream, define_state({"things": Collection("t", int)})) as db:
        db.preload()
        db.publish_snapshot()
    stream.append_many([change("a", 4), change("c", None), change("d", 5)])
    whole, begun = (
        {
            row.asDict()["key"]: row.value
            for row in current_state(read("stream-state", streams=path, **options)).collect()
        }
        for options in ({}, {"startingOffsets": "snapshot"})
    )
    assert whole == begun == {"a": "4", "d": "5"}
    assert read("stream-state", streams=path, startingOffsets="snapshot").count() == 7  # four of them are the snapshot
