"""`python -m bench`: run all benches, or the named ones.

python -m bench [memory] [durable] [client] [state] [state-by-url] [spark] [source] [sink] [scale] [tables] [pipeline]
    [archive] [upsert] [batches] [auth] [overload] [bounds] [subscriptions] [many-live] [console] [sql] [compaction]
    [startup] [fan-out] [postgres] [--seconds 5] [--out DIR]

Ends with an error if a row misses its goal.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from bench.auth_bench import run_auth
from bench.bounds_bench import run_bounds
from bench.client_bench import run_client
from bench.compaction_bench import run_compaction
from bench.console_bench import run_console
from bench.fanout_bench import run_fanout
from bench.history import RESULTS, save
from bench.many_live import run_many_live
from bench.overload_bench import run_overload
from bench.pipeline_bench import run_archive, run_batches, run_pipeline, run_upsert
from bench.postgres_bench import run_postgres
from bench.report import Row, is_met, table
from bench.scale_bench import run_scale
from bench.server_bench import Bench, run_durable, run_memory
from bench.spark_bench import run_sink, run_source, run_spark
from bench.sql_bench import run_sql
from bench.startup_bench import run_startup
from bench.state_bench import run_state
from bench.state_by_url import run_state_by_url
from bench.subscriptions_bench import run_subscriptions
from bench.table_bench import run_tables

BENCHES = {
    "memory": run_memory,
    "durable": run_durable,
    "client": run_client,
    "state": run_state,
    "state-by-url": run_state_by_url,
    "spark": run_spark,
    "sink": run_sink,
    "source": run_source,
    "scale": run_scale,
    "tables": run_tables,
    "pipeline": run_pipeline,
    "archive": run_archive,
    "upsert": run_upsert,
    "batches": run_batches,
    "auth": run_auth,
    "overload": run_overload,
    "bounds": run_bounds,
    "subscriptions": run_subscriptions,
    "many-live": run_many_live,
    "console": run_console,
    "sql": run_sql,
    "compaction": run_compaction,
    "startup": run_startup,
    "fan-out": run_fanout,
    "postgres": run_postgres,
}

PARTS = ("source", "archive", "upsert", "batches")  # of other benches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "benches", nargs="*", choices=[*BENCHES, []], help="benches to run; default: all but parts of others"
    )
    parser.add_argument("--seconds", type=float, default=5, help="how long each load lasts")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    missed: list[Row] = []
    for name in arguments.benches or [name for name in BENCHES if name not in PARTS]:
        bench = Bench(arguments.seconds, lambda line: print(line, flush=True))
        BENCHES[name](bench)
        samples = {"samples": bench.samples} if bench.samples else {}
        save(name, {"rows": [asdict(row) for row in bench.rows], **samples}, arguments.out)
        print(f"\n{table(bench.rows)}\n")
        missed += [row for row in bench.rows if is_met(row) is False]
    if missed:
        sys.exit("\n".join(f"{row.bench} ({row.server}) misses its goal {row.goal}" for row in missed))


if __name__ == "__main__":
    main()
