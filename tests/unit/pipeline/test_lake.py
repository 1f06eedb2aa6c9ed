"""Delta tables as the jobs write them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake.exceptions import CommitFailedError

from headwater.pipeline.lake import Lake, is_done

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("b", pa.string())])
NOON = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers), "at": [NOON] * len(numbers)}, schema=SCHEMA.remove(2))


def test_a_batch_is_committed_once(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"))
    table, other = lake.create(SCHEMA, ["b"]), lake.create(SCHEMA, ["b"])
    assert not is_done(table, "job", 0)
    lake.commit(table, [lake.write(rows(1, 2), {"b": "x"})], job="job", batch=0)
    assert is_done(lake.open(), "job", 0)
    assert not is_done(lake.open(), "job", 1)
    assert not is_done(lake.open(), "other", 0)
    with pytest.raises(CommitFailedError):  # of a second driver, which had looked before
        lake.commit(other, [lake.write(rows(1, 2), {"b": "x"})], job="job", batch=0)
    assert lake.open().to_pyarrow_table().num_rows == 2


def test_partitions_are_replaced_whole(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"))
    table = lake.create(SCHEMA, ["b"])
    lake.commit(table, [lake.write(rows(1), {"b": "x"}), lake.write(rows(2), {"b": "y"})], job="job", batch=0)
    lake.commit(lake.open(), [lake.write(rows(3), {"b": "x"})], job="job", batch=1, replacing={"b": ["x"]})
    found = lake.open().to_pyarrow_table().to_pylist()
    assert {(row["n"], row["b"]) for row in found} == {(3, "x"), (2, "y")}


def test_statistics_leave_no_row_out(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"))
    lake.commit(lake.create(SCHEMA, ["b"]), [lake.write(rows(1), {"b": "x"})], job="job", batch=0)
    found = lake.open().to_pyarrow_dataset().to_table(filter=pc.field("at") >= pa.scalar(NOON))
    assert found.num_rows == 1


def test_rows_with_structs_are_counted(tmp_path: Path) -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.int64()))])
    lake = Lake(str(tmp_path / "t"))
    found = pa.table({"s": [{"a": 1}, None], "l": [[1], None]}, schema=schema)
    lake.commit(lake.create(schema), [lake.write(found, {})], job="job", batch=0)
    assert lake.open().count() == 2
