"""Files of a table as tasks read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.errors import DataLossError
from headwater.pipeline.lake import Lake
from headwater.pipeline.scanning import FileReader, paths_of


def read(lake: Lake, paths: set[str]) -> list[str]:
    reader = FileReader(lake, 0, ["region"], pa.schema([("region", pa.string())]))
    paths_batch = pa.RecordBatch.from_pydict({"path": sorted(paths)})
    return [value for batch in reader(iter([paths_batch])) for value in batch["region"].to_pylist()]


def test_partition_values_that_are_encoded_in_paths(tmp_path: Path) -> None:
    regions = ["plain", "a b", "a%20b", "ü", "x%y", "a/b", "c:d=e", "a+b"]
    write_deltalake(tmp_path, pa.table({"k": range(len(regions)), "region": regions}), partition_by=["region"])
    lake = Lake(str(tmp_path))
    assert sorted(read(lake, paths_of(lake, 0))) == sorted(regions)


def test_a_file_that_is_not_in_the_version(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"region": ["a"]}))
    lake = Lake(str(tmp_path))
    with pytest.raises(DataLossError, match=r"has no file none\.parquet"):
        read(lake, paths_of(lake, 0) | {"none.parquet"})
