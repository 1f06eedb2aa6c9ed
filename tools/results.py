"""Make docs/results.md from the history of the benches: `python -m tools.results`. With `--check`, only compare it.

Without `--check` the tables in bench/results and the charts in docs/charts are made too.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.history import CHARTS, RESULTS, Run, read_history, show
from bench.report import TITLES, Row, comparisons, goal_of, number, readable, times

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results.md"
RUNS_SHOWN = 6
NOT_MEASURED = "-"
HEAD = """# Results

The benches in [bench](../bench) measured every figure on this page. They run both sides on one machine, in turns.
`python -m tools.results` makes the page from [history.jsonl](../bench/results/history.jsonl), with one line per run and
machine. Lines are only added. The page shows the newest run of each bench. The text tables in
[bench/results](../bench/results) also have latencies and notes.

A ratio is how many times better Headwater is than what it is compared with. Above 1 Headwater is better, also for
latencies and memory, where less is better. Compare ratios, not figures, between machines.
"""


@dataclass(frozen=True)
class Line:
    """A comparison, or a figure without one."""

    what: str
    ours: Row
    peer: Row | None
    ratio: float | None
    goal: str

    @property
    def shown(self) -> str:
        return _value(self.ours) if self.ratio is None else times(self.ratio)

    @property
    def compared_with(self) -> str:
        if self.peer is None:
            return ""
        return self.peer.server if self.peer.server != self.ours.server else self.peer.bench

    @property
    def goal_text(self) -> str:
        goal = goal_of(self.goal)
        return self.goal if goal is None or goal.reached is None else goal.text

    @property
    def met(self) -> bool | None:
        goal = goal_of(self.goal)
        return None if goal is None else goal.met(self.ours.value if self.ratio is None else self.ratio)


def written(runs: list[Run]) -> str:
    """The page."""
    benches: dict[str, list[Run]] = {}
    for run in runs:
        benches.setdefault(run.bench, []).append(run)
    order = sorted(benches, key=lambda name: [*TITLES, name].index(name))
    sections = [_section(name, benches[name]) for name in order]
    return "\n".join([HEAD, _missed([benches[name][-1] for name in order]), *sections])


def _missed(newest: list[Run]) -> str:
    missed = [
        f"- [{_title(run.bench)}](#{_anchor(run.bench)}): {line.what}, {line.shown} {line.compared_with}, goal "
        f"{line.goal_text}"
        for run in newest
        for line in lines_of(run.rows)
        if line.met is False
    ]
    return "\n".join(["## Missed goals", "", *(missed or ["None."]), ""])


def _title(name: str) -> str:
    return TITLES.get(name, name)


def _anchor(name: str) -> str:
    return "".join(letter for letter in _title(name).lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _section(name: str, runs: list[Run]) -> str:
    shown = runs[-RUNS_SHOWN:]
    newest = shown[-1]
    machine = newest.machine
    lines = [
        f"## {_title(name)}",
        "",
        f"Run `{name}` of {newest.date} at `{newest.commit}`, on {machine['cpu']}, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}, Python {newest.python}, Node {machine['node'].removeprefix('v')}.",
        f"fsync: {newest.fsync}.",
        "",
    ]
    if (CHARTS / f"{name}.png").exists():
        lines += [f"![{_title(name)}](charts/{name}.png)", ""]
    lines += [
        "| ratio | measured | Headwater | compared with | goal | met | over the runs |",
        "|---|---|---|---|---|---|---|",
    ]
    before = [{(line.what, line.compared_with): line.shown for line in lines_of(run.rows)} for run in shown]
    lines += [_table_row(line, before) for line in lines_of(newest.rows)]
    if len(shown) > 1:
        said = "; ".join(f"{run.date} `{run.commit}` ({run.machine['cpu']})" for run in shown)
        lines += ["", f"Runs, oldest first: {said}."]
    return "\n".join([*lines, ""])


def _table_row(line: Line, before: list[dict[tuple[str, str], str]]) -> str:
    over = [shown.get((line.what, line.compared_with), NOT_MEASURED) for shown in before]
    while over[0] == NOT_MEASURED:  # the first runs did not measure it
        del over[0]
    cells = (
        "" if line.ratio is None else f"**{line.shown}**",
        line.what,
        _value(line.ours),
        f"{line.compared_with}: {_value(line.peer)}" if line.peer else "",
        line.goal_text,
        {True: "yes", False: "**no**", None: ""}[line.met],
        " → ".join(over) if len(over) > 1 else "",
    )
    return f"| {' | '.join(cells)} |"


def lines_of(rows: list[Row]) -> list[Line]:
    """The lines of the page: the comparisons of rows, and the rows without one, in the order of the rows."""
    pairs = comparisons(rows)
    lines = []
    for row in rows:
        mine = [pair for pair in pairs if row is pair.ours or row is pair.peer]
        pair = next((pair for pair in mine if pair.ratio == row.ratio), None)
        if pair is not None:
            lines.append(Line(_what(pair.ours, rows), pair.ours, pair.peer, pair.ratio, pair.goal))
        elif row.ratio is not None or not mine:
            lines.append(Line(_what(row, rows), row, None, row.ratio, row.goal))
    return lines


def _what(row: Row, rows: list[Row]) -> str:
    """A name for a row that no other row of ours has."""
    parts = [row.bench, re.sub(r"^headwater(, | |$)", "", row.server)]
    alike = [other for other in rows if (other.bench, other.server) == (row.bench, row.server)]
    if len({other.panel for other in alike}) > 1:
        parts.insert(0, row.panel)
    elif len(alike) > 1:
        parts.append(row.note)
    return readable("; ".join(filter(None, parts)))


def _value(row: Row) -> str:
    return f"{number(row.value)}{'' if row.unit.startswith('/') else ' '}{row.unit}"


def main() -> int:
    if "--check" not in sys.argv:
        for path in sorted(RESULTS.glob("*.json")):
            show(path.stem, json.loads(path.read_text()))
        PAGE.write_text(written(read_history()))
    elif written(read_history()) != PAGE.read_text():
        sys.stderr.write(f"{PAGE.name} does not match the history: run python -m tools.results\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
