"""Loops of steps, and the errors of failed jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headwater.errors import DataLossError, NetworkError
from headwater.pipeline.running import Step, cause_of, start_loop
from tests.waiting import LIMIT_S


def test_a_loop_that_runs_once_runs_all_steps_and_ends() -> None:
    def steps() -> Iterator[Step]:
        yield Step(rows=2, lag_bytes={"a": 10})
        yield Step(rows=3, lag_bytes={"a": 0, "b": 5})

    job = start_loop(steps, name="test", once=True)
    assert job.wait(LIMIT_S)
    assert not job.is_active
    progress = job.progress()
    assert (progress.batches, progress.rows, progress.lag_bytes) == (2, 5, {"a": 0, "b": 5})


def test_a_loop_runs_until_it_is_stopped_after_a_step() -> None:
    begun, release, taken = threading.Event(), threading.Event(), []

    def steps() -> Iterator[Step]:
        for number in range(3):
            begun.set()
            release.wait(LIMIT_S)
            taken.append(number)
            yield Step(rows=1)

    job = start_loop(steps, name="test", once=False, every_s=0.001)
    begun.wait(LIMIT_S)
    assert not job.wait(0.01)
    stopping = threading.Thread(target=job.stop)
    stopping.start()
    assert job.is_active  # the step is not interrupted
    release.set()
    stopping.join(LIMIT_S)
    assert job.wait(LIMIT_S)
    assert taken == [0]
    assert job.progress().rows == 1


def test_a_failed_loop_raises_its_error() -> None:
    def steps() -> Iterator[Step]:
        yield Step(rows=1)
        raise NetworkError("gone")

    job = start_loop(steps, name="test", once=False)
    with pytest.raises(NetworkError, match="gone"):
        job.wait(LIMIT_S)
    assert job.progress().rows == 1


def test_the_cause_of_a_failure_is_found_in_the_text_of_tasks() -> None:
    trace = "Job aborted\n  raise X\nheadwater.errors.DataLossError: orders: the stream is gone\n\tat org.apache"
    cause = cause_of(RuntimeError(trace))
    assert isinstance(cause, DataLossError)
    assert str(cause) == "orders: the stream is gone"


def test_other_errors_are_unchanged() -> None:
    for error in (RuntimeError("headwater.errors.NoSuchError: what"), ValueError("no")):
        assert cause_of(error) is error
    known = DataLossError("x")
    assert cause_of(known) is known
