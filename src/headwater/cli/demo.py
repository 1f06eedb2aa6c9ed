"""`headwater demo`: the system at work, in one terminal."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater import limits
from headwater.cli.failing import FAILED, fail, failures
from headwater.cli.output import shown
from headwater.protocol.streams.paths import RESERVED, STREAM_ROOT

if TYPE_CHECKING:
    from headwater.demo.run import Comparison, Status


def command(
    seconds: float = typer.Option(0, min=0, help="End after so long; 0 goes on until Ctrl-C."),
    rate: float = typer.Option(200, min=0.1, help="Events of the shop per second."),
    port: int = typer.Option(4437, min=0, max=65535, help="Port of the server; 0 takes a free one."),
    data_dir: Path = typer.Option(
        Path("headwater-demo"), help="Directory that keeps streams, table and checkpoint; an earlier run is continued."
    ),
) -> None:
    """Run a server, a small shop that changes, and a Spark job that keeps its current state.

    The shop's state events flow into a stream; Spark reads them exactly once, keeps the current state as a table and
    writes what changed back as a stream. At the end both are compared with a plain fold of all events.
    """
    try:
        from headwater.demo.run import run
    except ImportError as error:
        fail(f"the demo needs Spark ({error})", "Install it with: pip install 'headwater[spark]'")
    console = Console(highlight=False)
    stopping = _Stopping(seconds)
    board = _Board(console)
    with failures(f"cannot listen on port {port}"), board, stopping:
        comparison = run(data_dir, port=port, per_second=rate, going=stopping.going, show=board.show, say=board.say)
    _print_comparison(console, comparison)
    raise typer.Exit(0 if comparison.right else FAILED)


class _Stopping:
    """Until the time is up, or a signal; a second one ends everything at once."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_s = 0.0
        self._told = False

    def going(self) -> bool:
        if not self._until_s:
            self._listen()  # again: Spark has taken Ctrl-C for itself meanwhile
            self._until_s = time.monotonic() + (self._seconds or float("inf"))
        return not self._told and time.monotonic() < self._until_s

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._told:
            raise KeyboardInterrupt
        self._told = True

    def __enter__(self) -> None:
        self._before = self._listen()

    def _listen(self) -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Board:
    """What flows where: a table that stays in place on a terminal, else a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8) if sys.stdout.isatty() else None
        self._said_s = 0.0

    def __enter__(self) -> None:
        """It appears with the first thing there is to show."""

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, what: str) -> None:
        self._console.print(Text(shown(f"headwater: {what}")))

    def show(self, status: Status) -> None:
        if self._live is not None:
            self._live.start()
            self._live.update(_board(status))
        elif status.seconds - self._said_s >= limits.DEMO_LINE_EVERY_S:
            self._said_s = status.seconds
            lag = status.fed - status.taken
            told = f"{status.seconds:6.1f} s  fed {status.fed:,} ({status.fed_per_second:,.0f}/s)  "
            told += f"Spark {status.taken:,} ({status.taken_per_second:,.0f}/s, {max(lag, 0):,} behind)  "
            self._console.print(told + f"batch {status.batch}  published {status.published:,}", soft_wrap=True)


def _board(status: Status) -> Group:
    flows = Table(box=None, pad_edge=False, header_style="bold")
    for column, justify in (
        ("from", "left"),
        ("to", "left"),
        ("events", "right"),
        ("per second", "right"),
        ("", "left"),
    ):
        flows.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    lag = max(status.fed - status.taken, 0)
    lag_s = lag / status.fed_per_second if status.fed_per_second else 0.0
    flows.add_row("shop", "shop/events", f"{status.fed:,}", f"{status.fed_per_second:,.0f}", "")
    behind = Text(f"{lag:,} events, {lag_s:.1f} s behind", style="yellow" if lag_s > 10 else "green")
    flows.add_row("shop/events", "Spark", f"{status.taken:,}", f"{status.taken_per_second:,.0f}", behind)
    batch = "no batch yet" if status.batch is None else f"batch {status.batch}"
    flows.add_row("Spark", "shop/current", f"{status.published:,}", f"{status.published_per_second:,.0f}", batch)
    root = f"{status.url}{STREAM_ROOT}"
    places = Text(
        f"\ntable: {status.table or 'no version yet'}\n{root}shop/events?offset=-1\n"
        f"{root}shop/current?offset=-1\n{root}{RESERVED}/streams\n",
        style="cyan",
        overflow="fold",
    )
    return Group(Text(f"{status.seconds:.0f} s  (Ctrl-C ends it)\n", style="bold"), flows, places)


def _print_comparison(console: Console, comparison: Comparison) -> None:
    def told(right: bool) -> str:
        return "[green]the same[/green]" if right else "[bold red]DIFFERENT[/bold red]"

    console.print(f"{comparison.events:,} events, {comparison.batches:,} batches in {comparison.seconds:.1f} s")
    console.print(f"state by a plain fold:   {comparison.keys:,} keys")
    console.print(f"state in the table:      {comparison.table_keys:,} keys, {told(comparison.table_right)}")
    console.print(f"state by the new stream: {comparison.stream_keys:,} keys, {told(comparison.stream_right)}")
