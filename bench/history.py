"""The results of all runs of the benches: a line for each run in bench/results/history.jsonl, which is never changed.

The newest run of a bench also has a JSON file with all results, a table and a chart. `python -m tools.results` makes
docs/results.md from the history.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.charts import draw, draw_compaction, draw_day, draw_soak
from bench.machine import describe_machine
from bench.report import Row, table
from bench.servers import ROOT

RESULTS = ROOT / "bench" / "results"
CHARTS = ROOT / "docs" / "charts"
HISTORY = "history.jsonl"

Result = dict[str, Any]

RENAMED = {  # names in stored runs, and what they are called now
    "PostgreSQL, another server than the writer": "PostgreSQL, other server",
    "PostgreSQL, reader at another server": "PostgreSQL, other server",
    "PostgreSQL, reader at the same server": "PostgreSQL, same server",
    "a batch, by state, 16 buckets": "a batch in 16 buckets, by size of the table",
    "a batch, by state, all over": "a batch in all buckets, by size of the table",
    "a read to nothing": "read only",
    "all over": "all buckets",
    "and from_json, 1 partition": "catch-up with from_json, 1 partition",
    "and from_json, 2 partitions": "catch-up with from_json, 2 partitions",
    "and from_json, 4 partitions": "catch-up with from_json, 4 partitions",
    "and from_json, by partitions": "catch-up with from_json, by partitions",
    "append to reader by Spark": "append to reader through Spark",
    "appends undisturbed": "appends without readers",
    "index beyond the data, of a stream": "index size of a stream, without its data",
    "most disk": "maximum disk use",
    "most memory": "maximum memory",
    "targets are made": "targets are created",
    "targets are there": "targets exist",
    "then 0.5 x": "then 0.5 x capacity",
    "unread answers": "unread responses",
}


@dataclass(frozen=True)
class Run:
    """One run of one bench on one machine. `commit` has a `+` if the tree had changes that were not committed."""

    bench: str
    date: str
    commit: str
    python: str
    fsync: str
    machine: dict[str, str]
    rows: list[Row]


def read_history(directory: Path = RESULTS) -> list[Run]:
    """All runs, oldest first."""
    lines = (directory / HISTORY).read_text().splitlines()
    return [Run(**{**line, "rows": [_row(row) for row in line["rows"]]}) for line in map(json.loads, lines)]


def _row(stored: Result) -> Row:
    renamed: Result = {name: RENAMED.get(value, value) for name, value in stored.items()}
    return Row(**renamed)


def append_run(run: Run, directory: Path = RESULTS) -> None:
    """Append a run to the history, in one write."""
    line = {**asdict(run), "rows": [_short(row) for row in run.rows]}
    descriptor = os.open(directory / HISTORY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with open(descriptor, "ab", buffering=0) as file:
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _short(row: Row) -> Result:
    """A row without the fields that have their default."""
    defaults = {entry.name: entry.default for entry in fields(Row) if entry.default is not MISSING}
    values = {name: value for name, value in asdict(row).items() if name not in defaults or value != defaults[name]}
    return {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in values.items()}


def run_of(name: str, result: Result, commit: str) -> Run:
    """The line for a result that has a machine."""
    machine = dict(result["machine"])
    date, python, fsync = (machine.pop(key) for key in ("date", "python", "fsync"))
    return Run(name, date, commit, python, fsync, machine, rows_of(name, result))


def save(name: str, result: Result, directory: Path = RESULTS) -> None:
    """Store the results of a bench: a line of the history, a JSON file, a table and a chart."""
    directory.mkdir(parents=True, exist_ok=True)
    result = {"machine": describe_machine(), **result}
    append_run(run_of(name, result, _commit()), directory)
    (directory / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    show(name, result, directory)


def show(name: str, result: Result, directory: Path = RESULTS) -> None:
    """Write the table and the chart of a result."""
    rows, machine = rows_of(name, result), result["machine"]
    caption = "\n".join(f"{key}: {value}" for key, value in machine.items())
    (directory / f"{name}.txt").write_text(f"{table(rows)}\n\n{caption}\n")
    chart = (CHARTS if directory.resolve() == RESULTS else directory) / f"{name}.png"
    if name == "soak":
        draw_soak(result["windows"], machine, chart)
    elif name == "day":
        draw_day(result["samples"], machine, chart)
    elif name == "compaction":
        draw_compaction(result["samples"], rows, machine, chart)
    elif name not in ("reclaim", "restart"):  # which have no figures to compare
        draw(name, rows, machine, chart)


def rows_of(name: str, result: Result) -> list[Row]:
    """The figures of a result, as rows for tables, charts and the history."""
    special = {
        "backup": _backup_rows,
        "day": _day_rows,
        "hostile": _hostile_rows,
        "reclaim": _reclaim_rows,
        "restart": _restart_rows,
        "soak": _soak_rows,
    }
    return special[name](result) if name in special else [_row(row) for row in result["rows"]]


def _backup_rows(result: Result) -> list[Row]:
    panel = "appends during a continuous backup"
    return [
        Row("full backup", "headwater", result["full_mib_per_s"], "MiB/s", note=f"{result['mebibytes']:,} MiB"),
        Row("backup without changes", "headwater", result["unchanged_s"], "s"),
        Row("backup after 1 % of changes", "headwater", result["one_percent_s"], "s"),
        Row("restore", "headwater", result["restore_mib_per_s"], "MiB/s"),
        Row("without a backup", "headwater", result["appends_per_s"], "/s", panel=panel),
        Row("during a backup", "headwater", result["appends_per_s_beside"], "/s", result["ratio"], panel=panel),
        Row("lag of the backup, p50", "headwater", result["behind_p50_s"], "s"),
        Row("lag of the backup, maximum", "headwater", result["behind_max_s"], "s"),
    ]


def _day_rows(result: Result) -> list[Row]:
    """The end of the day, and whether what has to level off does: its maximum after noon compared with that before."""
    rows = []
    figures = (("files", "files"), ("disk_mb", "MB"), ("log_mb", "MB"), ("batch_ms", "ms"), ("driver_mb", "MB"))
    names = ("files of the table", "table on disk", "log of the table", "median of a batch", "memory of the driver")
    for series in dict.fromkeys(sample["series"] for sample in result["samples"]):
        samples = [sample for sample in result["samples"] if sample["series"] == series]
        half = len(samples) // 2
        for name, (key, unit) in zip(names, figures, strict=True):
            last = float(statistics.median(sample[key] for sample in samples[-half // 4 :]))
            note = f"at the end of {samples[-1]['batch']:,} batches"
            rows.append(Row(f"{name}, {series}", "headwater", last, unit, note=note))
            if series == "defaults":
                before, after = (max(sample[key] for sample in part) for part in (samples[:half], samples[half:]))
                what = f"{name}: maximum after noon over that before"
                rows.append(Row(what, "headwater", after / before, "times", None, "<= 1.25"))
    return rows


def _hostile_rows(result: Result) -> list[Row]:
    panels = (
        ("loop_ms", "ms", "< 50", "longest time on the event loop"),
        ("memory_mib", "MiB", "< 512", "maximum memory"),
    )
    return [
        Row(
            RENAMED.get(row["attack"], row["attack"]).replace("nothing", "no attack"),
            "headwater",
            row[key],
            unit,
            None,
            goal,
            f"{row['light_failures']} others failed" if row["light_failures"] else "",
            panel,
        )
        for key, unit, goal, panel in panels
        for row in result["rows"]
    ]


def _reclaim_rows(result: Result) -> list[Row]:
    live = f"live data {result['live_mb']:,.0f} MB, {result['churned_per_s']:,.0f} streams/s"
    return [
        Row("largest index under churn of small streams", "headwater", result["largest_mb"], "MB", note=live),
        Row(
            "space of a deleted stream returns",
            "headwater",
            result["return_mib_per_s"],
            "MiB/s",
            note=f"{result['mebibytes']:,} MiB",
        ),
    ]


def _restart_rows(result: Result) -> list[Row]:
    what = f"{result['streams']:,} streams of {result['bytes_each']:,} bytes"
    return [
        Row(f"start over {what}", "headwater", result["start_s"], "s"),
        Row("memory after the start", "headwater", result["memory_mb"], "MB"),
        Row("first read of a stream, p50", "headwater", result["first_read_p50_ms"], "ms"),
        Row("first read of a stream, p99", "headwater", result["first_read_p99_ms"], "ms"),
        Row(
            "index size of a stream, without its data",
            "headwater",
            result["index_bytes_per_stream_beyond_data"],
            "bytes",
        ),
    ]


def _soak_rows(result: Result) -> list[Row]:
    windows = result["windows"]

    def middle(key: str) -> float:
        return float(statistics.median(window[key] for window in windows))

    def most(key: str) -> float:
        return float(max(window[key] for window in windows))

    kills = f"{sum(window.get('killed', False) for window in windows)} kills"
    return [
        Row("appends, median of the windows", "headwater", middle("appends_per_s"), "/s", note=kills),
        Row("append p50, median of the windows", "headwater", middle("p50_ms"), "ms"),
        Row("append p99, median of the windows", "headwater", middle("p99_ms"), "ms"),
        Row(
            "maximum disk use", "headwater", most("disk_mb"), "MB", note=f"live data {most('live_mb'):,.0f} MB at most"
        ),
        Row("maximum memory", "headwater", most("memory_mb"), "MB"),
    ]


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "src", "bench/*.py")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{'+' if changed else ''}"
