"""Computes the current state from events, as a DataFrame.

Events of a stream are ordered by the incarnation of the stream, which is in the offset, and then by `order`. A `reset`
removes everything before it in its stream, and so does deleting and creating the stream again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.utils import is_remote

from headwater.errors import SchemaError
from headwater.spark.positions import BYTE_POSITION_SQL, INCARNATION_SQL

_NEEDED = ("stream", "offset", "position", "order", "type", "key", "operation", "value", "control")
_KEPT = ("value", "order", "offset", "position")


def current_state(events: DataFrame) -> DataFrame:
    """Compute the current state of a `stream-state` DataFrame: the newest value of each key that is not deleted.

    A row is one key of one type in one stream. The events may be in any order and partitions, and from many batches,
    but they must include all events of their streams since the last reset.
    """
    return newest_events(events).where("operation != 'delete'").select("stream", "type", "key", *_KEPT)


def newest_events(events: DataFrame) -> DataFrame:
    """The last change of each key since the last reset, including deletes."""
    if not is_remote():  # the definition of a declarative pipeline must not request columns
        _check(events)
    placed = events.select(
        "*",
        F.coalesce(F.expr(INCARNATION_SQL), F.lit(0)).alias("_life"),
        F.expr(BYTE_POSITION_SQL).alias("_begin"),
        F.struct("order", "offset", "position").alias("_place"),
    )
    alive = (F.col("_ends").isNull() | (F.col("order") < F.col("_ends"))) & (
        F.col("_reset").isNull() | (F.col("_place") > F.col("_reset"))
    )
    last = F.max_by(F.struct("operation", *_KEPT), F.struct("_life", "_place")).alias("_last")
    return (
        placed.where("operation IS NOT NULL")
        .join(_lives(placed), ["stream", "_life"])  # small, so Spark broadcasts it
        .where(alive & ~F.col("_over"))
        .groupBy("stream", "type", "key")
        .agg(last)
        .select("stream", "type", "key", "_last.*")
    )


def _check(events: DataFrame) -> None:
    missing = [name for name in _NEEDED if name not in events.columns]
    if missing:
        raise SchemaError(f"current_state needs all columns of stream-state; {', '.join(missing)} are missing")
    if events.isStreaming:
        raise SchemaError("current_state needs a batch DataFrame: store the events in a table, or use foreachBatch")


def _lives(placed: DataFrame) -> DataFrame:
    """For each incarnation of a stream: its last reset, whether a later incarnation has a reset (`_over`), and where
    later ones start (`_ends`). A stream that is created again starts at 0, a fork at its offset in the source."""
    incarnations = placed.groupBy("stream", "_life").agg(
        F.min("_begin").alias("_begin"),
        F.max(F.when(F.col("control") == "reset", F.col("_place"))).alias("_reset"),
    )
    later = Window.partitionBy("stream").orderBy("_life").rowsBetween(1, Window.unboundedFollowing)
    return incarnations.select(
        "stream",
        "_life",
        "_reset",
        F.min("_begin").over(later).alias("_ends"),
        F.coalesce(F.max(F.col("_reset").isNotNull()).over(later), F.lit(False)).alias("_over"),
    )
