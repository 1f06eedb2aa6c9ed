"""Streams of a server to Delta tables, in several runs of the job."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.servers import Server
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from headwater.client import Client
from headwater.errors import DataLossError, OptionError, SchemaError
from headwater.pipeline import materialize
from headwater.pipeline.materializing import applying, tables
from tests.restores import Restorable

Run = Callable[..., list[dict[str, Any]]]
RESET = {"headers": {"control": "reset"}}


def change(key: str, operation: str, value: Any = None, **more: Any) -> dict[str, Any]:
    event = {"type": "t", "key": key, "headers": {"operation": operation}, **more}
    return event if value is None else {**event, "value": value}


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def run(spark: SparkSession, server: Server, path: str, table: str) -> Run:
    """Bring the table up to date, and return its rows."""

    def run(**options: Any) -> list[dict[str, Any]]:
        parameters = {"streams": f"{path}/*", "table": table, "buckets": 4, **options}
        assert materialize(spark, url=server.url, once=True, **parameters).wait(120)
        return rows_of(parameters["table"])

    return run


def rows_of(table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["stream"], row["key"], row["incarnation"], row["order"]))


def told(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def test_current_state_without_a_schema(run: Run, client: Client, path: str, table: str) -> None:
    client.stream(f"{path}/a").create(messages=[change("1", "insert", {"n": 1}), change("2", "insert", 2), 7])
    client.stream(f"{path}/b").create(messages=[change("1", "insert", "x"), change("1", "delete")])
    rows = run()
    assert told(rows, "stream", "type", "key", "value") == [
        (f"{path}/a", "t", "1", '{"n":1}'),
        (f"{path}/a", "t", "2", "2"),
    ]
    assert all(row["updated_at"] is not None and "_" in row["offset"] for row in rows)
    (bad,) = DeltaTable(f"{table}.quarantine").to_pyarrow_table().to_pylist()
    assert (bad["stream"], bad["message"], bad["batch"]) == (f"{path}/a", "7", 0)
    assert "headers" in bad["reason"] or "object" in bad["reason"]
    client.stream(f"{path}/a").append_many([change("2", "delete"), RESET, change("3", "insert", 3)])
    client.stream(f"{path}/b").append(change("9", "upsert", 9))
    assert told(run(path="buckets"), "stream", "key", "value") == [(f"{path}/a", "3", "3"), (f"{path}/b", "9", "9")]


def test_the_quarantine_has_the_events_of_its_type(run: Run, client: Client, path: str, table: str) -> None:
    other = {**change("1", "paint", {"n": 1}), "type": "other"}
    numbers = [change(str(key), "insert", {"n": n, "f": 1.5}) for key, n in enumerate((1.0, 1e2, -0.0, 1.5, 2**31))]
    mixed = [other, change("o", "insert", {"f": 1e39}), change("p", "paint"), {"value": 1}, {**other, "type": 7}]
    client.stream(f"{path}/a").create(messages=[*numbers, *mixed])
    rows = run(type="t", schema="n INT, f FLOAT")
    assert told(rows, "key", "n", "f") == [("0", 1, 1.5), ("1", 100, 1.5), ("2", 0, 1.5)]
    bad = DeltaTable(f"{table}.quarantine").to_pyarrow_table().to_pylist()
    named = told(sorted(bad, key=lambda row: row["order"]), "type", "key")
    assert named == [("t", "3"), ("t", "4"), ("t", "o"), ("t", "p"), (None, None), (None, "1")]


def test_a_stream_that_was_created_again(run: Run, client: Client, path: str) -> None:
    for paths in ("merge", "buckets"):
        client.stream(f"{path}/a").create(messages=[change("1", "insert", 1), change("2", "insert", 2)])
        options = {"path": paths, "type": "t", "fail_on_data_loss": False, "stored_as_scd_type": 2}
        run(**options)
        client.stream(f"{path}/a").delete()
        client.stream(f"{path}/a").create(messages=[{**change("9", "insert", 9), "type": "other"}])
        assert not any(row["is_current"] for row in run(**options))
        client.stream(f"{path}/a").append(change("2", "insert", 3))
        rows = run(**options)
        assert told([row for row in rows if row["is_current"]], "key", "value") == [("2", "3")]
        closed = [row for row in rows if not row["is_current"]]
        assert all(row["valid_to"] is not None for row in closed)
        client.stream(f"{path}/a").delete()


@pytest.mark.parametrize("merging", ["merge", "buckets"])
def test_a_server_that_was_restored(spark: SparkSession, table: str, merging: str) -> None:
    """The rows of lost events cannot be told from others, also if data loss is accepted."""
    servers = Restorable()

    def run(url: str) -> None:
        options: dict[str, Any] = {"table": table, "path": merging, "fail_on_data_loss": False, "stored_as_scd_type": 2}
        materialize(spark, url=url, streams="**", buckets=2, once=True, **options).wait()

    with servers.serve() as server, Client(server.url) as client:
        client.stream("s").create(messages=[change("1", "insert", 1), change("2", "insert", 2)])
        servers.save()
        client.stream("s").append(change("3", "insert", 3))
        run(server.url)
    servers.restore()
    before = rows_of(table)
    with servers.serve() as server, Client(server.url) as client:
        client.stream("s").append_many([change("4", "insert", 4), change("1", "update", 5)])
        with pytest.raises(DataLossError, match=r"s was read up to position .* is read again from its beginning"):
            run(server.url)
    assert rows_of(table) == before


@pytest.mark.parametrize("scd", [1, 2])
def test_any_history(
    run: Run, client: Client, path: str, table: str, scd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late, duplicate and bad events and resets, in batches on both paths. Each run is killed once and continues."""
    chance = random.Random(scd)
    expected: dict[tuple[str, str], dict[int, int | None]] = {}
    bad = 0
    options = {"schema": "n INT, s BIGINT", "sequence_by": "s", "stored_as_scd_type": scd, "type": "t"}
    commits = tables.commit
    for number in range(2):
        for name in ("a", "b"):
            events: list[Any] = []
            for _ in range(30):
                key, sequence = chance.choice("klm"), chance.randint(0, 40)
                happening = chance.random()
                seen = expected.setdefault((f"{path}/{name}", key), {})
                if happening < 0.05:
                    events.append(RESET)
                    for (stream, _), kept in expected.items():
                        kept.clear() if stream == f"{path}/{name}" else None
                elif happening < 0.15:
                    events.append(change(key, "upsert", chance.choice([{"n": "x", "s": 1}, {"n": 1}])))
                    bad += 1
                elif happening < 0.35:
                    events.append(change(key, "delete", {"s": sequence}))
                    seen.setdefault(sequence, None)
                else:
                    value = chance.randint(0, 999)
                    events.append(change(key, "upsert", {"n": value, "s": sequence}))
                    seen.setdefault(sequence, value)
            source = client.stream(f"{path}/{name}", content_type="application/json")
            source.create(messages=events) if not number else source.append_many(events)
        left = [chance.randint(0, 2)]

        def killed(*args: Any, left: list[int] = left, **kwargs: Any) -> None:
            commits(*args, **kwargs)
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(applying, "commit", killed)
            with pytest.raises(RuntimeError, match="killed"):
                run(**options, path="buckets", max_records=40)
        rows = run(**options, path="merge" if number else "auto", max_records=40)
    current = {(row["stream"], row["key"]): row["n"] for row in rows if scd == 1 or row["is_current"]}
    newest = {entity: seen[max(seen)] for entity, seen in expected.items() if seen}
    assert current == {entity: value for entity, value in newest.items() if value is not None}
    assert DeltaTable(f"{table}.quarantine").to_pyarrow_table().num_rows == bad


