"""Diagrams as SVG, made from text: `python -m tools.diagrams`, or with `--check` only compared.

A diagram is a text file in `docs/diagrams`. Its first line is the title, which is also the text for readers that see no
pictures. Then come rows of a grid, in which cells are separated by `|` and `.` is an empty cell:

    writer | edge | .
    .      | log  | disk

then a line for each box, `name: first line / second line`, with `*` after the name if the box stands out, and a line
for each arrow, `writer -> edge: label` or `edge <-> log: label`, dashed if it is written `-->`. An arrow goes straight
from box to box. The same text makes the same file. Colours follow what the reader's system prefers, light or dark.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "diagrams"
CELL_WIDTH, CELL_HEIGHT = 250, 116
BOX_WIDTH, BOX_HEIGHT = 150, 58
MARGIN, HEAD = 24, 44
ARROW = re.compile(r"(\w+) (<->|-->|->) (\w+)(?:: (.*))?")
BOX = re.compile(r"(\w+)(\*?): (.*)")

STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 13px; }
.card { fill: #ffffff; stroke: #d0d7de; }
.title { fill: #1f2933; font-weight: 600; font-size: 15px; }
.box { fill: #e6f4f1; stroke: #0f766e; stroke-width: 1.5; }
.strong { fill: #0f766e; stroke: #0f766e; }
.name { fill: #1f2933; font-weight: 600; }
.about { fill: #475569; font-size: 11.5px; }
.strong + .name, .strong + .name + .about { fill: #ffffff; }
.arrow { stroke: #475569; stroke-width: 1.5; fill: none; }
.point { fill: #475569; }
.label { fill: #334155; font-size: 11.5px; }
.back { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  .card { fill: #1e2129; stroke: #3b4252; }
  .title, .name { fill: #e5e9f0; }
  .box { fill: #22403d; stroke: #5eead4; }
  .strong { fill: #5eead4; stroke: #5eead4; }
  .strong + .name, .strong + .name + .about { fill: #10201e; }
  .about { fill: #b6c2cf; }
  .arrow { stroke: #a8b4c2; }
  .point { fill: #a8b4c2; }
  .label { fill: #d5dde6; }
  .back { fill: #1e2129; }
}
"""


class Box(NamedTuple):
    name: str
    about: str
    strong: bool
    x: int  # of its middle
    y: int


class Arrow(NamedTuple):
    source: str
    kind: str
    target: str
    label: str


class Diagram(NamedTuple):
    title: str
    boxes: dict[str, Box]
    arrows: list[Arrow]
    width: int
    height: int


def parse(text: str) -> Diagram:
    title, *lines = [line.strip() for line in text.splitlines() if line.strip()]
    grid = [[cell.strip() for cell in line.split("|")] for line in lines if "|" in line and ":" not in line]
    places = {name: (column, row) for row, cells in enumerate(grid) for column, name in enumerate(cells) if name != "."}
    boxes, arrows = {}, []
    for line in lines:
        if arrow := ARROW.fullmatch(line):
            arrows.append(Arrow(arrow[1], arrow[2], arrow[3], arrow[4] or ""))
        elif box := BOX.fullmatch(line):
            column, row = places[box[1]]
            first, _, second = box[3].partition(" / ")
            x = MARGIN + column * CELL_WIDTH + BOX_WIDTH // 2
            y = MARGIN + HEAD + row * CELL_HEIGHT + BOX_HEIGHT // 2
            boxes[box[1]] = Box(first, second, bool(box[2]), x, y)
    if boxes.keys() != places.keys():
        raise ValueError(f"boxes and the grid differ in {boxes.keys() ^ places.keys()}")
    columns = max(len(cells) for cells in grid)
    width = 2 * MARGIN + (columns - 1) * CELL_WIDTH + BOX_WIDTH
    return Diagram(title, boxes, arrows, width, 2 * MARGIN + HEAD + (len(grid) - 1) * CELL_HEIGHT + BOX_HEIGHT)


