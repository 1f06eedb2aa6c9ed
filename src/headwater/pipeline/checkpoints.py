"""The location of a job's checkpoint, and the content of a streaming query's checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from headwater.errors import OptionError
from headwater.spark.positions import Place, parse_place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WITH_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)


def beside(table: str, name: str, given: str | None = None) -> str:
    """The checkpoint of a job: the given one, or beside the table. A table in an object store needs a given one."""
    if given is not None:
        if _is_inside(given, table):
            raise OptionError(
                f"the checkpoint {given} is inside the table {table}, which would delete its files; put it elsewhere"
            )
        return given
    if _WITH_SCHEME.match(table) and not table.startswith("file:"):
        raise OptionError(f"the table {table} is in an object store: set a checkpoint on a disk or in HDFS")
    return f"{table.rstrip('/')}.{name}"


def local_path(checkpoint: str) -> Path | None:
    """The directory of a checkpoint, if this machine has it."""
    parts = urlsplit(checkpoint)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if _WITH_SCHEME.match(checkpoint) else Path(checkpoint)


def _is_inside(checkpoint: str, table: str) -> bool:
    place, other = local_path(checkpoint), local_path(table)
    if place is None or other is None:
        return f"{checkpoint.rstrip('/')}/".startswith(f"{table.rstrip('/')}/")
    return place.resolve().is_relative_to(other.resolve())


def has_begun(checkpoint: str) -> bool:
    """Whether a query is known to continue from its checkpoint."""
    directory = local_path(checkpoint)
    return directory is not None and bool(_numbers(directory / "offsets"))


def ends_of(spark: SparkSession, checkpoint: str, batch: int) -> dict[str, Place]:
    """The end of a batch in each stream."""
    return _places(_offsets(spark, checkpoint, batch))


def range_of(spark: SparkSession, checkpoint: str, batch: int) -> int:
    """A number that identifies the content of a batch: a hash of its end. A repeated batch has the same."""
    lines = _offsets(spark, checkpoint, batch).splitlines()[2:]
    return (
        int.from_bytes(hashlib.sha256("\n".join(lines).encode()).digest()[:8], "big") >> 1
    )  # versions in Delta are signed


def _offsets(spark: SparkSession, checkpoint: str, batch: int) -> str:
    """The offsets that Spark stored before it started a batch, on any file system."""
    path = f"{checkpoint}/offsets/{batch}"
    found = local_path(path)
    return found.read_text() if found is not None else str(spark.read.text(path, wholetext=True).collect()[0].value)


class QueryPosition(msgspec.Struct, frozen=True):
    """The position of a streaming query, from its checkpoint."""

    job_id: str
    batch: int | None  # the last one that was committed
    ends: dict[str, Place]
    is_unfinished: bool  # a batch was started and not committed


def position_of(directory: Path) -> QueryPosition | None:
    """Read the checkpoint of a query, without Spark. None if there is none."""
    try:
        job_id = json.loads((directory / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError):
        return None
    done = max(_numbers(directory / "commits"), default=None)
    begun = max(_numbers(directory / "offsets"), default=None)
    text = (directory / "offsets" / str(done)).read_text() if done is not None else ""
    return QueryPosition(job_id, done, _places(text), begun is not None and begun != done)


def _numbers(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.glob("*") if path.name.isdigit()]


def _places(text: str) -> dict[str, Place]:
    """Parse an offsets file: a version, a line about the batch, and a line for each source."""
    found: dict[str, Place] = {}
    for line in text.splitlines()[2:]:
        if line.startswith("{"):
            found |= {path: parse_place(place) for path, place in json.loads(line).items()}
    return found
