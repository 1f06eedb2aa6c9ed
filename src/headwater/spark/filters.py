"""Conditions that Spark hands to a batch: streams that are not asked for, and types that are not decoded.

Spark 4.3 refuses a reader that overrides `pushFilters` in a session where push-down is off, which is the default. It
recognises an override by the function behind the method. `OptionalMethod` is called where push-down is on, and shows
Spark the function that it expects where it is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In

from headwater.errors import InvalidPathError
from headwater.protocol.streams.paths import parse_path, quote_path

PushFilters = Callable[[list[Filter]], Iterable[Filter]]


class OptionalMethod:
    """A method `pushFilters` for sessions with push-down and without it."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, push: PushFilters) -> None:
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


class Wanted(msgspec.Struct, frozen=True):
    """The streams and types that a batch is about; None: all."""

    streams: frozenset[str] | None = None
    types: frozenset[str] | None = None

    def narrowed(self, by: Filter, *, state: bool) -> Wanted | None:
        """With one more condition; None if it is not one on streams or types, and so Spark's to apply."""
        if not isinstance(by, (EqualTo, In)):
            return None
        values = frozenset(_texts(by.value if isinstance(by, In) else (by.value,)))
        if by.attribute == ("stream",):
            return msgspec.structs.replace(self, streams=values if self.streams is None else self.streams & values)
        if by.attribute == ("type",) and state:
            return msgspec.structs.replace(self, types=values if self.types is None else self.types & values)
        return None


def _texts(values: Iterable[Any]) -> Iterable[str]:
    """Null equals nothing."""
    return (value for value in values if isinstance(value, str))


def is_path(text: str) -> bool:
    """Whether a stream can be called so; a condition can name anything."""
    try:
        return parse_path(quote_path(text)) == text
    except InvalidPathError:
        return False
