"""Maintenance of the tables of jobs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headwater import limits
from headwater.pipeline.lake import DataFile, Lake, TableBatch
from headwater.pipeline.upkeep import TableUpkeep


def test_small_files_are_merged_after_some_batches(tmp_path: Path) -> None:
    lake, missing = Lake(str(tmp_path / "t")), Lake(str(tmp_path / "missing"))
    rows = pa.table({"n": [1]})
    lake.create(rows.schema)
    files = []
    for number in range(4):
        lake.commit(lake.open(), [lake.write(rows, {})], batch=TableBatch("job", number, made_of=number))
        TableUpkeep(3, 1).after(number, [lake, missing])
        TableUpkeep(0, 1).after(number, [lake])
        files.append(len(lake.open().file_uris()))
    assert files == [1, 2, 1, 2]
    assert lake.open().count() == 4
    assert not missing.exists()


def test_files_and_log_level_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch replaces the file of the one before. Without retention, only the last round stays."""
    monkeypatch.setattr(limits, "PIPELINE_HOUR_S", 0.0)
    lake = Lake(str(tmp_path / "t"))
    rows = pa.table({"n": [1]})
    lake.create(rows.schema)
    files, logs, notes = [], [], []
    removed: list[DataFile] = []
    for number in range(30):
        written = lake.write(rows, {})
        lake.commit(lake.open(), [written], batch=TableBatch("job", number, made_of=number), removing=removed)
        removed = [written]
        TableUpkeep(5, 1).after(number, [lake])
        if number % 5 == 4:
            files.append(len(list((tmp_path / "t").glob("*.parquet"))))
            logs.append(len(list((tmp_path / "t" / "_delta_log").iterdir())))
            checkpoint = max((tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet"))
            notes.append(pc.sum(pc.is_valid(pq.read_table(checkpoint)["remove"])).as_py())
    assert files[1:] == files[1:2] * 5
    assert logs[1:] == logs[1:2] * 5
    assert max(notes) <= 5
    assert lake.open().count() == 1
    assert lake.open().transaction_version("job") == 29


def test_a_retention_that_changes_is_a_property_of_the_table(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "t"))
    lake.create(pa.schema([("n", pa.int64())]), configuration={"headwater.own": "x"})
    for hours in (2, 2, 5):
        TableUpkeep(1, hours).after(0, [lake])
        properties = lake.open().metadata().configuration
        assert properties["delta.logRetentionDuration"] == f"interval {hours * 3600} seconds"
        assert properties["delta.deletedFileRetentionDuration"] == f"interval {hours * 3600} seconds"
        assert properties["headwater.own"] == "x"
    TableUpkeep(1, None).after(0, [lake])
    assert lake.open().metadata().configuration == properties
