"""Where jobs keep their tables and checkpoints, and why none of them may be inside another.

A vacuum of a Delta table deletes every file below it that its log does not name. It would delete a table or checkpoint
inside the table, with its log.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from headwater import limits
from headwater.errors import OptionError

_WITH_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)
_LOG = "_delta_log"


def local_path(location: str) -> Path | None:
    """The directory of a table or checkpoint, if this machine has it."""
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if _WITH_SCHEME.match(location) else Path(location)


def absolute(location: str) -> str:
    """The location as all processes understand it: a path is that of this process's working directory."""
    if not location.strip():
        raise OptionError("the path of a table or checkpoint is empty")
    place = local_path(location)
    is_complete = place is None or (place.is_absolute() and _WITH_SCHEME.match(location) is not None)
    return location if place is None or is_complete else os.path.abspath(place.expanduser())


def is_url(location: str) -> bool:
    """Whether it is a URL of something other than a file."""
    return local_path(location) is None


def same_place(first: str, second: str) -> bool:
    return _comparable(first) == _comparable(second)


def check_apart(locations: Mapping[str, str]) -> None:
    """Refuse locations inside one another. The keys say what is there, such as `the table of [jobs.a]`."""
    places = {name: _comparable(location) for name, location in locations.items()}
    for name, place in places.items():
        for other, outer in places.items():
            if name != other and place != outer and place.is_relative_to(outer):
                message = f"{name}, {locations[name]}, is inside {other}, {locations[other]}"
                raise OptionError(f"{message}, whose vacuum would delete it; put it elsewhere")


def check_surroundings(table: str) -> None:
    """Refuse a table on a disk that is inside another Delta table, or has one inside."""
    place = local_path(table)
    if place is None:
        return
    place = Path(os.path.realpath(place))
    for outer in place.parents:
        if (outer / _LOG).is_dir():
            message = f"the table {table} is inside the Delta table {outer}"
            raise OptionError(f"{message}, whose vacuum would delete it; put it elsewhere")
    for inner in _tables_below(place):
        message = f"the table {table} contains the Delta table {inner}"
        raise OptionError(f"{message}, which its vacuum would delete; put one of them elsewhere")


def _tables_below(place: Path, depth: int = limits.PIPELINE_NESTED_DEPTH) -> Iterator[Path]:
    """Delta tables in a directory. Directories of partitions (`name=value`) and hidden ones are not searched."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in sorted(os.listdir(place)):
            inner = place / name
            if "=" in name or name.startswith(("_", ".")) or not inner.is_dir():
                continue
            if (inner / _LOG).is_dir():
                yield inner
            elif depth > 1:
                yield from _tables_below(inner, depth - 1)


def _comparable(location: str) -> PurePosixPath:
    """One form for all spellings of a location."""
    place = local_path(location)
    if place is not None:
        return PurePosixPath(os.path.realpath(place))
    scheme, _, rest = location.partition(":")
    return PurePosixPath(f"{scheme.lower()}:", *(part for part in rest.split("/") if part not in ("", ".")))
