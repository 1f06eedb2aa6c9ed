"""The location of a job's checkpoint, and the content of a streaming query's checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import OptionError
from headwater.pipeline.locations import absolute, check_apart, is_url, local_path, same_place
from headwater.spark.positions import StreamPlace, parse_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def beside(table: str, name: str, checkpoint: str | None = None) -> str:
    """The checkpoint of a job: the given one, or beside the table. A table in an object store needs a given one."""
    if checkpoint is not None:
        checkpoint = absolute(checkpoint)
        if same_place(checkpoint, table):
            raise OptionError(f"the checkpoint {checkpoint} is the table itself; put it elsewhere")
        check_apart({"the checkpoint": checkpoint, "the table": table})
        return checkpoint
    if is_url(table):
        raise OptionError(f"the table {table} is in an object store: set a checkpoint on a disk or in HDFS")
    return f"{table.rstrip('/')}.{name}"


def check_file_system(spark: SparkSession, checkpoint: str) -> None:
    """Refuse a checkpoint at a URL for which Spark has no file system, before anything is created."""
    if not is_url(checkpoint):
        return
    try:
        spark.read.text(checkpoint)
    except Exception as error:  # noqa: BLE001  # of Java, in several classes
        if not re.search("UnsupportedFileSystemException|ClassNotFoundException|No FileSystem", str(error)):
            return  # it does not exist yet, or cannot be reached: the query will tell
        message = f"Spark has no file system for the checkpoint {checkpoint}"
        how = "use a directory that driver and tasks share, or add the jars of the file system (spark.jars.packages)"
        raise OptionError(f"{message}: {how}") from None


def has_begun(checkpoint: str) -> bool:
    """Whether a query is known to continue from its checkpoint."""
    directory = local_path(checkpoint)
    return directory is not None and bool(_numbers(directory / "offsets"))


def ends_of(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, StreamPlace]:
    """The end of a batch in each stream."""
    return _places(_offsets(spark, checkpoint, batch))


def range_of(spark: SparkSession, checkpoint: str, batch: int) -> int:
    """A number that identifies the content of a batch: a hash of its end. A repeated batch has the same."""
    return _hash(_offsets(spark, checkpoint, batch))


def hash_of_range(directory: Path, batch: int) -> int | None:
    """The same number, without Spark; None if the checkpoint does not have the batch any more."""
    try:
        return _hash((directory / "offsets" / str(batch)).read_text())
    except FileNotFoundError:
        return None


def _hash(offsets: str) -> int:
    lines = offsets.splitlines()[2:]
    digest = hashlib.sha256("\n".join(lines).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # versions in Delta are signed


def _offsets(spark: SparkSession, checkpoint: str, batch: int) -> str:
    """The offsets that Spark stored before it started a batch, on any file system."""
    path = f"{checkpoint}/offsets/{batch}"
    file = local_path(path)
    return file.read_text() if file is not None else str(spark.read.text(path, wholetext=True).collect()[0].value)


class QueryPosition(msgspec.Struct, frozen=True):
    """The position of a streaming query, from its checkpoint."""

    job_id: str
    batch: int | None  # the last one that was committed
    ends: dict[str, StreamPlace]
    is_unfinished: bool  # a batch was started and not committed


def position_of(directory: Path) -> QueryPosition | None:
    """Read the checkpoint of a query, without Spark. None if there is none."""
    job_id = job_of(directory)
    if job_id is None:
        return None
    done = last_batch(directory)
    begun = max(_numbers(directory / "offsets"), default=None)
    text = (directory / "offsets" / str(done)).read_text() if done is not None else ""
    return QueryPosition(job_id, done, _places(text), begun is not None and begun != done)


def job_of(directory: Path) -> str | None:
    """The id of the job that a checkpoint belongs to; None if it has not started."""
    try:
        return str(json.loads((directory / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError):
        return None


def last_batch(directory: Path) -> int | None:
    """The last batch that was committed."""
    return max(_numbers(directory / "commits"), default=None)


def _numbers(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.glob("*") if path.name.isdigit()]


def _places(text: str) -> dict[str, StreamPlace]:
    """Parse an offsets file: a version, a line about the batch, and a line for each source."""
    places: dict[str, StreamPlace] = {}
    for line in text.splitlines()[2:]:
        if line.startswith("{"):
            places |= {path: parse_place(place) for path, place in json.loads(line).items()}
    return places
