"""The Spark job: the current state of a state stream, as a table and back as a stream.

Every batch makes a version of the table from the one before and what changed, and appends what changed to the other
stream. Both can be repeated: a version is written whole under its batch's number, and the append carries it as its id.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from headwater import limits

_COLUMNS = ("type", "key", "value", "order", "deleted")
_SCHEMA = "type STRING, key STRING, value STRING, `order` BIGINT, deleted BOOLEAN"


class CurrentState:
    """Keeps the newest value of every key; a deleted key is remembered as such, or a late event would bring it back."""

    def __init__(self, spark: SparkSession, url: str, source: str, target: str, directory: Path) -> None:
        self._spark = spark
        self._url = url
        self._source = source
        self._target = target
        self._table = directory / "table"
        self._checkpoint = directory / "checkpoint"

    def start(self) -> StreamingQuery:
        events = self._spark.readStream.format("stream-state").options(url=self._url, streams=self._source).load()
        return (
            events.where("control IS NULL")
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", str(self._checkpoint))
            .queryName("current-state")
            .start()
        )

    def version(self) -> Path | None:
        """Where the newest version of the table is."""
        versions = self._versions()
        return versions[-1] if versions else None

    def rows(self) -> DataFrame:
        """The keys that are there now."""
        newest = self.version()
        found = self._spark.createDataFrame([], _SCHEMA) if newest is None else self._read(newest)
        return found.where("NOT deleted").select("type", "key", "value")

    def _keep(self, events: DataFrame, batch: int) -> None:
        changed = _newest(events.select("*", F.expr("operation = 'delete'").alias("deleted"))).persist()
        try:
            self._write_version(changed.select(*_COLUMNS), batch)
            self._publish(changed, batch)
        finally:
            changed.unpersist()
        for old in self._versions()[: -limits.DEMO_VERSIONS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def _write_version(self, changed: DataFrame, batch: int) -> None:
        before = [version for version in self._versions() if _number(version) < batch]
        whole = _newest(self._read(before[-1]).unionByName(changed)) if before else changed
        whole.coalesce(1).write.mode("overwrite").parquet(str(self._table / f"version={batch:012d}"))

    def _publish(self, changed: DataFrame, batch: int) -> None:
        events = changed.selectExpr(
            "type", "key", "IF(deleted, 'delete', 'upsert') AS operation", "IF(deleted, NULL, value) AS value"
        )
        query = json.loads((self._checkpoint / "metadata").read_text())["id"]
        options = {"url": self._url, "stream": self._target, "writeId": query, "writeVersion": batch}
        events.write.format("stream-state").options(**options).mode("append").save()

    def _versions(self) -> list[Path]:
        """The versions that were written to their end, oldest first."""
        return sorted(path.parent for path in self._table.glob("version=*/_SUCCESS"))

    def _read(self, version: Path) -> DataFrame:
        return self._spark.read.schema(_SCHEMA).parquet(str(version))


def _number(version: Path) -> int:
    return int(version.name.partition("=")[2])


def _newest(events: DataFrame) -> DataFrame:
    """The last event of each key."""
    last = F.max_by(F.struct("value", "order", "deleted"), "order").alias("last")
    return events.groupBy("type", "key").agg(last).select("type", "key", "last.*")
