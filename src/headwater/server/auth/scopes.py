"""Scopes: which actions a token allows on which streams and tables.

A scope is `action:glob`, as `read:prices/**`. In the glob `*` and `?` stay within a segment and `**` does not. It
applies to streams and tables alike; one that begins with `/v1/stream/` or `/v1/table/` applies to these alone. `admin`
includes every other action on the paths of its glob, and `admin:**` the server itself.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import NamedTuple

from headwater.limits import AUTH_SCOPE_LENGTH_MAX, AUTH_SCOPE_STARS_MAX
from headwater.protocol.globs import fixed_part, glob
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.protocol.tables.paths import LOG_PREFIX, TABLE_ROOT

EVERYTHING = "**"


class Action(enum.StrEnum):
    READ = "read"
    APPEND = "append"  # closing too
    CREATE = "create"
    DELETE = "delete"
    SUBSCRIBE = "subscribe"  # advertise NURLs, manage subscriptions
    CLAIM = "claim"  # claim subscriptions, as a worker
    RETAIN = "retain"  # what is kept: retention, and trims
    NOTIFY = "notify"  # send Notify requests
    FOLLOW = "follow"  # make the server follow a table
    ADMIN = "admin"

    __hash__ = str.__hash__  # Enum.__hash__ is slow Python code, and every request calls it


_ACTIONS = {action.value: action for action in Action}


class Scope(NamedTuple):
    action: Action
    glob: str  # as it is written
    path: str  # the same without a root
    streams: bool  # whether it applies to them
    tables: bool
    pattern: re.Pattern[str]

    def __str__(self) -> str:
        return f"{self.action}:{self.glob}"

    def covers(self, action: Action, path: str) -> bool:
        """Whether the scope covers a path of the log."""
        if self.action is not action and self.action is not Action.ADMIN:
            return False
        if path.startswith(LOG_PREFIX):
            return self.tables and self.pattern.fullmatch(path, len(LOG_PREFIX)) is not None
        return self.streams and self.pattern.fullmatch(path) is not None


def parse_scope(text: str) -> Scope:
    """Parse a scope. ValueError if it is invalid."""
    name, colon, pattern = text.partition(":")
    action = _ACTIONS.get(name)
    if not colon or action is None:
        raise ValueError(
            f"a scope is ACTION:GLOB, as read:prices/**, with one of {', '.join(Action)}; got {text[:80]!r}"
        )
    rest, streams, tables = pattern, True, True
    if pattern.startswith("/"):
        streams, tables = pattern.startswith(STREAM_ROOT), pattern.startswith(TABLE_ROOT)
        if not streams and not tables:
            raise ValueError(
                f"the glob of a scope is a path without a slash before it, "
                f"or begins with {STREAM_ROOT} or {TABLE_ROOT}; got {text[:80]!r}"
            )
        rest = pattern.removeprefix(STREAM_ROOT if streams else TABLE_ROOT)
    _check_glob(rest, text)
    return Scope(action, pattern, rest, streams, tables, glob(rest))


def _check_glob(pattern: str, text: str) -> None:
    if not pattern or pattern.startswith("/") or pattern.endswith("/"):
        raise ValueError(f"the glob of the scope {text[:80]!r} names no path; ** is every path")
    if len(text) > AUTH_SCOPE_LENGTH_MAX or any(character < " " for character in pattern):
        raise ValueError(f"the scope {text[:80]!r} is too long, or holds a control character")
    within = (segment.replace(EVERYTHING, "").count("*") for segment in pattern.split("/"))
    if pattern.count(EVERYTHING) > AUTH_SCOPE_STARS_MAX or max(within) > AUTH_SCOPE_STARS_MAX:
        raise ValueError(
            f"the scope {text[:80]!r} has more than {AUTH_SCOPE_STARS_MAX} ** or more * than that in one segment"
        )


class Scopes:
    """The scopes of a credential. `within` is a second set of scopes that must allow an action as well."""

    __slots__ = ("_scopes", "_within", "everything")

    everything: bool  # `admin:**`

    def __init__(self, scopes: Iterable[Scope], within: Scopes | None = None) -> None:
        self._scopes = tuple(scopes)
        self._within = within
        unbounded = any(scope.action is Action.ADMIN and scope.glob == EVERYTHING for scope in self._scopes)
        self.everything = unbounded and (within is None or within.everything)

    def allow(self, action: Action, path: str) -> bool:
        if self._within is not None and not self._within.allow(action, path):
            return False
        return any(scope.covers(action, path) for scope in self._scopes)

    def prefixes(self, action: Action, *, tables: bool) -> list[str]:
        """The prefixes of the paths that may be allowed."""
        return [
            f"{LOG_PREFIX if tables else ''}{fixed_part(scope.path)}"
            for scope in self._scopes
            if (scope.tables if tables else scope.streams) and scope.action in (action, Action.ADMIN)
        ]

    @property
    def texts(self) -> tuple[str, ...]:
        """The scopes as they are written, without those that limit them."""
        return tuple(map(str, self._scopes))

    def __bool__(self) -> bool:
        return bool(self._scopes)

    def __len__(self) -> int:
        return len(self._scopes) + (0 if self._within is None else len(self._within))


def parse_scopes(texts: Iterable[str]) -> Scopes:
    return Scopes([parse_scope(text) for text in texts])


NOTHING = Scopes(())


class OneAction(Scopes):
    """A scope for one action on one path of the log, within other scopes."""

    __slots__ = ("_action", "_path")

    def __init__(self, action: Action, path: str, within: Scopes | None = None) -> None:
        super().__init__((), within)
        self._action = action
        self._path = path

    def allow(self, action: Action, path: str) -> bool:
        if action is not self._action or path != self._path:
            return False
        return self._within is None or self._within.allow(action, path)
