"""Charts of results, all in one style. `python -m tools.results` draws those in docs/charts again.

A chart is as wide as a page, with its panels one below the other. The title of a panel says what is measured and if
higher or lower is better. Its bars are ours and the peer's, with the ratio beside ours. A figure with neither peer nor
goal is a line of text. The colours are those of Okabe and Ito, which colour-blind people can distinguish.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import TITLES, Comparison, Row, comparisons, goal_of, grouped, is_met, number, readable, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, OURS_TOO, OTHER = "#0072B2", "#56B4E9", "#B8B8B8"
OTHERS = {  # neither ours nor the peer of a row
    "spark.read.text",
    "ready batches, bytes received",
    "rows discarded",
    "rows discarded, with keys",
    "bytes uploaded",
}
PEERS = ("#E69F00", "#CC79A7", "#009E73", "#F0E442")
GOAL, MISSED, TEXT, GREY = "#DDDDDD", "#B03A00", "#222222", "#666666"
UNITS = {"/s": "per second", "appends/s": "per second", "ms": "milliseconds", "s": "seconds"}

WIDTH_IN, LABELS_IN, MARGIN_IN = 8.0, 2.05, 0.15
BAR_IN, HEADING_IN, TITLE_IN, GAP_IN = 0.23, 0.27, 0.36, 0.16
LINE_IN, FOOTER_COLUMNS, LABEL_COLUMNS = 0.17, 122, 22
LABEL_SHARE = 0.17  # of the height of a panel: the least distance of two labels
BAR_SHARE = 0.55  # share of the longest bar in the width of a panel; the rest is for figures
DPI = 200  # two pixels for each of a page 800 pixels wide


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    colour: str
    ratio: str = ""
    missed: str = ""


@dataclass
class Panel:
    """Bars on one scale, in groups. If there are several groups, each has a heading."""

    title: str
    groups: dict[str, list[Bar]] = field(default_factory=dict)

    @property
    def height_in(self) -> float:
        bars = sum(len(group) for group in self.groups.values())
        return bars * BAR_IN + HEADING_IN * (len(self.groups) if len(self.groups) > 1 else 0)


def panels(rows: list[Row]) -> tuple[list[Panel], list[str]]:
    """The panels of a chart, and the rows without a comparison, as text."""
    panel_groups: dict[tuple[str, str], list[list[Row]]] = {}
    alone = []
    for group in grouped(rows):
        row = group[0]
        if len(group) == 1 and (row.ratio is not None or goal_of(row.goal) is None):
            alone.append(_words(row))
        else:
            panel_groups.setdefault((row.panel or row.bench.partition(", ")[0], row.unit), []).append(group)
    compared = comparisons(rows)
    peers = list(dict.fromkeys(pair.peer.server for pair in compared if not pair.peer.server.startswith("headwater")))
    return [_panel(groups, compared, peers) for groups in panel_groups.values()], alone


def _words(row: Row) -> str:
    words = f"{readable(row.bench)}: {number(row.value)}{'' if row.unit == '/s' else ' '}{row.unit}"
    goal = goal_of(row.goal)
    if row.ratio is None or goal is None:
        return words
    return f"{words} (ratio {number(row.ratio)}, goal {goal.text}{'' if is_met(row) else ', missed'})"


def _panel(groups: list[list[Row]], compared: list[Comparison], peers: list[str]) -> Panel:
    first = groups[0][0]
    what = first.panel or (first.bench if len(groups) == 1 else first.bench.partition(", ")[0])
    which = "lower is better" if first.lower_is_better else "higher is better"
    panel = Panel(f"{_capital(readable(what))}: {UNITS.get(first.unit, first.unit)}, {which}")
    for group in groups:
        heading = readable(group[0].bench.partition(", ")[2]) if len(groups) > 1 else ""
        panel.groups[heading] = list(_bars(group, compared, peers))
    return panel


def _bars(group: list[Row], compared: list[Comparison], peers: list[str]) -> Iterable[Bar]:
    labels = _labels(group)
    for place, (row, label) in enumerate(zip(group, labels, strict=True)):
        mine = [pair for pair in compared if pair.ours is row]
        missed = [goal_of(pair.goal) for pair in mine if _is_missed(pair)]
        ratio = " · ".join(times(pair.ratio) for pair in mine)
        if row.ratio is not None and not any(row is pair.ours or row is pair.peer for pair in compared):
            ratio, missed = times(row.ratio), [goal_of(row.goal)] if is_met(row) is False else []
        goal = goal_of(row.goal) if row.ratio is None else None
        if goal is not None and not mine:
            missed = [goal] if is_met(row) is False else []
            if row.value and sum(other.goal == row.goal for other in group) == 1:
                ratio = times(goal.value / row.value if row.lower_is_better else row.value / goal.value)
        texts = ", ".join(f"goal {goal.text} missed" for goal in missed if goal)
        yield Bar(label, row.value, _colour(row, group, compared, peers), ratio, texts)
        if goal is not None and row.goal not in {other.goal for other in group[place + 1 :]}:
            yield Bar(goal.text if goal.reached is None else f"goal {goal.text}", goal.value, GOAL)


def _is_missed(pair: Comparison) -> bool:
    goal = goal_of(pair.goal)
    return goal is not None and goal.met(pair.ratio) is False


def _labels(group: list[Row]) -> list[str]:
    """Labels that distinguish the rows of a group: their benches, servers or notes."""
    labels = [row.bench if row.panel else row.server for row in group]
    if len(group) > 1 and len(set(labels)) == 1:
        labels = [row.note for row in group]
    first, last = min(labels), max(labels)
    alike = next((place for place, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), 0)
    shared = re.sub(r"\S*$", "", first[:alike])
    if shared.endswith(", ") or max(map(len, labels)) > LABEL_COLUMNS:
        labels = [label.removeprefix(shared) for label in labels]
    return [readable(re.sub("^(headwater|node)\\b", lambda name: name[0].title(), label)) for label in labels]


def _colour(row: Row, group: list[Row], compared: list[Comparison], peers: list[str]) -> str:
    if row.server in OTHERS:
        return OTHER
    if row.server in peers:
        return PEERS[peers.index(row.server) % len(PEERS)]
    return OURS_TOO if any(pair.peer is row for pair in compared if pair.ours in group) else OURS


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def draw(name: str, rows: list[Row], machine: dict[str, str], path: Path) -> None:
    """The chart of a bench."""
    compared, alone = panels(rows)
    words = [f"Also measured: {'; '.join(alone)}."] if alone else []
    if any(bar.ratio for panel in compared for group in panel.groups.values() for bar in group):
        words.append(
            "A ratio says how many times better a bar is than those of other colours in its group, in their order."
        )
    footer = [line for text in (*words, _on(machine)) for line in textwrap.wrap(text, FOOTER_COLUMNS)]
    heights = [panel.height_in for panel in compared]
    figure, top_in = _figure(TITLES.get(name, name), heights, footer)
    for panel, height_in in zip(compared, heights, strict=True):
        top_in = _draw_panel(figure, panel, top_in, height_in)
    _save(figure, path)


def _figure(title: str, heights: list[float], footer: list[str]) -> tuple[Figure, float]:
    """A figure with title and footer, high enough for the panels, and the top of the first panel."""
    from matplotlib.figure import Figure

    high_in = 0.55 + sum(height + TITLE_IN + GAP_IN for height in heights) + LINE_IN * len(footer) + 0.15
    figure = Figure(figsize=(WIDTH_IN, high_in), facecolor="white")
    figure.text(
        MARGIN_IN / WIDTH_IN, 1 - 0.15 / high_in, title, size=13, weight="bold", color=TEXT, va="top", ha="left"
    )
    figure.text(
        MARGIN_IN / WIDTH_IN, 0.1 / high_in, "\n".join(footer), size=8, color=GREY, va="bottom", linespacing=1.35
    )
    return figure, high_in - 0.55


def _axes(figure: Figure, top_in: float, height_in: float, left_in: float) -> Axes:
    high_in = figure.get_figheight()
    right_in = 0.1
    return figure.add_axes(
        (
            left_in / WIDTH_IN,
            (top_in - height_in) / high_in,
            (WIDTH_IN - left_in - right_in) / WIDTH_IN,
            height_in / high_in,
        )
    )


def _title(figure: Figure, title: str, top_in: float) -> None:
    from matplotlib.text import Annotation

    at = (MARGIN_IN / WIDTH_IN, (top_in - TITLE_IN / 2) / figure.get_figheight())
    what, _, which = title.rpartition(": ")
    first = figure.text(*at, what, size=10, weight="bold", color=TEXT, va="center")
    rest = Annotation(
        which, (1, 0.5), xycoords=first, xytext=(7, 0), textcoords="offset points", size=9, color=GREY, va="center"
    )
    figure.add_artist(rest)


def _draw_panel(figure: Figure, panel: Panel, top_in: float, height_in: float) -> float:
    """Draw a panel, and return the top of the next one."""
    _title(figure, panel.title, top_in)
    axes = _axes(figure, top_in - TITLE_IN, height_in, LABELS_IN)
    axes.set_ylim(height_in, 0)
    axes.set_xlim(0, max(bar.value for group in panel.groups.values() for bar in group) / BAR_SHARE)
    axes.set_axis_off()
    axes.plot((0, 0), (0, height_in), color=GREY, linewidth=0.8)
    at_in = 0.0
    for heading, bars in panel.groups.items():
        if heading:
            axes.annotate(heading, (0, at_in + HEADING_IN * 0.58), **_beside(5), size=9, color=GREY, style="italic")
            at_in += HEADING_IN
        for bar in bars:
            _draw_bar(axes, bar, at_in + BAR_IN / 2)
            at_in += BAR_IN
    return top_in - TITLE_IN - height_in - GAP_IN


def _draw_bar(axes: Axes, bar: Bar, middle_in: float) -> None:
    hatch: dict[str, Any] = {"hatch": "////", "edgecolor": "white", "linewidth": 0} if bar.colour == GOAL else {}
    axes.barh(middle_in, bar.value, height=BAR_IN * 0.78, color=bar.colour, **hatch)
    axes.annotate(bar.label, (0, middle_in), **_beside(-6), size=9, color=TEXT, ha="right")
    last = axes.annotate(number(bar.value), (bar.value, middle_in), **_beside(5), size=9, color=TEXT)
    if bar.ratio:
        last = axes.annotate(bar.ratio, (1, 0.5), **_after(last), size=9.5, color=OURS, weight="bold")
    if bar.missed:
        axes.annotate(bar.missed, (1, 0.5), **_after(last), size=8.5, color=MISSED)


def _beside(points: float) -> dict[str, Any]:
    return {"xytext": (points, 0), "textcoords": "offset points", "va": "center"}


def _after(text: Any) -> dict[str, Any]:
    return {"xycoords": text, "xytext": (7, 0), "textcoords": "offset points", "va": "center"}


def draw_soak(windows: list[dict[str, Any]], machine: dict[str, str], path: Path) -> None:
    """The resources that the server used over time, which must level off."""
    minutes = [window["at_s"] / 60 for window in windows]
    lines = (
        ("Appends: per second, higher is better", [("appends", "appends_per_s")]),
        ("Append latency: milliseconds, lower is better", [("p50", "p50_ms"), ("p99", "p99_ms")]),
        ("Disk: MB, must level off", [("data directory", "disk_mb"), ("live data", "live_mb")]),
        ("Memory of the server: MB, must level off", [("resident", "memory_mb")]),
        ("Open descriptors: number, must level off", [("descriptors", "descriptors")]),
    )
    footer = textwrap.wrap(
        f"Minutes from left to right. A dotted line is a SIGKILL, followed by a restart. {_on(machine)}", FOOTER_COLUMNS
    )
    figure, top_in = _figure(TITLES["soak"], [1.15] * len(lines), footer)
    for title, series in lines:
        curves = [Curve(label, minutes, [window[key] for window in windows]) for label, key in series]
        axes = _draw_curves(figure, title, top_in, curves)
        for window in windows:
            if window["killed"]:
                axes.axvline(window["at_s"] / 60, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xticks(range(int(minutes[-1]) + 1))
        top_in -= TITLE_IN + 1.15 + GAP_IN
    _save(figure, path)


def draw_day(samples: list[dict[str, Any]], machine: dict[str, str], path: Path) -> None:
    """What a day of batches leaves, which must level off with the defaults."""
    lines = (
        ("Data files: number, must level off", "files"),
        ("Table on disk: MB, must level off", "disk_mb"),
        ("Log of the table: MB, must level off", "log_mb"),
        ("A batch, median: milliseconds, must level off", "batch_ms"),
        ("Memory of the driver, Python and Java: MB, must level off", "driver_mb"),
    )
    batches = max(sample["of"] for sample in samples)
    footer = textwrap.wrap(
        f"Hours from left to right, {batches:,} batches in 24 hours of fast forward. With the defaults, files are kept "
        f"for 4 hours instead of 24, so that the end of the growth is in the picture. {_on(machine)}",
        FOOTER_COLUMNS,
    )
    figure, top_in = _figure(TITLES["day"], [1.15] * len(lines), footer)
    for title, key in lines:
        curves = []
        for series in dict.fromkeys(sample["series"] for sample in samples):
            some = [sample for sample in samples if sample["series"] == series]
            hours = [sample["batch"] / sample["of"] * 24 for sample in some]
            curves.append(Curve(series, hours, [sample[key] for sample in some]))
        axes = _draw_curves(figure, title, top_in, curves)
        axes.set_xticks(range(0, 25, 4))
        top_in -= TITLE_IN + 1.15 + GAP_IN
    _save(figure, path)


def draw_compaction(samples: list[dict[str, Any]], rows: list[Row], machine: dict[str, str], path: Path) -> None:
    """What an hour of updates leaves, which must level off with compaction, and the figures beside it."""
    lines = (
        ("Disk: MB, must level off", "disk_mb"),
        ("Memory of the server: MB, must level off", "memory_mb"),
        ("Start of a new reader: milliseconds, must level off", "start_ms"),
    )
    compared, alone = panels([row for row in rows if row.unit != "times"])
    alone += [_words(row) for row in rows if row.unit == "times"]
    words = (
        f"Minutes of the hour from left to right, {samples[-1]['updates']:,} updates in fast forward. What is older "
        "than 10 s of the bench is compacted, and what a snapshot has replaced stays for 60 s.",
        f"Also measured: {'; '.join(alone)}." if alone else "",
        "A ratio says how many times better a bar is than the other one of its panel.",
        _on(machine),
    )
    footer = [line for text in words for line in textwrap.wrap(text, FOOTER_COLUMNS)]
    bars = [panel.height_in for panel in compared]
    figure, top_in = _figure(TITLES["compaction"], [*[1.15] * len(lines), *bars], footer)
    for title, key in lines:
        curves = []
        for series in dict.fromkeys(sample["series"] for sample in samples):
            some = [sample for sample in samples if sample["series"] == series]
            curves.append(Curve(series, [sample["minute"] for sample in some], [sample[key] for sample in some]))
        axes = _draw_curves(figure, title, top_in, curves)
        axes.set_xticks(range(0, 61, 10))
        top_in -= TITLE_IN + 1.15 + GAP_IN
    for panel, height_in in zip(compared, bars, strict=True):
        top_in = _draw_panel(figure, panel, top_in, height_in)
    _save(figure, path)


@dataclass(frozen=True)
class Curve:
    """A figure over time."""

    label: str
    times: list[float]
    values: list[float]


def _draw_curves(figure: Figure, title: str, top_in: float, curves: list[Curve]) -> Axes:
    _title(figure, title, top_in)
    axes = _axes(figure, top_in - TITLE_IN, 1.0, 0.7)
    highest = max(value for curve in curves for value in curve.values)
    label_at = 0.0  # of the label below
    for curve in sorted(curves, key=lambda curve: curve.values[-1]):
        axes.plot(curve.times, curve.values, color=(OURS, PEERS[0])[curves.index(curve)], linewidth=1.6)
        last = curve.values[-1]
        label_at = max(last, label_at + highest * LABEL_SHARE)
        axes.annotate(
            f"{curve.label} {number(last)}",
            (curve.times[-1], label_at),
            **_beside(5),
            size=9,
            color=TEXT,
            annotation_clip=False,
        )
    longest = max(len(curve.label) for curve in curves)
    axes.set_xlim(0, max(curve.times[-1] for curve in curves) * (1.25 if longest < 20 else 1.5))
    axes.set_ylim(0, highest * 1.08)
    axes.locator_params(axis="y", nbins=4)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(labelsize=8.5, color=GREY, labelcolor=GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    return axes


def _on(machine: dict[str, str]) -> str:
    return (
        f"{machine['cpu']}, Python {machine['python']}, Node {machine['node'].removeprefix('v')}, {machine['date']}. "
        f"{_capital(machine['fsync'])}."
    )


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
