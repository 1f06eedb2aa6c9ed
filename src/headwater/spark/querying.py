"""What the readers of streams and of tables share: parts, and what a streaming query keeps open in the driver."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from headwater.client import Client


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[Any]) -> None:
        super().__init__(None)
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"Part({self.ranges!r})"


class Driver(Protocol):
    """What the driver keeps open between triggers."""

    client: Client

    def look(self) -> Any:
        """What there is now."""


D = TypeVar("D", bound=Driver)


class QueryReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[D]):
    """Lives in the driver for as long as the query runs; tasks get a copy that only reads."""

    _driver: D | None = None
    _final: Any = None  # what there was when an availableNow run began

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
        """What was read stays on the server: there is nothing to let go of."""

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.client.close()
