"""Globs that operators write, over the paths of streams and tables in the log.

In a glob `*` and `?` stay within a segment and `**` does not. It applies to streams and tables alike; one that begins
with `/v1/stream/` or `/v1/table/` applies to these alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from headwater.limits import GLOB_LENGTH_MAX, GLOB_STARS_MAX
from headwater.protocol.globs import glob
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.protocol.tables.paths import LOG_PREFIX, TABLE_ROOT

EVERYTHING = "**"


class PathGlob(NamedTuple):
    text: str  # as it is written
    path: str  # the same without a root
    streams: bool  # whether it applies to them
    tables: bool
    pattern: re.Pattern[str]

    def covers(self, path: str) -> bool:
        """Whether it covers a path of the log."""
        if path.startswith(LOG_PREFIX):
            return self.tables and self.pattern.fullmatch(path, len(LOG_PREFIX)) is not None
        return self.streams and self.pattern.fullmatch(path) is not None


def parse_path_glob(text: str, of: str) -> PathGlob:
    """Parse the glob of something, which errors name. ValueError if it is invalid."""
    rest, streams, tables = text, True, True
    if text.startswith("/"):
        streams, tables = text.startswith(STREAM_ROOT), text.startswith(TABLE_ROOT)
        if not streams and not tables:
            raise ValueError(
                f"the glob of {of} is a path without a slash before it, "
                f"or begins with {STREAM_ROOT} or {TABLE_ROOT}; got {text[:80]!r}"
            )
        rest = text.removeprefix(STREAM_ROOT if streams else TABLE_ROOT)
    _check(rest, text, of)
    return PathGlob(text, rest, streams, tables, glob(rest))


def _check(pattern: str, text: str, of: str) -> None:
    if not pattern or pattern.startswith("/") or pattern.endswith("/"):
        raise ValueError(f"the glob {text[:80]!r} of {of} names no path; ** is every path")
    if len(text) > GLOB_LENGTH_MAX or any(character < " " for character in pattern):
        raise ValueError(f"the glob {text[:80]!r} of {of} is too long, or holds a control character")
    within = (segment.replace(EVERYTHING, "").count("*") for segment in pattern.split("/"))
    if pattern.count(EVERYTHING) > GLOB_STARS_MAX or max(within) > GLOB_STARS_MAX:
        raise ValueError(
            f"the glob {text[:80]!r} of {of} has more than {GLOB_STARS_MAX} ** or more * than that in one segment"
        )
