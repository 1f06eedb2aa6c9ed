"""Versions of a Delta table become changes in a state stream or a table, each once, even if the job is killed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.servers import Server
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import DataLossError, OptionError, SchemaError
from headwater.pipeline import publish, snapshot
from headwater.pipeline.publishing import _Publishing
from headwater.pipeline.targets import PublishTarget


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def run(spark: SparkSession, server: Server, table: str, path: str) -> Callable[..., int]:
    def run(**options: Any) -> int:
        parameters = {"url": server.url, "table": table, "keys": ["id"], "type": "thing", "to": path, "once": True}
        job = publish(spark, **{**parameters, **options})
        job.wait()
        return job.progress().rows

    return run


def _write(table: str, state: dict[int, str], partition_by: list[str] | None = None) -> None:
    rows = [{"id": key, "name": name, "part": key % 2} for key, name in state.items()]
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("part", pa.int64())])
    write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="overwrite", partition_by=partition_by)


def _state(client: Client, path: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for event in client.stream(path).read().all():
        if event["headers"]["operation"] == "delete":
            del values[event["key"]]
        else:
            values[event["key"]] = event["value"]
    return values


def _expected(state: dict[int, str]) -> dict[str, Any]:
    return {str(key): {"name": name, "part": key % 2} for key, name in state.items()}


def test_versions_become_changes(client: Client, path: str, table: str, run: Callable[..., int]) -> None:
    _write(table, {1: "a", 2: "b", 3: "c"}, partition_by=["part"])
    assert run() == 3
    _write(table, {1: "a", 2: "B", 4: "d"})  # the job is behind, so two versions are one difference
    _write(table, {1: "a", 2: "B", 4: "d", 5: "e"})
    assert run() == 4
    assert run() == 0
    DeltaTable(table).optimize.compact()
    assert run() == 0
    events = [(e["key"], e["headers"]["operation"]) for e in client.stream(path).read().all()]
    assert sorted(events[:3]) == [("1", "insert"), ("2", "insert"), ("3", "insert")]
    assert sorted(events[3:]) == [("2", "update"), ("3", "delete"), ("4", "insert"), ("5", "insert")]
    assert _state(client, path) == _expected({1: "a", 2: "B", 4: "d", 5: "e"})


def test_a_table_of_the_server_and_a_chosen_value(
    client: Client, path: str, table: str, run: Callable[..., int]
) -> None:
    name = path.replace("/", "-")
    _write(table, {1: '{"x": 1}', 2: "[]"})
    options = {"type": None, "to": None, "to_table": name, "keys": ["part", "id"], "value_column": "name"}
    assert run(**options) == 2
    DeltaTable(table).delete("id = 1")
    assert run(**options) == 1
    assert {key: row.record for key, row in client.table(name).active().items()} == {'["0","2"]': "[]"}


@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_anywhere_publishes_each_change_once(
    client: Client, path: str, table: str, run: Callable[..., int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    chance = random.Random(seed)
    state = dict.fromkeys(range(20), "x")
    _write(table, state)
    save, write = _Publishing._save, PublishTarget.write

    def dying_save(self: Any, now: Any) -> None:
        if now.publishing is None:  # all rows are sent, but the record of it is lost
            raise KilledError
        save(self, now)

    def dying_write(self: PublishTarget, *args: Any) -> None:
        write(self, *args)
        raise KilledError

    def never(self: PublishTarget, *args: Any) -> None:
        raise KilledError

    for death in ("save", "write", "before", "none"):
        with monkeypatch.context() as patched:
            if death == "save":
                patched.setattr(_Publishing, "_save", dying_save)
            elif death != "none":
                patched.setattr(PublishTarget, "write", dying_write if death == "write" else never)
            with contextlib.suppress(KilledError):
                run()
        for key in chance.sample(range(25), 8):
            state.pop(key, None) if chance.random() < 0.4 else state.update({key: str(chance.random())})
        _write(table, state)
    run()
    assert _state(client, path) == _expected(state)  # fails for a repeated delete
    events = client.stream(path).read().all()
    inserted = [event["key"] for event in events if event["headers"]["operation"] == "insert"]
    deleted = [event["key"] for event in events if event["headers"]["operation"] == "delete"]
    assert all(inserted.count(key) - deleted.count(key) == (1 if int(key) in state else 0) for key in set(inserted))


def test_invalid_options_and_tables(
    client: Client, path: str, table: str, run: Callable[..., int], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="no Delta table"):
        run()
    _write(table, {1: "a"})
    for options, message in (
        ({"keys": ["nope"]}, "there is no column nope"),
        ({"to": None, "type": None}, "set one target"),
        ({"to_table": "x"}, "set one target"),
        ({"type": None}, "to needs type"),
        ({"keys": []}, "keys"),
        ({"columns": ["name"], "value_column": "name"}, "either columns or value_column"),
        ({"apply_as_deletes": "true"}, "for rows"),
    ):
        with pytest.raises(OptionError, match=message):
            run(**options)
    twice = pa.table({"id": [1, 1], "name": ["a", "b"], "part": [1, 1]})
    write_deltalake(table, twice, mode="overwrite")
    with pytest.raises(SchemaError, match="two rows have the key 1"):
        run(to=f"{path}-twice")
    checkpoint = str(tmp_path / "checkpoint")
    _write(table, {1: "a"})
    run(checkpoint=checkpoint)
    with pytest.raises(OptionError, match="checkpoint"):
        run(checkpoint=checkpoint, to=f"{path}-other")
    again = str(tmp_path / "again")
    _write(again, {1: "a"})
    with pytest.raises(DataLossError, match="not the table that was published before"):
        run(checkpoint=checkpoint, table=again)


def test_rows_of_a_query(spark: SparkSession, server: Server, client: Client, path: str, checkpoint: str) -> None:
    client.stream(path).create(messages=[{"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 1, "n": None}])
    source = spark.readStream.format("durable-streams").options(url=server.url, streams=path).load()
    rows = source.selectExpr("from_json(value, 'id INT, n INT') AS v").select("v.*")
    for _ in range(2):
        job = publish(
            spark,
            url=server.url,
            rows=rows,
            keys=["id"],
            type="thing",
            to=f"{path}-out",
            apply_as_deletes="n IS NULL",
            checkpoint=checkpoint,
            once=True,
        )
        job.wait()
    assert _state(client, f"{path}-out") == {"2": {"n": 2}}
    assert len(client.stream(f"{path}-out").read().all()) == 3


def test_snapshots_of_streams_that_match(spark: SparkSession, server: Server, client: Client, path: str) -> None:
    event = {"type": "thing", "key": "a", "value": {"n": 1}, "headers": {"operation": "insert"}}
    for name in ("a", "b"):
        client.stream(f"{path}/{name}").create(messages=[event])
    client.stream(f"{path}/text").create(content_type="text/plain")
    for made in (2, 0):
        job = snapshot(spark, url=server.url, streams=f"{path}/*", once=True)
        assert job.wait(60)
        assert job.progress().rows == made
    assert len([info for info in client.list(path) if ".snapshots/" in info.path and info.closed]) == 2
    with pytest.raises(OptionError, match="text/plain"):
        snapshot(spark, url=server.url, streams=f"{path}/text", once=True).wait(60)


def test_a_version_that_cannot_be_published_is_skipped(
    client: Client, path: str, table: str, run: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    _write(table, {1: "a"})
    assert run() == 1
    twice = pa.table({"id": [2, 2], "name": ["b", "c"], "part": [0, 0]})
    write_deltalake(table, twice, mode="append")
    for _ in range(2):
        with pytest.raises(SchemaError, match="two rows have the key 2"):
            run()
    _write(table, {1: "A", 2: "b"})
    assert run() == 2
    assert "version 1 of" in caplog.text
    assert "is skipped: two rows have the key 2" in caplog.text
    assert _state(client, path) == _expected({1: "A", 2: "b"})


def test_numbers_that_json_does_not_have_are_refused(
    client: Client, path: str, table: str, run: Callable[..., int]
) -> None:
    kind = pa.list_(pa.struct([("x", pa.float64())]))
    for value in (float("nan"), float("-inf")):
        wrong = pa.table({"id": [1, 2], "xs": pa.array([[{"x": 1.5}, {"x": value}], None], kind)})
        write_deltalake(table, wrong, mode="overwrite")
        with pytest.raises(SchemaError, match="xs has a number that JSON does not have"):
            run()
    right = pa.table({"id": [1, 2], "xs": pa.array([[{"x": 1.5}, None], None], kind)})
    write_deltalake(table, right, mode="overwrite")
    assert run() == 2
    assert _state(client, path) == {"1": {"xs": [{"x": 1.5}, None]}, "2": {"xs": None}}
