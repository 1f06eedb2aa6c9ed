"""Every event of a shop as a streaming table, and what follows from them as views that keep up."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.spark import current_state

spark = SparkSession.active()


@dp.table
def shop_events() -> DataFrame:
    """What happened, once each, in the order of each stream."""
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
