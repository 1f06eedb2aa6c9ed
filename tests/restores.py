"""A server that is restored to an earlier state: with other data after that state, and at another address."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from headwater.limits import Limits
from headwater.store.memory import MemoryStore
from tests.servers import Server, serving


class Restorable:
    """Servers over copies of one store in memory. A restore begins a timeline, as `headwater restore` does."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._saved = self._store

    @contextlib.contextmanager
    def serve(self) -> Iterator[Server]:
        with serving(Limits(), store=_Kept(self._store)) as server:
            yield server

    def save(self) -> None:
        self._saved = copy.deepcopy(self._store)

    def restore(self) -> None:
        self._store = copy.deepcopy(self._saved)
        self._store.timeline = max(self._store.next_id, self._store.timeline) + 10**9  # after the ids of the lost data


class _Kept(MemoryStore):
    """A view of a store in memory that a stop of the server does not clear."""

    def __init__(self, store: MemoryStore) -> None:
        self.__dict__ = store.__dict__

    async def close(self) -> None:
        """The next server continues with it."""


class LastingStore(MemoryStore):
    """The store of several engines, one after the other."""

    async def close(self) -> None:
        """Keep everything."""
