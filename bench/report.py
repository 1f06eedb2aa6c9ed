"""The results of a bench: rows, comparisons between them, and a table."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import ge, gt, le, lt

TITLES = {
    "memory": "Server in memory, beside the Node reference in memory",
    "durable": "Durable server, beside the Node reference",
    "client": "Python client, beside the official Python client",
    "state": "State: folding events and starting again",
    "state-by-url": "Entities by URL: one of a million",
    "spark": "Spark source and sink, beside local files",
    "sink": "Spark sink, beside local Parquet",
    "source": "Spark source, beside a source that only receives",
    "scale": "Spark source and sink with thousands of streams",
    "tables": "STP tables, beside streams",
    "pipeline": "Pipeline jobs, beside plain Spark",
    "archive": "Archive, beside plain Spark",
    "upsert": "Current state of events, beside plain Spark",
    "batches": "Small batches in a large table",
    "auth": "Access control, beside a server without it",
    "hostile": "Durable server under attack",
    "restart": "Restart over a large data directory",
    "bounds": "Bounds of the event loop, memory and Notify",
    "overload": "Overload: more load, senders and memory than the server allows",
    "subscriptions": "Subscriptions, beside a server without them and the Node reference",
    "many-live": "500 streams over one connection, beside a connection for each",
    "console": "Console in a browser",
    "sql": "SQL over a stream, beside DuckDB over a file",
    "compaction": "Compaction: an hour of updates to 10,000 keys, and appends meanwhile",
    "fan-out": "Fan-out: an append to many readers, beside bare sends",
    "startup": "Start-up: processor time of commands, imports and a server",
    "postgres": "Servers over PostgreSQL, beside pgbench and a server with a directory",
    "backup": "Backup and restore",
    "soak": "Ten minutes of full load, with kills",
    "day": "A day of batches of materialize, in fast forward",
}
LOWER_IS_BETTER = {"us", "ms", "s", "kB", "MB", "KiB", "MiB", "GB", "bytes", "files"}


@dataclass(frozen=True)
class Row:
    """One measurement of one server.

    `ratio` compares it with another row of the same bench or panel, and above 1 is better for us. It is in the row of
    the peer (ours over the peer's), or in our own row (ours over the row it is compared with). `goal` is for the ratio,
    or for the value if there is no ratio.
    """

    bench: str
    server: str
    value: float
    unit: str
    ratio: float | None = None
    goal: str = ""
    note: str = ""
    panel: str = ""  # rows of different benches with the same panel are drawn together

    @property
    def lower_is_better(self) -> bool:
        return self.unit in LOWER_IS_BETTER


@dataclass(frozen=True)
class Goal:
    """A number to reach, or a published number of another project, which is neither met nor missed."""

    text: str
    value: float
    reached: Callable[[float, float], bool] | None

    def met(self, value: float) -> bool | None:
        return None if self.reached is None else self.reached(value, self.value)


@dataclass(frozen=True)
class Comparison:
    """Our row, the row it is compared with, how many times better ours is, and the goal for that."""

    ours: Row
    peer: Row
    ratio: float
    goal: str


_SIGNS = {"≥": ge, ">=": ge, "at least": ge, ">": gt, "≤": le, "<=": le, "at most": le, "<": lt}
_GOAL = re.compile(rf"({'|'.join(sorted(_SIGNS, key=len, reverse=True))}) *([\d.,]+)")
_PUBLISHED = re.compile(r"(.+) published: ([\d.,]+)")


def goal_of(text: str) -> Goal | None:
    """Parse a goal; None if the text has no number to reach."""
    if match := _GOAL.fullmatch(text):
        reached, value = _SIGNS[match[1]], float(match[2].replace(",", ""))
        sign = {ge: "≥", gt: ">", le: "≤", lt: "<"}[reached]
        return Goal(f"{sign} {number(value)}", value, reached)
    if match := _PUBLISHED.fullmatch(text):
        return Goal(f"{match[1]}, published", float(match[2].replace(",", "")), None)
    return None


def number(value: float) -> str:
    """Format a number with thousands separators and at least three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def times(ratio: float) -> str:
    digits = f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"
    return f"{digits}\N{MULTIPLICATION SIGN}"


def readable(name: str) -> str:
    """The name of a row, with thousands separators, and `1 stream` instead of `1 streams`."""
    name = re.sub(r"\b1 (connection|stream|subscriber)s\b", r"1 \1", name)
    return re.sub(r"(?<![\d.,])\d{4,}(?![.,]?\d)", lambda digits: f"{int(digits[0]):,}", name)


def advantage(ours: Row, peer: Row) -> float:
    return peer.value / ours.value if ours.lower_is_better else ours.value / peer.value


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that can be compared with each other: of one panel or bench, in one unit."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.panel or row.bench, row.unit), []).append(row)
    return list(groups.values())


def comparisons(rows: Iterable[Row]) -> list[Comparison]:
    """The ratios of rows, each with the two rows that it compares. A ratio to something else has no other row."""
    pairs = (
        _comparison(row, row.ratio, [other for other in group if other is not row])
        for group in grouped(rows)
        for row in group
        if row.ratio is not None
    )
    return [pair for pair in pairs if pair is not None]


def _comparison(row: Row, ratio: float, others: list[Row]) -> Comparison | None:
    for other in others:
        if math.isclose(advantage(other, row), ratio, rel_tol=1e-6):
            return Comparison(other, row, ratio, row.goal)
    # A ratio may be the median of several runs, and then only be close to the ratio of the figures.
    near = [other for other in others if math.isclose(advantage(row, other), ratio, rel_tol=0.1)]
    if not near:
        return None
    return Comparison(row, min(near, key=lambda other: abs(advantage(row, other) - ratio)), ratio, row.goal)


def is_met(row: Row) -> bool | None:
    """Whether the goal of a row is met, if it has one."""
    goal = goal_of(row.goal)
    return None if goal is None else goal.met(row.value if row.ratio is None else row.ratio)


def table(rows: list[Row]) -> str:
    """All rows, for a terminal."""
    head = ("bench", "server", "ratio", "value", "unit", "goal", "met", "note")
    body = [
        (
            row.bench,
            row.server,
            "" if row.ratio is None else times(row.ratio),
            number(row.value),
            row.unit,
            goal.text if (goal := goal_of(row.goal)) else row.goal,
            {True: "yes", False: "no", None: ""}[is_met(row)],
            row.note,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    right = {head.index("ratio"), head.index("value")}
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (head, *body)
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
