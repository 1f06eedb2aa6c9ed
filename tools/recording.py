"""The picture of the system at work in the README: `python -m tools.recording`, or with `--check` only compared.

docs/recording.svg has two terminals with docs/session.jsonl, one line of output each, and below them parts of
docs/demo.txt. Lines appear one after the other; where animations are not shown, all of them are there at once. With
`--record` the session is recorded again first, on a server of its own.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.servers import headwater

DOCS = Path(__file__).resolve().parent.parent / "docs"
SESSION, DEMO, PICTURE = DOCS / "session.jsonl", DOCS / "demo.txt", DOCS / "recording.svg"
PORT = 4437  # what the picture shows, whatever port the server had

WRITER, READER = "a writer", "a reader"
READ = "curl -sN $PRICES'?offset=-1&live=sse'"
WRITES = (
    "headwater create prices",
    """headwater append prices '{"sku":"tea","eur":4.20}'""",
    """headwater append prices '{"sku":"salt","eur":0.90}'""",
    "headwater read prices",
)

STATUS = re.compile(r" *[\d.]+ s .*  Spark (?P<phase>[a-z ]+),")
COLUMN_PX, LINE_PX, PADDING_PX, BAR_PX, GAP_PX = 6.6, 16, 12, 24, 12
COLUMNS, WIDE_COLUMNS = 58, 122
STEP_S, COMMAND_S = 0.25, 1.1
STYLE = """\
text { font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d8dee9; }
.pane { fill: #1f2430; } .bar { fill: #2d3444; } .title { fill: #9aa5b8; }
.command { fill: #7fd1ff; } .good { fill: #a5d6a7; }
.line { animation: appear 0.2s both; }
@keyframes appear { from { opacity: 0.3; } to { opacity: 1; } }
@media (prefers-reduced-motion: reduce) { .line { animation: none; } }"""


@dataclass(frozen=True)
class Line:
    pane: str
    text: str

    @property
    def is_command(self) -> bool:
        return self.text.startswith("$ ")


def record() -> list[Line]:
    """Run the session: what the reader gets stands after the command of the writer that sent it."""
    with headwater("--memory") as server:
        url = f"http://{server.host}:{server.port}"
        environment = {**os.environ, "HEADWATER_URL": url, "PRICES": f"{url}/v1/stream/prices"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"

        def run(command: str) -> list[Line]:
            ran = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, check=True)
            lines = [f"$ {command}", *ran.stdout.splitlines(), *ran.stderr.splitlines()]
            return [Line(WRITER, line.replace(str(server.port), str(PORT))) for line in lines]

        create, *writes = WRITES
        lines = [
            *run(create),
            Line(READER, f"$ PRICES=http://127.0.0.1:{PORT}/v1/stream/prices"),
            Line(READER, f"$ {READ}"),
        ]
        with subprocess.Popen(
            ["bash", "-c", f"exec {READ}"], env=environment, stdout=subprocess.PIPE, text=True
        ) as reader:
            events = _events(reader)
            next(events)  # there is nothing yet
            for command in writes:
                lines += run(command)
                if " append " in command:
                    lines += [Line(READER, line) for line in next(events)]
            reader.terminate()
    return lines


def _events(reader: subprocess.Popen[str]) -> Iterator[list[str]]:
    """What arrives up to and with each control event."""
    incoming: queue.SimpleQueue[str] = queue.SimpleQueue()
    output = reader.stdout
    if output is None:
        raise RuntimeError("the reader was started without a pipe")

    def pump() -> None:
        for line in output:
            incoming.put(line.rstrip("\n"))

    threading.Thread(target=pump, daemon=True).start()
    while True:
        lines: list[str] = []
        while "event: control" not in lines or lines[-1]:
            lines.append(incoming.get(timeout=30))
        yield [line for line in lines if line]


def session() -> list[Line]:
    return [Line(**json.loads(line)) for line in SESSION.read_text().splitlines()]


def demo() -> list[str]:
    """The command, the last line of each phase, and how the results compare at the end."""
    first, *lines = DEMO.read_text().splitlines()
    phases = {match["phase"]: line for line in lines if (match := STATUS.match(line))}
    status = [line if len(line) <= WIDE_COLUMNS else f"{line[: WIDE_COLUMNS - 2]} …" for line in phases.values()]
    last = max(place for place, line in enumerate(lines) if not line)
    return [first.partition("  ")[0], *status, *(line for line in lines[last:] if line.startswith("  "))]


def picture(lines: list[Line], demo: list[str]) -> str:
    """The drawing, the same for the same lines."""
    panes = {WRITER: 0, READER: 0}
    texts = []
    at_s = 0.0
    width = COLUMNS * COLUMN_PX + 2 * PADDING_PX
    left = {WRITER: 0.0, READER: width + GAP_PX}
    for line in lines:
        at_s += COMMAND_S if line.is_command else STEP_S
        for piece in textwrap.wrap(line.text, COLUMNS, break_on_hyphens=False, subsequent_indent="  "):
            y = BAR_PX + PADDING_PX + 11 + panes[line.pane] * LINE_PX
            texts.append(
                _text(piece, left[line.pane] + PADDING_PX, y, at_s, "command" if line.is_command else "output")
            )
            panes[line.pane] += 1
    high = BAR_PX + 2 * PADDING_PX + max(panes.values()) * LINE_PX
    top = high + GAP_PX
    for place, text in enumerate(demo):
        kind = "command" if text.startswith("$ ") else "output" if STATUS.match(text) else "good"
        at_s += COMMAND_S if kind == "command" else STEP_S
        texts.append(_text(text, PADDING_PX, top + BAR_PX + PADDING_PX + 11 + place * LINE_PX, at_s, kind))
    wide = 2 * width + GAP_PX
    low = BAR_PX + 2 * PADDING_PX + len(demo) * LINE_PX
    boxes = [
        _pane(0, 0, width, high, WRITER),
        _pane(left[READER], 0, width, high, f"{READER}, with nothing but HTTP"),
        _pane(0, top, wide, low, "a shop, and Spark keeping its state as a Delta table, a stream and an STP table"),
    ]
    size = f'width="{wide:.0f}" height="{top + low:.0f}" viewBox="0 0 {wide:.0f} {top + low:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="Headwater at work in a terminal">'
    return "\n".join([head, f"<style>\n{STYLE}\n</style>", *boxes, *texts, "</svg>", ""])


def _pane(x: float, y: float, width: float, height: float, title: str) -> str:
    box = f'<rect class="pane" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="6"/>'
    bar = f'<path class="bar" d="M{x:.1f} {y + BAR_PX}v-18a6 6 0 0 1 6-6h{width - 12:.1f}a6 6 0 0 1 6 6v18z"/>'
    return f'{box}\n{bar}\n<text class="title" x="{x + PADDING_PX:.1f}" y="{y + 16}">{escape(title)}</text>'


def _text(text: str, x: float, y: float, at_s: float, kind: str) -> str:
    indent = len(text) - len(text.lstrip())
    length = len(text.strip()) * COLUMN_PX
    body = escape(text.strip()).replace(" ", "\N{NO-BREAK SPACE}")
    return (
        f'<text class="line {kind}" x="{x + indent * COLUMN_PX:.1f}" y="{y}" textLength="{length:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" style="animation-delay:{at_s:.2f}s">{body}</text>'
    )


def main() -> int:
    if "--record" in sys.argv:
        SESSION.write_text("".join(f"{json.dumps(line.__dict__)}\n" for line in record()))
    made = picture(session(), demo())
    if "--check" not in sys.argv:
        PICTURE.write_text(made)
    elif PICTURE.read_text() != made:
        sys.stderr.write(f"{PICTURE.name} is not what was recorded: run python -m tools.recording\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
