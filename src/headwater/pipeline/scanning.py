"""Files of a Delta table as a DataFrame. Tasks read them with delta-rs and pyarrow, so Spark needs no jars for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.errors import DataLossError
from headwater.pipeline.lake import Lake


def paths_of(lake: Lake, version: int | None = None) -> set[str]:
    """The files of a version of the table. Paths are URL-encoded in the log, but not in a dataset."""
    return {unquote(path) for path in pa.table(lake.open(version).get_add_actions())["path"].to_pylist()}


def scan(spark: SparkSession, lake: Lake, version: int, paths: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Columns of some files of a version, including partition columns."""
    arrow = pa.schema(lake.open(version).schema().to_arrow())
    schema = from_arrow_schema(pa.schema([arrow.field(name) for name in columns]))
    reader = FileReader(lake, version, list(columns), to_arrow_schema(schema, timezone="UTC"))
    if not paths:
        return spark.createDataFrame([], schema)
    files = spark.createDataFrame([(path,) for path in sorted(paths)], "path STRING")
    parts = min(len(paths), max(spark.sparkContext.defaultParallelism * 4, 1))
    return files.repartition(parts).mapInArrow(reader, schema)


class FileReader:
    """Reads files whose paths are the rows. Pickled for the tasks."""

    def __init__(self, lake: Lake, version: int, columns: list[str], schema: pa.Schema) -> None:
        self._lake = lake
        self._version = version
        self._columns = columns
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = {path for batch in batches for path in batch["path"].to_pylist()}
        if not wanted:
            return
        whole = self._lake.open(self._version).to_pyarrow_dataset()
        fragments = [part for part in whole.get_fragments() if part.path in wanted]
        missing = wanted - {part.path for part in fragments}
        if missing:
            raise DataLossError(f"version {self._version} of {self._lake.uri} has no file {min(missing)}")
        files = ds.FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)
        try:
            for batch in files.to_batches(columns=self._columns):
                if batch.num_rows:
                    yield batch.cast(self._schema)
        except FileNotFoundError as error:
            message = f"version {self._version} of {self._lake.uri} lacks files that a vacuum has deleted"
            raise DataLossError(message) from error
