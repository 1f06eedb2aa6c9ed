"""Finds the positions of pipeline jobs from their checkpoints and the server, without Spark."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.pipeline.options import (
    JobOptions,
    PublishOptions,
    SnapshotOptions,
    TableOptions,
)


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    job: str
    position: str  # in words
    lag_bytes: dict[str, int] = {}  # by stream
    lag_versions: int | None = None  # of a table


def status_of(name: str, options: JobOptions) -> JobStatus:
    if isinstance(options, TableOptions):
        return _of_query(name, options)
    if isinstance(options, PublishOptions):
        return _of_publish(name, options)
    if isinstance(options, SnapshotOptions):
        return _of_snapshots(name, options)
    return JobStatus(name=name, job=options.job, position="keeps no position: it compares")


def _of_query(name: str, options: TableOptions) -> JobStatus:
    from headwater.pipeline.checkpoints import beside, position_of
    from headwater.pipeline.locations import local_path
    from headwater.pipeline.sources import JobSource
    from headwater.positions import Position
    from headwater.spark.positions import EARLIEST_PLACE, bytes_between

    source = JobSource(options)
    tails = source.tails(patient=False)
    directory = local_path(beside(options.table, "checkpoint", options.checkpoint))
    if directory is None:
        return JobStatus(
            name=name, job=options.job, position=f"its checkpoint {options.checkpoint} is not on this machine"
        )
    checkpoint = position_of(directory)
    ends = {} if checkpoint is None else checkpoint.ends
    lags = {
        path: bytes_between(ends.get(path, EARLIEST_PLACE), Position(info.tail_offset)) for path, info in tails.items()
    }
    position = "not started" if checkpoint is None or checkpoint.batch is None else f"batch {checkpoint.batch}"
    if checkpoint is not None and checkpoint.is_unfinished:
        position += ", another one begun"
    known = {path: lag for path, lag in lags.items() if lag is not None}
    return JobStatus(name=name, job=options.job, position=position, lag_bytes=known)


def _of_publish(name: str, options: PublishOptions) -> JobStatus:
    from headwater.errors import UnsupportedTableError
    from headwater.pipeline.lake import Lake
    from headwater.pipeline.locations import local_path
    from headwater.pipeline.publishing import default_checkpoint, published_version, skipped_versions

    table = options.table or ""
    directory = local_path(default_checkpoint(table, options))
    lake, version, refusal = Lake(table), None, f"there is no Delta table at {table}"
    try:
        version = lake.open().version() if lake.exists() else None
    except UnsupportedTableError as error:
        refusal = str(error)
    done = published_version(directory) if directory is not None else None
    skipped = skipped_versions(directory) if directory is not None else []
    position = "not started" if done is None else f"version {done}"
    position += "".join(f"; version {one.version} was skipped: {one.reason}" for one in skipped[-1:])
    if version is None:
        position += f"; {refusal}"
    lag = None if version is None else version - (-1 if done is None else done)
    return JobStatus(name=name, job=options.job, position=position, lag_versions=lag)


def _of_snapshots(name: str, options: SnapshotOptions) -> JobStatus:
    from headwater.pipeline.snapshots import behind_newest
    from headwater.pipeline.sources import JobSource

    source = JobSource(options)
    tails = source.tails(patient=False)
    with source.client() as client:
        lags = {path: behind_newest(client, path, info.tail_offset) for path, info in tails.items()}
    return JobStatus(name=name, job=options.job, position=f"{len(lags)} streams", lag_bytes=lags)


def as_row(status: JobStatus) -> dict[str, Any]:
    """The lag as text."""
    worst = max(status.lag_bytes, key=lambda path: status.lag_bytes[path], default=None)
    lag = f"{sum(status.lag_bytes.values()):,} bytes" if status.lag_bytes else None
    if status.lag_versions is not None:
        lag = f"{status.lag_versions:,} versions"
    return {
        "job": status.name,
        "kind": status.job,
        "position": status.position,
        "lag": lag,
        "most_of_it_in": worst if worst is not None and status.lag_bytes[worst] else None,
    }
