"""Results as a table for people, JSON for programs and a plot for both."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.machine import describe_machine


@dataclass(frozen=True)
class Row:
    """One measurement of one server. A ratio is ours over the peer's, the better the larger."""

    bench: str
    server: str
    value: float
    unit: str
    ratio: float | None = None
    goal: str = ""
    note: str = ""
    panel: str = ""  # rows that belong into one picture, though they are benches of their own


def table(rows: list[Row]) -> str:
    head = ("bench", "server", "ratio", "value", "goal", "note")
    body = [
        (
            row.bench,
            row.server,
            f"{row.ratio:.2f}" if row.ratio else "",
            f"{row.value:,.5g} {row.unit}",
            row.goal,
            row.note,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *body)) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in (head, *body)]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def save(name: str, rows: list[Row], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    caption = "\n".join(f"{key}: {value}" for key, value in machine.items())
    (directory / f"{name}.txt").write_text(f"{table(rows)}\n\n{caption}\n")
    (directory / f"{name}.json").write_text(
        json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    )
    plot(name, rows, machine, directory / f"{name}.png")


def plot(name: str, rows: list[Row], machine: dict[str, str], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row.panel or row.bench} ({row.unit})", []).append(row)
    columns = 3
    lines = -(-len(groups) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(15, 2.1 * lines + 1.2), squeeze=False)
    for axis, (title, group) in zip(axes.flat, groups.items(), strict=False):
        names = [row.bench if row.panel else row.server for row in group]
        values = [row.value for row in group]
        bars = axis.barh(names, values, color=[_colour(row.server) for row in group])
        axis.bar_label(bars, labels=[_label(row) for row in group], padding=3, fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_xlim(0, max(values) * 1.35)
        axis.set_ylim(max(2.5, len(group) - 0.5), -0.5)
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(groups) :]:
        axis.axis("off")
    figure.suptitle(f"Headwater bench: {name}", x=0.01, ha="left", fontsize=12)
    footer = f"{machine['cpu']}, Python {machine['python']}, Node {machine['node']}. {machine['fsync']}."
    figure.text(0.01, 0.005, footer, fontsize=8)
    figure.tight_layout(rect=(0, 0.03, 1, 0.97))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _colour(server: str) -> str:
    if server == "headwater":
        return "#1f6f8b"
    return "#7fb3c8" if server.startswith("headwater") else {"node in memory": "#b5a36a"}.get(server, "#c9764f")


def _label(row: Row) -> str:
    value = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.3g}"
    return f"{value}  ({row.ratio:.2g} x)" if row.ratio else value
