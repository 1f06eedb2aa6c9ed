"""The jobs one after the other, as a separate program that can be killed.

python -m tests.spark.journey DIRECTORY URL: archives every stream below `src/`, replays the archive below `copy/`,
makes a snapshot of `src/state` and publishes the table `DIRECTORY/prices` as the stream `out`, all that there is now.
"""

from __future__ import annotations

import sys

import headwater.spark
from headwater.pipeline import archive, publish, replay, snapshot


def main(directory: str, url: str) -> None:
    spark = headwater.spark.session("journey", master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    table = f"{directory}/archive"
    archive(spark, url=url, streams="src/*", table=table, max_records=20, once=True).wait()
    replay(spark, url=url, table=table, to="copy").wait()
    snapshot(spark, url=url, streams="src/state", once=True).wait()
    publish(spark, url=url, table=f"{directory}/prices", keys=["item"], type="price", to="out", once=True).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
