"""Runs jobs from the command line: shows progress, stops them after the current batch, and prints a summary."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headwater import limits
from headwater.cli.output import say, shown, warnings_said
from headwater.cli.pipeline.checking import check_jobs
from headwater.cli.pipeline.java_output import JavaOutput
from headwater.cli.pipeline.ordering import order_of
from headwater.cli.pipeline.sessions import is_waiting_for_executors, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.cli.pipeline.config import PipelineFile
    from headwater.pipeline.jobs import Job, JobProgress
    from headwater.pipeline.options import JobOptions


def run(pipeline: PipelineFile) -> None:
    """Run jobs until all have ended, one has failed, or a signal arrives. Raises the error of a failed job."""
    from headwater.pipeline.metrics import serving_metrics

    order = order_of(pipeline.jobs)
    check_jobs(pipeline.jobs)
    jobs: dict[str, Job] = {}
    output = JavaOutput()
    stopping = _Stopping(output)
    began_s = time.monotonic()
    with stopping, warnings_said(), serving_metrics(jobs, pipeline.session.metrics_port):
        spark = start_session(pipeline.session, output)
        try:
            stopping.listen()  # again, because Spark has installed its own handler for Ctrl-C
            _watch(_Run(pipeline, spark, order, jobs), stopping, began_s)
        finally:
            output.end()
            if not isinstance(sys.exception(), KeyboardInterrupt):
                _stop(jobs)
            _summarize(jobs, time.monotonic() - began_s)
            spark.stop()


def _start(options: JobOptions, spark: SparkSession, name: str) -> Job:
    import headwater.pipeline

    function: Callable[..., Job] = getattr(headwater.pipeline, options.job)
    return function(spark, **{**msgspec.structs.asdict(options), "name": name})


class _Run:
    """The jobs that were started, and those that wait for others."""

    def __init__(
        self, pipeline: PipelineFile, spark: SparkSession, order: Mapping[str, set[str]], jobs: dict[str, Job]
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._waits = {name: set(others) for name, others in order.items()}
        self._ended: set[str] = set()
        self.jobs = jobs

    def start_due(self, stopping: _Stopping) -> None:
        """Start the jobs that no longer wait for others."""
        for name, others in list(self._waits.items()):
            if stopping.is_asked or others - self._ended:
                continue
            say(f"headwater: starting {name}" + (f" after {', '.join(sorted(others))}" if others else ""), err=True)
            del self._waits[name]
            self.jobs[name] = _start(self._pipeline.jobs[name], self._spark, name)

    def has_ended(self) -> bool:
        """Whether all jobs have ended. Raises the error of a failed job."""
        pause_s = limits.PIPELINE_LOOK_S / len(self.jobs)
        self._ended = {name for name, job in self.jobs.items() if job.wait(pause_s)}
        return len(self._ended) == len(self._pipeline.jobs)

    def looks(self) -> dict[str, JobProgress]:
        looks = _looks(self.jobs)
        is_waiting = not self._pipeline.session.master.startswith("local") and is_waiting_for_executors(self._spark)
        if is_waiting:
            what = f"waiting for executors of {self._pipeline.session.master}"
            looks = {name: msgspec.structs.replace(progress, doing=what) for name, progress in looks.items()}
        return looks


def _watch(running: _Run, stopping: _Stopping, began_s: float) -> None:
    with _board() as board:
        while not stopping.is_asked:
            running.start_due(stopping)
            if running.jobs and running.has_ended():
                return
            board.show(running.looks(), time.monotonic() - began_s)


def _stop(jobs: Mapping[str, Job]) -> None:
    for job in jobs.values():
        if job.is_active:
            job.stop()


def _looks(jobs: Mapping[str, Job]) -> dict[str, JobProgress]:
    return {name: job.progress() for name, job in jobs.items()}


class _Stopping:
    """Whether a signal has arrived. A second signal ends the process at once."""

    def __init__(self, output: JavaOutput) -> None:
        self.is_asked = False
        self._output = output
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> dict[signal.Signals, Any]:
        return {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        self._output.end()  # the terminal may have sent the signal to the workers of Spark too
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

    def show(self, looks: Mapping[str, JobProgress], seconds: float) -> None:
        if seconds - self._said_s < limits.PIPELINE_LINE_EVERY_S:
            return
        self._said_s = seconds
        for name, progress in looks.items():
            say(f"{seconds:7.1f} s  {name}: {summary(progress)}", err=True)


class _Live:
    """A live table on a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, looks: Mapping[str, JobProgress], seconds: float) -> None:
        self._live.update(_table(looks, seconds))


@contextlib.contextmanager
def _board() -> Iterator[_Lines | _Live]:
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield _Live(live)


def summary(progress: JobProgress) -> str:
    """One line with rows, rate and lag, and the streams with the largest lag; before the first batch, what is done."""
    text = f"{progress.rows:,} rows in {progress.batches:,} batches, {progress.rows_per_s:,.0f} rows/s"
    if not progress.batches and progress.doing:
        return f"{text}, {progress.doing}"
    if not progress.lag_bytes:
        return text
    behind = _furthest(progress)
    streams = ", ".join(f"{path} {lag:,}" for path, lag in behind[:3])
    return f"{text}, {sum(progress.lag_bytes.values()):,} bytes behind" + (f" ({streams})" if behind else "")


def _furthest(progress: JobProgress) -> list[tuple[str, int]]:
    behind = [(path, lag) for path, lag in progress.lag_bytes.items() if lag]
    return sorted(behind, key=lambda one: -one[1])[: limits.PIPELINE_STREAMS_SHOWN]


def _table(looks: Mapping[str, JobProgress], seconds: float) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("job", "rows", "batches", "rows/s", "bytes behind", ""):
        table.add_column(column, justify="left" if column in ("job", "") else "right", no_wrap=True)
    for name, progress in looks.items():
        lag = sum(progress.lag_bytes.values()) if progress.lag_bytes else None
        numbers = (f"{progress.rows:,}", f"{progress.batches:,}", f"{progress.rows_per_s:,.0f}")
        table.add_row(Text(shown(name)), *numbers, "-" if lag is None else f"{lag:,}", Text(shown(progress.doing)))
        for path, behind in _furthest(progress):
            table.add_row(Text(shown(f"  {path}"), style="dim"), "", "", "", Text(f"{behind:,}", style="dim"))
    return Group(Text(f"{seconds:.0f} s  (Ctrl-C ends it after the batch)\n", style="bold"), table)


def _summarize(jobs: Mapping[str, Job], seconds: float) -> None:
    for name, progress in _looks(jobs).items():
        say(f"{name}: {summary(progress)}; {seconds:.1f} s")