def _edge(box: Box, dx: float, dy: float) -> tuple[float, float]:
    """Where a line from the middle of a box in a direction leaves the box, with a small gap."""
    scale = min(
        (BOX_WIDTH / 2 + 4) / abs(dx) if dx else float("inf"),
        (BOX_HEIGHT / 2 + 4) / abs(dy) if dy else float("inf"),
    )
    return box.x + dx * scale, box.y + dy * scale


def _draw_box(box: Box) -> str:
    middle = box.y + (5 if not box.about else -3)
    about = f'<text class="about" x="{box.x}" y="{box.y + 15}" text-anchor="middle">{escape(box.about)}</text>'
    kind = "box strong" if box.strong else "box"
    return (
        f'<rect class="{kind}" x="{box.x - BOX_WIDTH // 2}" y="{box.y - BOX_HEIGHT // 2}" '
        f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text class="name" x="{box.x}" y="{middle}" text-anchor="middle">{escape(box.name)}</text>'
        f"{about if box.about else ''}"
    )


def _draw_arrow(arrow: Arrow, boxes: dict[str, Box]) -> str:
    source, target = boxes[arrow.source], boxes[arrow.target]
    dx, dy = target.x - source.x, target.y - source.y
    (x1, y1), (x2, y2) = _edge(source, dx, dy), _edge(target, -dx, -dy)
    dashed = ' stroke-dasharray="5 4"' if arrow.kind == "-->" else ""
    start = ' marker-start="url(#point)"' if arrow.kind == "<->" else ""
    return (
        f'<line class="arrow" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{dashed}{start} '
        f'marker-end="url(#point)"/>'
    )


def _draw_label(arrow: Arrow, boxes: dict[str, Box]) -> str:
    """Above a level arrow, beside an upright one, else on it; lines are divided by ` / `."""
    source, target = boxes[arrow.source], boxes[arrow.target]
    x, y = (source.x + target.x) / 2, (source.y + target.y) / 2
    lines = [line for line in arrow.label.split(" / ") if line]
    level, upright = source.y == target.y, source.x == target.x
    first = y - 8 - 14 * (len(lines) - 1) if level else y + 4 - 7 * (len(lines) - 1)
    anchor = "start" if upright else "middle"
    texts = "".join(
        f'<text class="label" x="{x + 9 * upright:.1f}" y="{first + 14 * number:.1f}" text-anchor="{anchor}">'
        f"{escape(line)}</text>"
        for number, line in enumerate(lines)
    )
    if level or upright or not lines:
        return texts
    width = 6.2 * max(len(line) for line in lines) + 8  # about as wide as the text
    at = f'x="{x - width / 2:.1f}" y="{first - 12:.1f}" width="{width:.1f}" height="{14 * len(lines) + 4}"'
    return f'<rect class="back" {at}/>{texts}'


def drawn(text: str) -> str:
    diagram = parse(text)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {diagram.width} {diagram.height}" '
        f'width="{diagram.width}" height="{diagram.height}" role="img" aria-label="{escape(diagram.title)}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="point" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path class="point" d="M0 0 L10 5 L0 10 z"/></marker></defs>',
        f'<rect class="card" x="0.5" y="0.5" width="{diagram.width - 1}" height="{diagram.height - 1}" rx="10"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN + 10}">{escape(diagram.title)}</text>',
        *(_draw_arrow(arrow, diagram.boxes) for arrow in diagram.arrows),
        *(_draw_box(box) for box in diagram.boxes.values()),
        *(_draw_label(arrow, diagram.boxes) for arrow in diagram.arrows),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> int:
    changed = False
    for source in sorted(DIRECTORY.glob("*.txt")):
        target, svg = source.with_suffix(".svg"), drawn(source.read_text())
        if target.exists() and target.read_text() == svg:
            continue
        changed = True
        if "--check" in sys.argv:
            sys.stderr.write(f"{target.name} is not what {source.name} says: run python -m tools.diagrams\n")
        else:
            target.write_text(svg)
    return 1 if changed and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
