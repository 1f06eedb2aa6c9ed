"""The access rule of a route: the column `action` of the route table."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from headwater.server.auth.scopes import Action
from headwater.server.http import Request


class Subject(enum.Enum):
    """The kind of object that an action concerns."""

    PATH = enum.auto()  # the stream or table of the URL path
    NAMED = enum.auto()  # a stream or table that a parameter names
    LIST = enum.auto()  # a list, which the handler filters by scope
    MANY = enum.auto()  # several streams, which the handler checks, also while the response is open
    SERVER = enum.auto()  # the server as a whole
    METRICS = enum.auto()  # the same, unless open_metrics is set


class Rule(NamedTuple):
    """`action` None: the route is public, or its handler checks a token of another kind. `named` returns the path in
    the log that a request names, and `acts` the action on it, if the request names that too."""

    action: Action | None
    subject: Subject = Subject.PATH
    named: Callable[[Request], str] | None = None
    acts: Callable[[Request], Action] | None = None


OPEN = Rule(None)
WAKE = Rule(None, Subject.SERVER)  # the handler checks the token of a wake
READ = Rule(Action.READ)
APPEND = Rule(Action.APPEND)
CREATE = Rule(Action.CREATE)
DELETE = Rule(Action.DELETE)
SUBSCRIBE = Rule(Action.SUBSCRIBE)
RETAIN = Rule(Action.RETAIN)
CLAIM = Rule(Action.CLAIM)
NOTIFY = Rule(Action.NOTIFY)
ADMIN = Rule(Action.ADMIN)
LISTED = Rule(Action.READ, Subject.LIST)
COMBINED = Rule(Action.READ, Subject.MANY)
SERVER = Rule(Action.ADMIN, Subject.SERVER)
SETTINGS = Rule(Action.SETTINGS, Subject.SERVER)
METRICS = Rule(Action.ADMIN, Subject.METRICS)


def administer_named(named: Callable[[Request], str]) -> Rule:
    """The rule to administer a stream or table that a parameter names."""
    return Rule(Action.ADMIN, Subject.NAMED, named)


def read_named(named: Callable[[Request], str], acts: Callable[[Request], Action] | None = None) -> Rule:
    """The rule to read a stream or table that a parameter names, or for the action on it that a parameter names."""
    return Rule(Action.READ, Subject.NAMED, named, acts)


def retain_named(named: Callable[[Request], str]) -> Rule:
    """The rule to trim or compact a stream that a parameter names."""
    return Rule(Action.RETAIN, Subject.NAMED, named)
