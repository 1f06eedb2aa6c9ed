"""Every event of a shop as a streaming table, and what follows from them as views that keep up."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.spark import current_state

spark = SparkSession.active()
HOME = Path(__file__).resolve().parent.parent


def check_catalog() -> None:
    """Refuse a run whose tables the next run would not know. Spark keeps its position in `storage`, so it would go on
    from there with empty tables."""
    if spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        how = "spark-pipelines run --conf spark.sql.catalogImplementation=hive"
        raise RuntimeError(f"Spark's catalog is in memory, so the next run would not know the tables; use: {how}")
    warehouse = Path(unquote(urlsplit(spark.conf.get("spark.sql.warehouse.dir")).path)).resolve()
    if warehouse.parent != HOME:
        raise RuntimeError(
            f"the tables would be in {warehouse}, apart from earlier runs; run spark-pipelines in {HOME}"
        )


@dp.table
def shop_events() -> DataFrame:
    """What happened, once each, in the order of each stream."""
    check_catalog()
    return (
        spark.readStream.format("stream-state")
        .option("url", spark.conf.get("headwater.url"))
        .option("pattern", "shop/*")
        .option("badEvents", "skip")
        .load()
    )


@dp.materialized_view
def shop_state() -> DataFrame:
    """The last value of every key that was not deleted."""
    return current_state(spark.read.table("shop_events")).select("type", "key", "value")


@dp.materialized_view
def orders_by_status() -> DataFrame:
    return (
        spark.read.table("shop_state")
        .where("type = 'order'")
        .groupBy(F.get_json_object("value", "$.status").alias("status"))
        .count()
    )
