"""`headwater demo`: run a server, a demo shop and the Spark pipeline in one terminal."""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from headwater import limits
from headwater.cli.failing import FAILED, fail, failures
from headwater.cli.output import say, shown
from headwater.protocol.streams.paths import CONSOLE, RESERVED, STREAM_ROOT
from headwater.protocol.tables.paths import TABLE_ROOT

if TYPE_CHECKING:
    from headwater.demo.run import RunResult
    from headwater.demo.watching import Flow, Spark, Status


def command(
    seconds: float = typer.Option(0, min=0, help="Seconds until the shop stops; 0: run until Ctrl-C."),
    rate: float = typer.Option(200, min=0.1, help="Events of the shop per second."),
    port: int = typer.Option(4437, min=0, max=65535, help="Port of the server; 0 takes a free one."),
    data_dir: Path = typer.Option(
        Path("headwater-demo"), help="Directory for streams and tables; continues an earlier run."
    ),
) -> None:
    """Run a server, a small shop, and the jobs of the pipeline over its events.

    The shop appends state events to four streams, some of them late, repeated or invalid. On Spark, materialize keeps
    the current state as a Delta table, and publish sends its changes to a state stream and to an STP table. At the end
    all three, and the quarantine, are compared with a plain fold of the events; the exit code is 1 if one differs.
    """
    for needed in ("pyspark", "deltalake"):
        if importlib.util.find_spec(needed) is None:
            fail(
                f"the demo needs Spark ({needed} is missing)",
                "Install it with: pip install '.[spark]' in a checkout of Headwater",
            )
    from headwater.demo.run import Display, ServerNotStartedError, run

    stopping = _Stopping(seconds)
    board = _Board(data_dir)
    display = Display(board.open, stopping.going, board.show, board.say)
    with failures(f"cannot listen on port {port}"), board, stopping:
        try:
            result = run(data_dir, display, port=port, per_second=rate)
        except ServerNotStartedError:  # the server has printed one line with the reason
            raise typer.Exit(FAILED) from None
    _print_result(result)
    raise typer.Exit(0 if result.is_right else FAILED)


class _Stopping:
    """Wait until the time is up or a signal arrives. A second signal ends the process at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_s = 0.0
        self._is_stopping = False

    def going(self) -> bool:
        self._until_s = self._until_s or time.monotonic() + (self._seconds or float("inf"))
        return not self._is_stopping and time.monotonic() < self._until_s

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._is_stopping:
            raise KeyboardInterrupt
        self._is_stopping = True

    def __enter__(self) -> None:
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before: dict[signal.Signals, Any] = {number: signal.signal(number, self._stop) for number in signals}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Board:
    """Shows the flow of events: a live table on a terminal, otherwise a line every few seconds."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._live = Live(console=Console(highlight=False), refresh_per_second=8) if sys.stdout.isatty() else None
        self._next_line_s = 0.0

    def __enter__(self) -> None:
        """Show the table once there is something in it."""

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def open(self, url: str) -> None:
        """Print URLs to open with a browser or curl."""
        streams, tables = f"{url}{STREAM_ROOT}", f"{url}{TABLE_ROOT}"
        say(f"The shop is open. Look at it in a browser: {url}{CONSOLE}")
        say("Its streams, and the results of Spark:")
        say(f"  {streams}shop/orders?offset=-1&live=sse")
        say(f"  {streams}published/shop?offset=-1&live=sse")
        say(f"  {tables}shop?view=active&timeout=0")
        say(f"  {streams}{RESERVED}/streams")
        say(f"  {self._data_dir / 'lake' / 'shop'} (Delta table), {self._data_dir / 'pipeline.toml'} (jobs)")
        say("")

    def say(self, what: str) -> None:
        if self._live is not None and self._live.is_started:
            self._live.console.print(Text(shown(what)))
        else:
            say(what)

    def show(self, status: Status) -> None:
        if self._live is not None:
            self._live.start()
            self._live.update(_board(status))
        elif status.fed.count and status.seconds >= self._next_line_s:
            self._next_line_s = status.seconds + limits.DEMO_LINE_EVERY_S
            say(_line(status))
            sys.stdout.flush()


def _line(status: Status) -> str:
    spark = status.spark
    line = f"{status.seconds:5.1f} s  shop {_count_and_rate(status.fed)}  Spark {_phase(status)}"
    if spark.version is None:
        return line
    line += f"  Delta {_count_and_rate(spark.taken)}, version {spark.version}, {spark.quarantined:,} bad"
    for job, name, flow in (("to-stream", "published", status.published), ("to-table", "STP", status.table)):
        line += f"  {name} {flow.count:,}" + (f", {_versions(spark, job)}" if spark.versions_behind.get(job) else "")
    return line


def _count_and_rate(flow: Flow) -> str:
    return f"{flow.count:,} ({flow.per_second:,.0f}/s)"


def _phase(status: Status) -> str:
    return f"{status.spark.phase.value}, {status.spark.lag_s:.1f} s behind"


def _board(status: Status) -> Group:
    spark = status.spark
    colour = "green" if spark.phase.value == "following" else "yellow"
    flows = [_row("shop", flow.name, _numbers(flow), Text(shown(flow.last), style="dim")) for flow in status.streams]
    phase = Text(f"Spark is {_phase(status)}", style=colour)
    flows.append(_row("shop/*", "Delta table", _numbers(spark.taken), phase))
    note = f"of the shop's events {status.late:,} were late, {status.repeated:,} came twice, {status.bad:,} were bad"
    flows.append(_row("", "quarantine", (f"{spark.quarantined:,}", ""), Text(note, style="dim")))
    for job, to, flow in (("to-stream", "published/shop", status.published), ("to-table", "STP table", status.table)):
        flows.append(_row("Delta table", to, _numbers(flow), Text(_versions(spark, job))))
    head = Text(f"{'from':<11}  {'to':<14}  {'events':>9}  {'per s':>7}", style="bold")
    return Group(Text(f"{status.seconds:.0f} s  (Ctrl-C ends it)\n", style="bold"), head, *flows)


def _row(source: str, target: str, numbers: tuple[str, str], note: Text) -> Text:
    """A line that is truncated to the width of the terminal."""
    text = f"{source:<11}  {target:<14}  {numbers[0]:>9}  {numbers[1]:>7}  "
    return Text.assemble(text, note, no_wrap=True, overflow="ellipsis")


def _numbers(flow: Flow) -> tuple[str, str]:
    return f"{flow.count:,}", f"{flow.per_second:,.0f}"


def _versions(spark: Spark, job: str) -> str:
    behind = spark.versions_behind.get(job)
    if not behind:
        return "" if behind is None else f"version {spark.version}"
    return f"{behind} version{'s' if behind > 1 else ''} behind"


def _print_result(result: RunResult) -> None:
    say("")
    say(f"{result.events:,} events, {result.superseded:,} of them late or repeated; {result.keys:,} keys left")
    for check in result.checks:
        verdict = "as expected" if check.is_right else f"WRONG: {check.wrong:,} differ"
        say(f"  {check.name:<20} {check.count:>9,} {check.what:<7} {verdict}")
    say("no plot: matplotlib is not installed" if result.plot is None else f"throughput and lag: {result.plot}")
