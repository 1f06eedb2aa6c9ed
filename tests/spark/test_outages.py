"""Sources and sinks while the server answers 503: for a moment, and for longer than `retryTimeout`."""

from __future__ import annotations

import pytest
from bench.servers import Server
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.client import Client
from headwater.pipeline import archive
from headwater.pipeline.lake import Lake
from tests.fault.hostile import Fate, hostile

pytestmark = pytest.mark.slow


class Outage:
    """503 to every request, from the first one that has `begins_at` in its line until the outage is over."""

    def __init__(self, begins_at: str) -> None:
        self._begins_at = begins_at
        self._has_begun = False
        self.is_over = False

    def decide(self, what: str, _times: int) -> Fate:
        self._has_begun = self._has_begun or self._begins_at in what
        return Fate("503") if self._has_begun and not self.is_over else Fate()


def copy(spark: SparkSession, url: str, path: str, checkpoint: str, **options: float) -> None:
    """Copy a stream to another one: all that there is now."""
    rows = (
        spark.readStream.format("durable-streams")
        .options(url=url, streams=f"{path}/src", maxRecordsPerTrigger=40, **options)
        .load()
        .select(F.lit(f"{path}/dst").alias("stream"), "value")
    )
    target = rows.writeStream.format("durable-streams").options(url=url, checkpointLocation=checkpoint, **options)
    target.trigger(availableNow=True).start().awaitTermination()


def numbers(client: Client, path: str) -> list[int]:
    return [message["n"] for message in client.stream(path).read().all()]


def test_requests_that_are_answered_503_are_repeated(
    spark: SparkSession, server: Server, client: Client, path: str, checkpoint: str
) -> None:
    client.stream(f"{path}/src").create(messages=[{"n": n} for n in range(100)])
    client.stream(f"{path}/dst").create()
    with hostile(server, lambda _what, times: Fate("503") if times < 2 else Fate()) as proxy:
        copy(spark, proxy.url, path, checkpoint)
    assert numbers(client, f"{path}/dst") == [*range(100)]
    refused = {what.split()[0] for what, times in proxy.seen.items() if times > 2}
    assert {"GET", "POST"} <= refused  # of the source and of the sink


@pytest.mark.parametrize(("method", "name"), [("GET", "src"), ("POST", "dst")], ids=["source", "sink"])
def test_a_query_continues_after_an_outage_that_was_longer_than_its_retries(
    spark: SparkSession, server: Server, client: Client, path: str, checkpoint: str, method: str, name: str
) -> None:
    source = client.stream(f"{path}/src")
    source.create(messages=[{"n": n} for n in range(100)])
    client.stream(f"{path}/dst").create()
    outage = Outage(f"{method} /v1/stream/{path}/{name}")
    with hostile(server, outage.decide) as proxy:
        with pytest.raises(StreamingQueryException, match="OverloadedError"):
            copy(spark, proxy.url, path, checkpoint, retryTimeout=1)
        assert proxy.fates["503"] > 1
        source.append_many([{"n": n} for n in range(100, 120)])
        with pytest.raises(PySparkException, match="OverloadedError"):
            copy(spark, proxy.url, path, checkpoint, retryTimeout=1)
        outage.is_over = True
        copy(spark, proxy.url, path, checkpoint, retryTimeout=1)
    assert numbers(client, f"{path}/dst") == [*range(120)]


def test_an_archive_goes_on_after_answers_of_503(
    spark: SparkSession, server: Server, client: Client, path: str, checkpoint: str
) -> None:
    stream = client.stream(path)
    stream.create(messages=[{"n": n} for n in range(100)])
    table = f"{checkpoint}.table"
    with hostile(server, lambda _what, times: Fate("503") if times < 2 else Fate()) as proxy:
        assert archive(spark, url=proxy.url, streams=path, table=table, checkpoint=checkpoint, once=True).wait(300)
    assert proxy.fates["503"] > 2
    values = Lake(table).open().to_pyarrow_table().sort_by("order")["value"].to_pylist()
    assert values == [b'{"n":%d}' % n for n in range(100)]
