"""What can be checked about jobs before Spark starts, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.errors import OptionError
from headwater.pipeline.options import (
    JobOptions,
    PublishOptions,
    StreamsOptions,
    TableOptions,
)


def check_jobs(jobs: Mapping[str, JobOptions]) -> None:
    """Raise an error for a job that cannot work. Errors name the job if there are several."""
    from headwater.pipeline.locations import check_apart

    written = [place for options in jobs.values() for place in options.places().values()]
    for name, options in jobs.items():
        try:
            _check_server(options)
            if isinstance(options, TableOptions):
                _check_places(options)
            check_apart({f"the {what}": place for what, place in (options.places() | options.inputs()).items()})
            _check_inputs(options, written)
        except OptionError as error:
            raise OptionError(f"[jobs.{name}]: {error}" if len(jobs) > 1 else str(error)) from None


def _check_server(options: JobOptions) -> None:
    """Check the server, its files, and what is read from it or written to it."""
    from headwater.pipeline.connecting import check_server
    from headwater.pipeline.sources import JobSource
    from headwater.pipeline.targets import PublishTarget

    check_server(options)
    if isinstance(options, PublishOptions):
        PublishTarget(options).check()
    if isinstance(options, StreamsOptions):
        JobSource(options).check()


def _check_places(options: TableOptions) -> None:
    from headwater.pipeline.checkpoints import beside
    from headwater.pipeline.locations import absolute, check_surroundings

    table = absolute(options.table)
    beside(table, "checkpoint", options.checkpoint)
    check_surroundings(table)


def _check_inputs(options: JobOptions, written: list[str]) -> None:
    """Check that the tables exist that a job reads, unless another job writes them."""
    from headwater.pipeline.lake import Lake
    from headwater.pipeline.locations import absolute, same_place

    for table in options.inputs().values():
        if not any(same_place(table, place) for place in written) and not Lake(absolute(table)).exists():
            raise OptionError(f"there is no Delta table at {table}")
