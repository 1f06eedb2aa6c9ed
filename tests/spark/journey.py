"""One job, as a separate program that can be killed.

python -m tests.spark.journey JOB DIRECTORY URL: archives every stream below `src/`, replays the archive below `copy/`,
makes a snapshot of `src/state`, or publishes the table `DIRECTORY/prices` as the stream `out`, all that there is now.
"""

from __future__ import annotations

import sys

import headwater.spark
from headwater.pipeline import archive, publish, replay, snapshot
from headwater.pipeline.jobs import Job


def main(name: str, directory: str, url: str) -> None:
    spark = headwater.spark.session("journey", master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    table = f"{directory}/archive"
    job: Job
    match name:
        case "archive":
            job = archive(spark, url=url, streams="src/*", table=table, max_records=20, once=True)
        case "replay":
            job = replay(spark, url=url, table=table, to="copy")
        case "snapshot":
            job = snapshot(spark, url=url, streams="src/state", once=True)
        case _:
            prices = f"{directory}/prices"
            job = publish(spark, url=url, table=prices, keys=["item"], type="price", to="out", once=True)
    job.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
