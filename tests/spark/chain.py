"""State streams to a Delta table to a table of the server, as a separate program that can be killed.

python -m tests.spark.chain DIRECTORY URL: materializes every stream below `src/` and publishes it as the table `out`,
all that there is now.
"""

from __future__ import annotations

import sys

import headwater.spark
from headwater.pipeline import materialize, publish


def main(directory: str, url: str) -> None:
    spark = headwater.spark.session("chain", master="local[2,4]")
    spark.sparkContext.setLogLevel("OFF")
    table = f"{directory}/state"
    materialize(
        spark, url=url, streams="src/*", table=table, type="item", schema="n INT, version INT", sequence_by="version",
        max_records=60, once=True,
    ).wait()  # fmt: skip
    publish(spark, url=url, table=table, keys=["stream", "key"], columns=["n"], to_table="out", once=True).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
