"""Delta tables as the jobs write them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake.exceptions import CommitFailedError

from headwater.errors import BatchReusedError, JobConflictError
from headwater.pipeline.lake import Lake, TableBatch, telling_conflicts

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("b", pa.string())])
ROWS = pa.table({"n": [1]})
NOON = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers), "at": [NOON] * len(numbers)}, schema=SCHEMA.remove(2))


def test_a_batch_is_committed_once(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"))
    table, other = lake.create(SCHEMA, ["b"]), lake.create(SCHEMA, ["b"])
    assert not TableBatch("job", 0, 0).is_done(table)
    lake.commit(table, [lake.write(rows(1, 2), {"b": "x"})], batch=TableBatch("job", 0, 0))
    assert TableBatch("job", 0, 0).is_done(lake.open())
    assert not TableBatch("job", 1, 0).is_done(lake.open())
    assert not TableBatch("other", 0, 0).is_done(lake.open())
    with pytest.raises(CommitFailedError):  # a second driver that opened the table before
        lake.commit(other, [lake.write(rows(1, 2), {"b": "x"})], batch=TableBatch("job", 0, 0))
    assert lake.open().to_pyarrow_table().num_rows == 2


def test_partitions_are_replaced_whole(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"))
    table = lake.create(SCHEMA, ["b"])
    lake.commit(
        table, [lake.write(rows(1), {"b": "x"}), lake.write(rows(2), {"b": "y"})], batch=TableBatch("job", 0, 0)
    )
    lake.commit(lake.open(), [lake.write(rows(3), {"b": "x"})], batch=TableBatch("job", 1, 0), replacing={"b": ["x"]})
    stored = lake.open().to_pyarrow_table().to_pylist()
    assert {(row["n"], row["b"]) for row in stored} == {(3, "x"), (2, "y")}


def test_statistics_include_every_row(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"))
    lake.commit(lake.create(SCHEMA, ["b"]), [lake.write(rows(1), {"b": "x"})], batch=TableBatch("job", 0, 0))
    late = lake.open().to_pyarrow_dataset().to_table(filter=pc.field("at") >= pa.scalar(NOON))
    assert late.num_rows == 1


def test_rows_with_structs_are_counted(tmp_path: Path) -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.int64()))])
    lake = Lake(str(tmp_path / "t"))
    rows = pa.table({"s": [{"a": 1}, None], "l": [[1], None]}, schema=schema)
    lake.commit(lake.create(schema), [lake.write(rows, {})], batch=TableBatch("job", 0, 0))
    assert lake.open().count() == 2


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path))
    lake.create(ROWS.schema)
    for number in (3, 4):
        lake.commit(lake.open(), [lake.write(ROWS, {})], batch=TableBatch("job", number, made_of=2**63 - number))
    lake.open().create_checkpoint()
    return lake


def test_a_batch_that_is_repeated(lake: Lake) -> None:
    batch = TableBatch("job", 4, made_of=2**63 - 4)
    batch.check(lake.open())
    assert batch.is_done(lake.open())


@pytest.mark.parametrize("batch", [TableBatch("job", 5, 1), TableBatch("another", 4, 1)])
def test_a_new_batch(lake: Lake, batch: TableBatch) -> None:
    batch.check(lake.open())
    assert not batch.is_done(lake.open())


@pytest.mark.parametrize("batch", [TableBatch("job", 4, 2**63 - 5), TableBatch("job", 3, 2**63 - 3)])
def test_a_number_that_was_used_for_other_rows(lake: Lake, batch: TableBatch) -> None:
    with pytest.raises(BatchReusedError, match="the checkpoint was set back"):
        batch.check(lake.open())


def test_the_slower_of_two_runs_gets_a_conflict(tmp_path: Path) -> None:
    lake, batch = Lake(str(tmp_path / "t")), TableBatch("job", 0, made_of=1)
    table, other = lake.create(SCHEMA, ["b"]), lake.create(SCHEMA, ["b"])
    lake.commit(table, [lake.write(rows(1), {"b": "x"})], batch=batch)
    with pytest.raises(JobConflictError, match="batch 0"), telling_conflicts(lake, batch):
        lake.commit(other, [lake.write(rows(1), {"b": "x"})], batch=batch)
    with pytest.raises(CommitFailedError), telling_conflicts(lake, TableBatch("job", 1, made_of=2)):
        raise CommitFailedError("the disk, say")
