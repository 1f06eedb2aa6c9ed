"""Views of streams that are kept in memory while they are requested: active views of tables, and states of streams.

All views of a kind share an amount of memory. When it is used up, the least recently used ones are evicted, and so are
those that were not used for a while. They are built again at the next request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Protocol, TypeVar

from headwater.errors import HeadwaterError, OverloadedError


class KeptView(Protocol):
    used_s: float
    counted_bytes: int  # its memory, when it was last counted

    @property
    def kept_as(self) -> Any:
        """The key under which it is found."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def is_busy(self) -> bool:
        """Whether it is being read, so that it cannot be evicted."""

    @property
    def is_over(self) -> bool:
        """Whether it must be built again."""

    @property
    def is_too_large(self) -> bool:
        """Whether it has failed for that reason. It is kept without its content, because otherwise every request would
        read the stream again."""

    def close(self, error: HeadwaterError) -> None:
        """Drop the content. Requests that wait for it, and later ones, get the error."""


V = TypeVar("V", bound=KeptView)


class KeptViews(Generic[V]):
    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._views: dict[Any, V] = {}
        self._counted_bytes = 0  # an upper bound: ended views count until the next recount
        self._timer: asyncio.TimerHandle | None = None
        self.evictions = 0  # for lack of memory

    def __len__(self) -> int:
        return len(self._views)

    def _keep(self, view: V) -> None:
        self._views[view.kept_as] = view
        self._look_later()

    def _fit(self, view: V, bytes_max: int, evict_to_bytes: int | None = None) -> int:
        """Count the memory of a view that has grown. If all together take too much, evict others until they take
        `evict_to_bytes`, which saves counting and sorting many views for each that comes. Returns what all take."""
        self._counted_bytes += view.size_bytes - view.counted_bytes
        view.counted_bytes = view.size_bytes
        if self._counted_bytes <= bytes_max:
            return self._counted_bytes
        size_bytes = self._count()
        if size_bytes <= bytes_max:
            return size_bytes
        goal_bytes = bytes_max if evict_to_bytes is None else evict_to_bytes
        for other in sorted(self._views.values(), key=self._value):
            if other is not view and not other.is_busy and size_bytes > goal_bytes:
                size_bytes -= other.size_bytes
                self.evictions += 1
                self._drop(other)
        return size_bytes

    def _value(self, view: V) -> tuple[bool, float]:
        """Views with the least value are evicted first."""
        return True, view.used_s

    def _count(self) -> int:
        """The memory of all views. It is computed only near the limit, because it is slow with many views."""
        for view in self._views.values():
            view.counted_bytes = view.size_bytes
        self._counted_bytes = sum([view.counted_bytes for view in self._views.values()])
        return self._counted_bytes

    def _drop(self, view: V) -> None:
        if self._views.get(view.kept_as) is view:
            del self._views[view.kept_as]
            self._counted_bytes -= view.counted_bytes
        view.close(OverloadedError("the view was evicted from memory; try again"))

    def drop_idle(self) -> None:
        """Evict the views that no request waits for. They can be built again."""
        for view in [view for view in self._views.values() if not view.is_busy and not view.is_too_large]:
            self._drop(view)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s / 4, self._look)

    def _look(self) -> None:
        """Evict the views that were not used for a while."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for view in list(self._views.values()):
            if view.is_over or (view.used_s < now_s - self._idle_s and not view.is_busy):
                self._drop(view)
        if self._views:
            self._look_later()
