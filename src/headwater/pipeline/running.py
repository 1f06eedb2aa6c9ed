"""Running jobs: a streaming query of Spark, or a loop of steps.

A job stops after its current batch. A batch that was not started is left to the next start. A job holds the lock of
its checkpoint while it runs, because Spark would silently stop a query when another one uses its checkpoint.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from headwater import errors, limits
from headwater.errors import HeadwaterError
from headwater.pipeline.jobs import JobProgress
from headwater.pipeline.locations import local_path
from headwater.pipeline.locking import JobLock, lock_checkpoint
from headwater.spark.progress import StreamLag, lag

# Takes the rows of a batch, its number, and the job's id. Returns how many rows it processed; None: those of the batch.
Work: TypeAlias = Callable[[DataFrame, int, str], int | None]

_NAMED_ERROR = re.compile(r"headwater\.errors\.(\w+): (.+)")  # in the traceback of a task or a source


class _StoppedError(Exception):
    """A batch arrived after the job was told to stop."""


class StreamingJob:
    """A job whose batches come from a streaming query."""

    def __init__(self, name: str, work: Work, lock: JobLock | None) -> None:
        self.name = name
        self._work = work
        self._lock = lock
        self._query: StreamingQuery | None = None
        self._has_started = threading.Event()
        self._turn = threading.Lock()  # held while a batch is processed
        self._is_stopping = False
        self._has_refused = False
        self._failure: Exception | None = None
        self._counting = threading.Lock()
        self._last_counted = -1  # the number of a batch
        self._batches = self._rows = 0
        self._row_counts: dict[int, int] = {}  # of batches, where it is not Spark's
        self._rate = 0.0

    @property
    def query(self) -> StreamingQuery:
        """The streaming query. Its id, which is in the checkpoint, is the id of the job."""
        self._has_started.wait()
        if self._query is None:
            raise RuntimeError(f"{self.name} did not start")
        return self._query

    @property
    def is_active(self) -> bool:
        return self.query.isActive

    def progress(self) -> JobProgress:
        seen = self._look()
        return JobProgress(
            batches=self._batches,
            rows=self._rows,
            rows_per_s=self._rate,
            lag_bytes=_bytes(lag(seen[-1])) if seen else {},
            doing=_doing(str(self.query.status["message"])),
        )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end. True if the job has ended; raises its error if it failed."""
        try:
            if timeout_s is None:
                self.query.awaitTermination()
            elif not self.query.awaitTermination(max(timeout_s, 0.001)):  # type: ignore[arg-type]  # fractions of seconds are allowed
                return False
            self._release()
            return True
        except StreamingQueryException as error:
            self._release()
            if self._failure is None and self._has_refused:
                return True
            raise cause_of(self._failure or error) from error

    def stop(self) -> None:
        """Stop the job after the current batch."""
        self._is_stopping = True
        with self._turn:
            pass  # released before `query.stop`, which waits for a refused batch
        self.query.stop()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _release_at_end(self) -> None:
        """Release the lock when the query ends, even if no caller waits. Its error is raised by the next call."""
        with contextlib.suppress(Exception):
            self.query.awaitTermination()
        self._release()

    def _batch(self, rows: DataFrame, number: int) -> None:
        with self._turn:
            if self._is_stopping:
                self._has_refused = True
                raise _StoppedError(f"{self.name} was told to stop")
            try:
                self._look()
                row_count = self._work(rows, number, self.query.id)
                if row_count:
                    self._row_counts[number] = row_count
            except Exception as error:
                self._failure = error
                raise

    def _look(self) -> list[StreamingQueryProgress]:
        """Count the rows of every batch, because Spark keeps only the last reports."""
        with self._counting:
            seen = list(self.query.recentProgress)
            for one in seen:
                if one["numInputRows"] and one["batchId"] > self._last_counted:
                    self._last_counted = one["batchId"]
                    self._batches += 1
                    row_count = self._row_counts.pop(one["batchId"], one["numInputRows"])
                    self._rows += row_count
                    self._rate = one["processedRowsPerSecond"] * row_count / one["numInputRows"]
        return seen


