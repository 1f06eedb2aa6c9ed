"""The Spark job: the current state of a state stream, as a table and back as a stream.

Every batch makes a version of the table from the one before and what changed, and appends what changed to the other
stream. Both can be repeated: a version is written whole under its batch's number, and the append carries it as its id.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater import limits
from headwater.spark.columns import STATE_COLUMNS, ddl
from headwater.spark.folding import current_state, newest_events

_COLUMNS = ("stream", "offset", "position", "order", "type", "key", "operation", "value", "control")
_SCHEMA = ddl({name: STATE_COLUMNS[name] for name in _COLUMNS}, "STRING")


class CurrentState:
    """Keeps the newest value of every key, as the event that gave it: the next batch is folded onto those."""

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
            events.select(*_COLUMNS)
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
        return found.select("type", "key", "value")

    def _keep(self, events: DataFrame, batch: int) -> None:
        events.persist()
        try:
            self._write_version(events, batch)
            self._publish(events, batch)
        finally:
            events.unpersist()
        for old in self._versions()[: -limits.DEMO_VERSIONS_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def _write_version(self, events: DataFrame, batch: int) -> None:
        before = [version for version in self._versions() if _number(version) < batch]
        whole = current_state(self._read(before[-1]).unionByName(events) if before else events)
        kept = whole.selectExpr("*", "'upsert' AS operation", "CAST(NULL AS STRING) AS control").select(*_COLUMNS)
        kept.coalesce(1).write.mode("overwrite").parquet(str(self._table / f"version={batch:012d}"))

    def _publish(self, events: DataFrame, batch: int) -> None:
        """The last change of each key, after a reset if there was one."""
        resets = events.where("control = 'reset'").limit(1).select("type", "key", "operation", "value", "control")
        changed = newest_events(events).selectExpr(
            "type",
            "key",
            "IF(operation = 'delete', 'delete', 'upsert') AS operation",
            "IF(operation = 'delete', NULL, value) AS value",
            "CAST(NULL AS STRING) AS control",
        )
        query = json.loads((self._checkpoint / "metadata").read_text())["id"]
        options = {"url": self._url, "stream": self._target, "writeId": query, "writeVersion": batch}
        resets.unionByName(changed).write.format("stream-state").options(**options).mode("append").save()

    def _versions(self) -> list[Path]:
        """The versions that were written to their end, oldest first."""
        return sorted(path.parent for path in self._table.glob("version=*/_SUCCESS"))

    def _read(self, version: Path) -> DataFrame:
        return self._spark.read.schema(_SCHEMA).parquet(str(version))


def _number(version: Path) -> int:
    return int(version.name.partition("=")[2])