def test_schemas_get_new_fields(run: Run, client: Client, path: str, table: str) -> None:
    client.stream(f"{path}/a").create(messages=[change("1", "insert", {"n": 1, "type": "x"})])
    assert told(run(schema="n INT"), "key", "n") == [("1", 1)]
    client.stream(f"{path}/a").append(change("2", "insert", {"n": 2, "type": "y"}))
    assert told(run(schema="n INT, type STRING"), "n", "value_type") == [(1, None), (2, "y")]
    with pytest.raises(SchemaError, match=r"n is integer .*, not string"):
        run(schema="n STRING, type STRING")
    with pytest.raises(SchemaError, match="lacks: n"):
        run(schema="type STRING")
    with pytest.raises(SchemaError, match="created with sequence_by=None"):
        run(schema="n INT, type STRING", sequence_by="n")
    with pytest.raises(OptionError, match="no column nn"):
        run(schema="n INT, type STRING", keys="nn")
    with pytest.raises(OptionError, match="is not valid over the columns"):
        run(schema="n INT, type STRING", sequence_by="m")
    with pytest.raises(OptionError, match="it must be a number"):
        run(schema="n INT, type STRING", sequence_by="append_time - TIMESTAMP '2026-01-01 00:00:00Z'")
    with pytest.raises(OptionError, match="m is map<string,int>, which cannot be compared"):
        run(schema="n INT, m MAP<STRING, INT>", keys="m")
    with pytest.raises(OptionError, match=r"interval.* cannot be read from JSON"):
        run(schema="n INT, m INTERVAL DAY TO SECOND")
    with pytest.raises(OptionError, match="does not support dots in names"):
        run(schema="n INT, `a.b` INT")


def test_required_fields(run: Run, client: Client, path: str, table: str) -> None:
    events = [
        change("1", "insert", {"id": 7, "n": 1}),
        change("2", "insert", {"n": 2}),
        change("3", "upsert", {"id": 3}),
    ]
    client.stream(f"{path}/a").create(messages=[*events, change("3", "delete", {"n": 3})])
    for paths in ("merge", "buckets"):
        options = {"schema": "id INT NOT NULL, n INT", "path": paths, "table": f"{table}-{paths}"}
        assert told(run(**options), "key", "id", "n") == [("1", 7, 1)]
        assert DeltaTable(f"{table}-{paths}.quarantine").to_pyarrow_table()["key"].to_pylist() == ["2"]


def test_keys_and_deletes_of_the_user(run: Run, client: Client, path: str, table: str) -> None:
    def shelf(row: int, place: str, gone: bool = False) -> dict[str, Any]:
        return {"row": row, "place": place, "gone": gone}

    events = [
        change("a", "insert", shelf(1, "x")),
        change("b", "insert", shelf(1, "y")),
        change("c", "insert", shelf(2, "x")),
        change("d", "update", shelf(1, "y", gone=True)),
        change("e", "delete", old_value=shelf(2, "x")),
        {**change("f", "delete"), "mine": {"a": [1, None]}},
    ]
    client.stream(f"{path}/a").create(messages=events)
    options = {"schema": "row INT, place STRING, gone BOOLEAN", "keys": "row,place", "apply_as_deletes": "gone"}
    assert told(run(**options), "row", "place", "key") == [(1, "x", "a")]
    (bad,) = DeltaTable(f"{table}.quarantine").to_pyarrow_table().to_pylist()
    assert bad["reason"] == "no row, which is part of the key"
    assert json.loads(bad["message"]) == events[-1]
