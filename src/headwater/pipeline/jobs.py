"""A running job: its progress, its lag, and how to stop it; and the functions that start one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from headwater.options import check_values
from headwater.pipeline.options import JobOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
O = TypeVar("O", bound=JobOptions)  # noqa: E741
J = TypeVar("J")


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a job has done since its start, and its lag."""

    batches: int = 0
    rows: int = 0
    rows_per_s: float = 0.0  # of the last batch
    lag_bytes: dict[str, int] = {}  # by stream, where it is known
    doing: str = ""  # what it does or waits for, if it is known


class Job(Protocol):
    """A running job, as returned by `archive`, `materialize`, `publish` and `snapshot`."""

    name: str

    @property
    def is_active(self) -> bool:
        """Whether it is still running."""

    def progress(self) -> JobProgress:
        """The progress since the start."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end. True if the job has ended; raises its error if it failed."""

    def stop(self) -> None:
        """Stop the job after the current batch."""


def with_options(
    kind: Callable[P, O],
) -> Callable[[Callable[[SparkSession, O], J]], Callable[Concatenate[SparkSession, P], J]]:
    """Make a function whose keyword arguments are the fields of a struct, of one that takes the struct."""

    def decorate(function: Callable[[SparkSession, O], J]) -> Callable[Concatenate[SparkSession, P], J]:
        @functools.wraps(function)
        def start(spark: SparkSession, /, *args: P.args, **options: P.kwargs) -> J:
            return function(spark, check_values(kind(*args, **options)))

        session = inspect.Parameter("spark", inspect.Parameter.POSITIONAL_ONLY, annotation="SparkSession")
        parameters = [session, *inspect.signature(kind).parameters.values()]
        start.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return start

    return decorate
