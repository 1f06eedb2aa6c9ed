"""Queries whose results are kept current incrementally."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Query(Generic[T]):
    """The current result of a query. Make it with `query` of a collection.

    It is kept current as long as it is referenced.

    ```python
    users = Collection("user", dict, indexes=("team",))
    with Client("http://127.0.0.1:4437") as client:
        stream = client.stream("players")
        stream.create(messages=[users.insert({"id": "1", "team": "blue"}), users.insert({"id": "2", "team": "red"})])
        with StreamDB(stream, define_state({"users": users})) as db:
            db.preload()
            blue = db.users.query(team="blue", order_by="id")
            assert blue.keys() == ["1"]
    ```
    """

    def __init__(
        self,
        passes: Callable[[T], bool],
        order: Callable[[T], Any] | None,
        lock: contextlib.AbstractContextManager[Any],
        *,
        descending: bool,
        limit: int | None,
    ) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"limit must not be negative, got {limit}")
        self._passes = passes
        self._order = order
        self._lock = lock
        self._descending = descending
        self._limit = limit
        self._found: dict[str, T] = {}
        self._sorted: list[tuple[str, T]] | None = None
        self._failure: Exception | None = None

    def items(self) -> list[tuple[str, T]]:
        """Keys and values, ordered by `order_by` and key, or without it in the order in which they began to match."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._sorted is None:
                self._sorted = self._in_order()
            return list(self._sorted)

    def values(self) -> list[T]:
        """The values, in order."""
        return [value for _, value in self.items()]

    def keys(self) -> list[str]:
        """The keys, in the order of their values."""
        return [key for key, _ in self.items()]

    def first(self) -> T | None:
        """The first value, or None."""
        return next(iter(self.values()), None)

    def count(self) -> int:
        """The number of matching rows, without the limit."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return len(self._found)

    def __iter__(self) -> Iterator[T]:
        return iter(self.values())

    def __len__(self) -> int:
        return len(self.items())

    def _in_order(self) -> list[tuple[str, T]]:
        pairs = list(self._found.items())
        if self._order is not None:
            order = self._order
            pairs.sort(key=lambda pair: pair[0])
            pairs.sort(key=lambda pair: order(pair[1]), reverse=self._descending)
        elif self._descending:
            pairs.reverse()
        return pairs if self._limit is None else pairs[: self._limit]

    # Called by the table

    def fill(self, rows: Mapping[str, T]) -> None:
        """Evaluate all rows. Raises what the filter raises."""
        self._failure = None
        self._found = {key: value for key, value in rows.items() if self._passes(value)}
        self._sorted = None

    def refill(self, rows: Mapping[str, T]) -> None:
        """The same, but an exception of the filter is raised at the next use of the query."""
        try:
            self.fill(rows)
        except Exception as error:  # noqa: BLE001  # the filter may raise anything
            self._failure = error

    def moved(self, key: str, value: T | None, *, gone: bool) -> None:
        """A row has changed or was deleted. An exception of the filter is raised at the next use of the query."""
        try:
            passes = not gone and self._passes(value)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # the error concerns the query, not the writer of the row
            self._failure = error
            return
        if passes:
            self._found[key] = value  # type: ignore[assignment]
        elif key in self._found:
            del self._found[key]
        else:
            return
        self._sorted = None
