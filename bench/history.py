"""What runs of the benches found, a line for each in bench/results/history.jsonl that is never changed again.

The newest run of a bench is also a JSON file with all that it found, a table and a chart. docs/results.md is made of
the history by `python -m tools.results`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.charts import draw, draw_soak
from bench.machine import describe_machine
from bench.report import Row, table
from bench.servers import ROOT

RESULTS = ROOT / "bench" / "results"
CHARTS = ROOT / "docs" / "charts"
HISTORY = "history.jsonl"

Found = dict[str, Any]


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
    return [Run(**{**line, "rows": [Row(**row) for row in line["rows"]]}) for line in map(json.loads, lines)]


def append_run(run: Run, directory: Path = RESULTS) -> None:
    """Write a run after those before it, in one call."""
    line = {**asdict(run), "rows": [_short(row) for row in run.rows]}
    descriptor = os.open(directory / HISTORY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with open(descriptor, "ab", buffering=0) as file:
        file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _short(row: Row) -> Found:
    """A row without what it has by default."""
    defaults = {entry.name: entry.default for entry in fields(Row) if entry.default is not MISSING}
    found = {name: value for name, value in asdict(row).items() if name not in defaults or value != defaults[name]}
    return {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in found.items()}


def run_of(name: str, found: Found, commit: str) -> Run:
    """The line for a result that has a machine."""
    machine = dict(found["machine"])
    date, python, fsync = (machine.pop(key) for key in ("date", "python", "fsync"))
    return Run(name, date, commit, python, fsync, machine, rows_of(name, found))


def save(name: str, found: Found, directory: Path = RESULTS) -> None:
    """Keep what a bench found: a line of history, the whole as JSON, and its table and chart."""
    directory.mkdir(parents=True, exist_ok=True)
    found = {"machine": describe_machine(), **found}
    append_run(run_of(name, found, _commit()), directory)
    (directory / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    show(name, found, directory)


def show(name: str, found: Found, directory: Path = RESULTS) -> None:
    """Write the table and the chart of a result."""
    rows, machine = rows_of(name, found), found["machine"]
    caption = "\n".join(f"{key}: {value}" for key, value in machine.items())
    (directory / f"{name}.txt").write_text(f"{table(rows)}\n\n{caption}\n")
    chart = (CHARTS if directory.resolve() == RESULTS else directory) / f"{name}.png"
    if name == "soak":
        draw_soak(found["windows"], machine, chart)
    elif name != "restart":  # whose figures have nothing to compare with
        draw(name, rows, machine, chart)


def rows_of(name: str, found: Found) -> list[Row]:
    """The figures of a result, as rows for tables, charts and the history."""
    special = {"backup": _backup_rows, "hostile": _hostile_rows, "restart": _restart_rows, "soak": _soak_rows}
    return special[name](found) if name in special else [Row(**row) for row in found["rows"]]


def _backup_rows(found: Found) -> list[Row]:
    panel = "appends beside a backup that follows"
    return [
        Row("full backup", "headwater", found["full_mib_per_s"], "MiB/s", note=f"{found['mebibytes']:,} MiB"),
        Row("backup without changes", "headwater", found["unchanged_s"], "s"),
        Row("backup of 1 % of changes", "headwater", found["one_percent_s"], "s"),
        Row("restore", "headwater", found["restore_mib_per_s"], "MiB/s"),
        Row("alone", "headwater", found["appends_per_s"], "/s", panel=panel),
        Row("beside a backup", "headwater", found["appends_per_s_beside"], "/s", found["ratio"], panel=panel),
        Row("copy behind, p50", "headwater", found["behind_p50_s"], "s"),
        Row("copy behind, at most", "headwater", found["behind_max_s"], "s"),
    ]


def _hostile_rows(found: Found) -> list[Row]:
    panels = (
        ("loop_ms", "ms", "< 50", "longest time on the event loop"),
        ("memory_mib", "MiB", "< 512", "most memory"),
    )
    return [
        Row(
            row["attack"].replace("nothing", "no attack"),
            "headwater",
            row[key],
            unit,
            None,
            goal,
            f"{row['light_failures']} others failed" if row["light_failures"] else "",
            panel,
        )
        for key, unit, goal, panel in panels
        for row in found["rows"]
    ]


def _restart_rows(found: Found) -> list[Row]:
    what = f"{found['streams']:,} streams of {found['bytes_each']:,} bytes"
    return [
        Row(f"start over {what}", "headwater", found["start_s"], "s"),
        Row("memory after the start", "headwater", found["memory_mb"], "MB"),
        Row("first read of a stream, p50", "headwater", found["first_read_p50_ms"], "ms"),
        Row("first read of a stream, p99", "headwater", found["first_read_p99_ms"], "ms"),
        Row("index beyond the data, of a stream", "headwater", found["index_bytes_per_stream_beyond_data"], "bytes"),
    ]


def _soak_rows(found: Found) -> list[Row]:
    windows = found["windows"]

    def middle(key: str) -> float:
        return float(statistics.median(window[key] for window in windows))

    def most(key: str) -> float:
        return float(max(window[key] for window in windows))

    kills = f"{sum(window.get('killed', False) for window in windows)} kills"
    return [
        Row("appends, median of the windows", "headwater", middle("appends_per_s"), "/s", note=kills),
        Row("append p50, median of the windows", "headwater", middle("p50_ms"), "ms"),
        Row("append p99, median of the windows", "headwater", middle("p99_ms"), "ms"),
        Row("most disk", "headwater", most("disk_mb"), "MB", note=f"live data {most('live_mb'):,.0f} MB at most"),
        Row("most memory", "headwater", most("memory_mb"), "MB"),
    ]


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "src", "bench/*.py")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{'+' if changed else ''}"
