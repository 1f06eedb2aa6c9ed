"""Common parts of the readers of streams and tables: input partitions, and the state of a streaming query."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from headwater.client import Client


class TaskInput(InputPartition):
    """The input of one task."""

    def __init__(self, ranges: Sequence[Any]) -> None:
        super().__init__(None)
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"Part({self.ranges!r})"


class Driver(Protocol):
    """The objects that the driver keeps open between triggers."""

    client: Client

    def look(self) -> Any:
        """The current end."""


D = TypeVar("D", bound=Driver)


class QueryReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[D]):
    """The reader of a query, in the driver for as long as the query runs. Tasks get a copy that only reads."""

    _driver: D | None = None
    _final: Any = None  # the end at the start of an availableNow run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None, "_final": None}

    @abc.abstractmethod
    def _open(self) -> D: ...

    @property
    def _here(self) -> D:
        if self._driver is None:
            self._driver = self._open()
        return self._driver

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._final = self._here.look()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: data that was read stays on the server."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.client.close()
