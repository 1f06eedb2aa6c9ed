"""Runs jobs from the command line: shows progress, stops them after the current batch, and prints a summary."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater import limits
from headwater.cli.output import say, shown

if TYPE_CHECKING:
    from headwater.cli.pipeline.config import Pipeline
    from headwater.pipeline.jobs import Job, Progress


def run(pipeline: Pipeline) -> None:
    """Run jobs until all have ended, one has failed, or a signal arrives. Raises the error of a failed job."""
    import headwater.spark
    from headwater.pipeline.metrics import serving_metrics

    jobs: dict[str, Job] = {}
    began_s = time.monotonic()
    stopping = _Stopping()
    with stopping, serving_metrics(jobs, pipeline.session.metrics_port):
        say("headwater: starting Spark, which takes some seconds", err=True)
        quiet = {"spark.log.level": "OFF"}  # failures are reported at the end
        spark = headwater.spark.session("headwater-pipeline", master=pipeline.session.master, config=quiet)
        try:
            stopping.listen()  # again, because Spark has installed its own handler for Ctrl-C
            for name, options in pipeline.jobs.items():
                if not stopping.is_asked:
                    jobs[name] = options.start(spark, name)
            _watch(jobs, stopping, began_s)
        finally:
            if not isinstance(sys.exception(), KeyboardInterrupt):
                _stop(jobs)
            _summarize(jobs, time.monotonic() - began_s)
            spark.stop()


def _watch(jobs: Mapping[str, Job], stopping: _Stopping, began_s: float) -> None:
    with _board() as board:
        while not stopping.is_asked and not _have_ended(jobs):
            board.show(_looks(jobs), time.monotonic() - began_s)


def _have_ended(jobs: Mapping[str, Job]) -> bool:
    """Whether all jobs have ended. Raises the error of a failed job."""
    ended = [job.wait(limits.PIPELINE_LOOK_S / len(jobs)) for job in jobs.values()]
    return all(ended)


def _stop(jobs: Mapping[str, Job]) -> None:
    for job in jobs.values():
        if job.is_active:
            job.stop()


def _looks(jobs: Mapping[str, Job]) -> dict[str, Progress]:
    return {name: job.progress() for name, job in jobs.items()}


class _Stopping:
    """Whether a signal has arrived. A second signal ends the process at once."""

    def __init__(self) -> None:
        self.is_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        say("headwater: ending after the batch; a second signal ends it at once", err=True)

    def __enter__(self) -> None:
        self._before = self.listen()

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Lines:
    """Prints a line every few seconds for each job with progress, if there is no terminal."""

    def __init__(self) -> None:
        self._said_s = 0.0

    def show(self, looks: Mapping[str, Progress], seconds: float) -> None:
        if seconds - self._said_s < limits.PIPELINE_LINE_EVERY_S:
            return
        self._said_s = seconds
        for name, progress in looks.items():
            say(f"{seconds:7.1f} s  {name}: {told(progress)}", err=True)


class _Live:
    """A live table on a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, looks: Mapping[str, Progress], seconds: float) -> None:
        self._live.update(_table(looks, seconds))


@contextlib.contextmanager
def _board() -> Iterator[_Lines | _Live]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield _Live(live)


def told(progress: Progress) -> str:
    """One line with rows, rate and lag, and the streams with the largest lag."""
    text = f"{progress.rows:,} rows in {progress.batches:,} batches, {progress.rows_per_s:,.0f} rows/s"
    if not progress.lag_bytes:
        return text
    behind = _furthest(progress)
    streams = ", ".join(f"{path} {lag:,}" for path, lag in behind[:3])
    return f"{text}, {sum(progress.lag_bytes.values()):,} bytes behind" + (f" ({streams})" if behind else "")


def _furthest(progress: Progress) -> list[tuple[str, int]]:
    behind = [(path, lag) for path, lag in progress.lag_bytes.items() if lag]
    return sorted(behind, key=lambda one: -one[1])[: limits.PIPELINE_STREAMS_SHOWN]


def _table(looks: Mapping[str, Progress], seconds: float) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "rows", "batches", "rows/s", "bytes behind"):
        table.add_column(column, justify="left" if column == "job" else "right", no_wrap=True)
    for name, progress in looks.items():
        lag = sum(progress.lag_bytes.values()) if progress.lag_bytes else None
        numbers = (f"{progress.rows:,}", f"{progress.batches:,}", f"{progress.rows_per_s:,.0f}")
        table.add_row(Text(shown(name)), *numbers, "-" if lag is None else f"{lag:,}")
        for path, behind in _furthest(progress):
            table.add_row(Text(shown(f"  {path}"), style="dim"), "", "", "", Text(f"{behind:,}", style="dim"))
    return Group(Text(f"{seconds:.0f} s  (Ctrl-C ends it after the batch)\n", style="bold"), table)


def _summarize(jobs: Mapping[str, Job], seconds: float) -> None:
    for name, progress in _looks(jobs).items():
        say(f"{name}: {told(progress)}; {seconds:.1f} s")
