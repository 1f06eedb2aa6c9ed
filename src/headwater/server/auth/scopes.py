"""Scopes: which actions a token allows on which streams and tables.

A scope is `action:glob`, as `read:prices/**`. `admin` includes every other action on the paths of its glob, and
`admin:**` the server itself.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from headwater.protocol.globs import fixed_part
from headwater.protocol.tables.paths import LOG_PREFIX
from headwater.server.path_globs import EVERYTHING, PathGlob, parse_path_glob


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
    SETTINGS = "settings"  # see the settings of the server
    ADMIN = "admin"

    __hash__ = str.__hash__  # Enum.__hash__ is slow Python code, and every request calls it


_ACTIONS = {action.value: action for action in Action}
ON_PATHS = tuple([action for action in Action if action is not Action.SETTINGS])  # the others concern the server


class Scope(NamedTuple):
    action: Action
    paths: PathGlob

    def __str__(self) -> str:
        return f"{self.action}:{self.paths.text}"

    def covers(self, action: Action, path: str) -> bool:
        """Whether the scope covers a path of the log."""
        if self.action is not action and self.action is not Action.ADMIN:
            return False
        return self.paths.covers(path)


def parse_scope(text: str) -> Scope:
    """Parse a scope. ValueError if it is invalid."""
    name, colon, pattern = text.partition(":")
    action = _ACTIONS.get(name)
    if not colon or action is None:
        raise ValueError(
            f"a scope is ACTION:GLOB, as read:prices/**, with one of {', '.join(Action)}; got {text[:80]!r}"
        )
    if action not in ON_PATHS and pattern != EVERYTHING:
        raise ValueError(f"{action} is for the server as a whole, so the scope is {action}:**; got {text[:80]!r}")
    return Scope(action, parse_path_glob(pattern, "a scope"))


class Scopes:
    """The scopes of a credential. `within` is a second set of scopes that must allow an action as well."""

    __slots__ = ("_scopes", "_within", "everything")

    everything: bool  # `admin:**`

    def __init__(self, scopes: Iterable[Scope], within: Scopes | None = None) -> None:
        self._scopes = tuple(scopes)
        self._within = within
        self.everything = self.allow_on_server(Action.ADMIN)

    def allow(self, action: Action, path: str) -> bool:
        if self._within is not None and not self._within.allow(action, path):
            return False
        return any(scope.covers(action, path) for scope in self._scopes)

    def allow_on_server(self, action: Action) -> bool:
        """Whether they allow an action on the server as a whole."""
        if self._within is not None and not self._within.allow_on_server(action):
            return False
        return any(scope.action in (action, Action.ADMIN) and scope.paths.text == EVERYTHING for scope in self._scopes)

    def prefixes(self, action: Action, *, tables: bool) -> list[str]:
        """The prefixes of the paths that may be allowed."""
        return [
            f"{LOG_PREFIX if tables else ''}{fixed_part(scope.paths.path)}"
            for scope in self._scopes
            if (scope.paths.tables if tables else scope.paths.streams) and scope.action in (action, Action.ADMIN)
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
