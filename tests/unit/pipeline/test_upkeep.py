"""Maintenance of the tables of jobs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headwater.errors import OptionError
from headwater.pipeline.lake import Batch, Lake
from headwater.pipeline.upkeep import Upkeep


def test_small_files_are_merged_after_some_batches(tmp_path: Path) -> None:
    lake, missing = Lake(str(tmp_path / "t")), Lake(str(tmp_path / "missing"))
    rows = pa.table({"n": [1]})
    lake.create(rows.schema)
    files = []
    for number in range(4):
        lake.commit(lake.open(), [lake.write(rows, {})], batch=Batch("job", number, made_of=number))
        Upkeep(3, 1).after(number, [lake, missing])
        Upkeep(0, 1).after(number, [lake])
        files.append(len(lake.open().file_uris()))
    assert files == [1, 2, 1, 2]
    assert lake.open().count() == 4
    assert not missing.exists()


def test_less_than_one_hour_of_retention_is_refused() -> None:
    with pytest.raises(OptionError, match="must be at least 1"):
        Upkeep(3, 0)