def _doing(message: str) -> str:
    """What a query does, from its status. Spark names the source by its class."""
    for start, words in _STATUS.items():
        if message.startswith(start):
            return words
    return message.lower()


_STATUS = {
    "Initializing": "starting",
    "Getting offsets": "asking the server for new data",
    "Processing": "processing a batch",
    "No new data": "waiting for data",
    "Waiting for": "waiting for data",
    "Stopped": "",
    "Terminated": "",
}


def _bytes(behind: list[StreamLag]) -> dict[str, int]:
    return {each.stream: each.bytes for each in behind if each.stream is not None and each.bytes is not None}


def start_query(
    rows: DataFrame, work: Work, *, name: str, checkpoint: str, once: bool, every_s: float | None = None
) -> StreamingJob:
    """Start a query that passes each batch to `work`: for the current data (`once`), or until it is stopped.

    `every_s` is the minimum time between two batches. A checkpoint that is not on this machine is not locked.
    """
    directory = local_path(checkpoint)
    job = StreamingJob(name, work, None if directory is None else lock_checkpoint(directory))
    writer = rows.writeStream.foreachBatch(job._batch).option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every_s is not None:
        writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    try:
        job._query = writer.start()
    except BaseException:
        job._release()
        raise
    finally:
        job._has_started.set()
    threading.Thread(target=job._release_at_end, name=f"headwater-{name}-end", daemon=True).start()
    return job


def cause_of(error: Exception) -> Exception:
    """The original error, which tasks and sources report only in the text of another error."""
    if isinstance(error, HeadwaterError):
        return error
    for name, what in reversed(_NAMED_ERROR.findall(str(error))):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HeadwaterError):
            return kind(what)
    return error


def raised_in_worker(text: str) -> str | None:
    """The error of a Python worker, from its traceback in the text of another error."""
    _, _, traceback = text.rpartition(_TRACEBACK)
    lines = traceback.splitlines()[1:] if _TRACEBACK in text else []
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), None)


_TRACEBACK = "Traceback (most recent call last):"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of a loop."""

    rows: int
    lag_bytes: dict[str, int] = {}


class LoopJob:
    """A job that runs steps in a thread: all that are due, and again after a wait."""

    def __init__(
        self, name: str, steps: Callable[[], Iterator[Step]], *, once: bool, every_s: float, lock: JobLock | None = None
    ) -> None:
        self.name = name
        self._steps = steps
        self._lock = lock
        self._once = once
        self._every_s = every_s
        self._stopping = threading.Event()
        self._progress = JobProgress()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"headwater-{name}", daemon=True)

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive()

    def progress(self) -> JobProgress:
        return self._progress

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end. True if the job has ended; raises its error if it failed."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise cause_of(self._failure) from self._failure
        return True

    def stop(self) -> None:
        """Stop the job after the current step."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._take_steps()
                if self._once or self._stopping.wait(self._every_s):
                    return
        except Exception as error:  # noqa: BLE001  # raised by `wait`
            self._failure = error
        finally:
            if self._lock is not None:
                self._lock.release()

    def _take_steps(self) -> None:
        began_s = time.monotonic()
        for step in self._steps():
            now_s = time.monotonic()
            before = self._progress
            self._progress = JobProgress(
                batches=before.batches + (1 if step.rows else 0),
                rows=before.rows + step.rows,
                rows_per_s=step.rows / max(now_s - began_s, 0.001) if step.rows else before.rows_per_s,
                lag_bytes={**before.lag_bytes, **step.lag_bytes},
            )
            if self._stopping.is_set():
                return
            began_s = time.monotonic()


def start_loop(
    steps: Callable[[], Iterator[Step]],
    *,
    name: str,
    once: bool,
    every_s: float = limits.PIPELINE_POLL_S,
    checkpoint: Path | None = None,
) -> LoopJob:
    """Start a thread that runs all steps that are due: once, or repeatedly with a pause of `every_s`."""
    lock = None if checkpoint is None else lock_checkpoint(checkpoint)
    job = LoopJob(name, steps, once=once, every_s=every_s, lock=lock)
    job._thread.start()
    return job
