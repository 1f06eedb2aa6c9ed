"""MaterializedState: the values by type and key that result from a sequence of change events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import UNSET

from headwater.errors import InvalidEventError
from headwater.protocol.state.events import ChangeEvent


class MaterializedState:
    """A state in memory. Insert, update and upsert set a value, delete removes it; later events win.

    It does not handle controls: the reader of the stream calls `clear` after a `reset`.

    ```python
    state = MaterializedState()
    state.apply(Collection("user", dict).insert({"id": "1", "name": "Ann"}))
    assert state.get("user", "1") == {"id": "1", "name": "Ann"}
    ```
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Any]] = {}

    def apply(self, event: ChangeEvent[Any]) -> None:
        """Apply one event."""
        self.apply_batch((event,))

    def apply_batch(self, events: Iterable[ChangeEvent[Any]]) -> None:
        """Apply events one by one. If one cannot be applied, an error is raised; those before it are applied."""
        tables = self._tables
        for event in events:
            if event.headers.operation == "delete":
                if event.type in tables:
                    tables[event.type].pop(event.key, None)
                continue
            value = event.value
            if value is UNSET:
                raise InvalidEventError(f"{event.headers.operation} of {event.type} {event.key!r} without a value")
            try:
                tables[event.type][event.key] = value
            except KeyError:
                tables[event.type] = {event.key: value}

    def get(self, type: str, key: str, default: Any = None) -> Any:  # noqa: A002
        """The value of a key, or `default`."""
        table = self._tables.get(type)
        return default if table is None else table.get(key, default)

    def get_type(self, type: str) -> Mapping[str, Any]:  # noqa: A002
        """All values of a type, as a read-only mapping that stays current."""
        return MappingProxyType(self._tables.setdefault(type, {}))

    def clear(self) -> None:
        """Remove all values, as a `reset` requires."""
        for table in self._tables.values():
            table.clear()

    @property
    def types(self) -> list[str]:
        """The types that have a value."""
        return [name for name, table in self._tables.items() if table]

    @property
    def type_count(self) -> int:
        """How many types have a value."""
        return len(self.types)
