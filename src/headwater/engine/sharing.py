"""Sharing: what the writer needs if several servers share the store.

What was decided on outdated states is taken back, and decided again on the present ones. A batch can be outdated in
part, because another server was faster. The records that are outdated were applied to the newest states already, and so
were later ones, which wait for the next batch. All records that share a state with an outdated one are withdrawn. Their
states stay as they are, but nothing is decided on them (`HeldError`), until the store has returned the present ones,
with locks, so that the same server does not lose again. Then the commands are decided again in their order, before
those that came meanwhile, and committed in a batch of their own. No batch is committed while the locks are requested,
so a server never waits for others while it has locks.

If the database is not available, or has no room, the writers get that error at once, and the states are restored as
soon as it is available again. Until then commands that need them get the error too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedDocument, LoadedStream
from headwater.engine.committer import Answered, Committer, PendingRecord
from headwater.engine.freshness import Freshness
from headwater.engine.readings import Readings, Restoration
from headwater.errors import HeadwaterError, StoppingError, UnavailableError
from headwater.log.commands import Command
from headwater.log.state import Document, StreamState
from headwater.store.contract import DocumentKey, Key, SharedStore
from headwater.tasks import Tasks

log = logging.getLogger("headwater.engine")


class Sharing:
    """The states of a shared store in memory: which are held, and how they become current."""

    def __init__(
        self,
        store: SharedStore,
        catalogue: Catalogue,
        now_ms: Callable[[], int],
        decide: Callable[[Command, Answered], None],
        renew: Callable[[LoadedStream, int], None],
        refreshed: Callable[[LoadedStream], None],
        failed: Callable[[BaseException], None],
        committer: Committer,
    ) -> None:
        """`decide` decides a command again, `refreshed` is told of streams that others have changed."""
        self._store = store
        self._catalogue = catalogue
        self._decide = decide
        self._renew = renew
        self._now_ms = now_ms
        self._failed = failed
        self._committer = committer
        self._held: dict[LoadedStream | LoadedDocument, Restoration] = {}
        self._restoring: dict[Restoration, None] = {}
        self._settling: list[asyncio.Future[None]] = []
        self._tasks = Tasks()
        self._stopping = False
        self.freshness = Freshness(store, catalogue, self.settled, refreshed, now_ms)

    def readings(self) -> Readings:
        """The newest states, for one decision."""
        return Readings(self._catalogue, self._held)

    def is_held(self, stream: LoadedStream) -> bool:
        return stream in self._held

    async def reserve_id(self) -> int:
        return await self._store.reserve_id()

    # Waiting for the end of a batch

    async def settled(self) -> None:
        """Wait until a batch was published, or what it changed was restored."""
        if self._stopping:
            raise StoppingError("the server stops", retry_after_s=bounds.RETRY_AFTER_S)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.append(future)
        await future

    def settle(self) -> None:
        settling, self._settling = self._settling, []
        for future in settling:
            if not future.done():
                future.set_result(None)

    # Restoring

    def restore(
        self,
        entries: Iterable[PendingRecord],
        again: Iterable[tuple[Command, Answered]],
        renewed: Iterable[LoadedStream | LoadedDocument],
        keys: Iterable[Key] = (),
        *,
        is_locking: bool = False,
    ) -> None:
        """Restore the states that records have changed, and those of more keys, then decide commands, and renew
        streams."""
        restoration = Restoration(entries, again, keys, is_locking=is_locking)
        if is_locking:
            self._committer.pause()
        self._held |= dict.fromkeys(restoration.changed, restoration)
        self._restoring[restoration] = None
        self._tasks.start(self._restore(restoration, list(renewed)))

    def give_up(self, error: HeadwaterError) -> None:
        """Restore nothing any more that is being restored, and refuse what waits for it."""
        restorations, self._restoring = self._restoring, {}
        self._held.clear()
        for restoration in restorations:
            restoration.is_void = True
            restoration.refuse(error)
            if restoration.is_locking:
                restoration.is_locking = False
                self._committer.commit_alone(_nothing)
        self.settle()

    async def stop(self) -> None:
        """Commands that wait for a database that is not available are refused, and no more is restored."""
        self._stopping = True
        self.settle()
        await self._tasks.ended()

    async def _restore(self, restoration: Restoration, renewed: list[LoadedStream | LoadedDocument]) -> None:
        try:
            while (states := await self._present(restoration)) is None:
                if self._stopping or restoration.is_void:
                    return
                await asyncio.sleep(bounds.UNAVAILABLE_RETRY_S)
            if restoration.is_void:
                return
            self._apply(restoration, states)
        except Exception as error:  # noqa: BLE001 - the durable states are unknown
            if restoration.is_locking:
                self._committer.commit_alone(_nothing)
            restoration.refuse(UnavailableError(str(error), retry_after_s=bounds.RETRY_AFTER_S))
            self._failed(error)
            return
        finally:
            self._restoring.pop(restoration, None)
        self.settle()

        def decide() -> None:
            for command, answered in restoration.waiting:
                self._decide(command, answered)
            for stream in renewed:
                if isinstance(stream, LoadedStream):
                    self._renew(stream, self._now_ms())

        if restoration.is_locking:
            self._committer.commit_alone(decide)
        else:
            decide()

    async def _present(self, restoration: Restoration) -> dict[Key, StreamState | Document | None] | None:
        """The present states of the keys, with locks if something is to be decided on them; None if the database is not
        available."""
        try:
            if restoration.is_locking:
                return await self._store.locked(restoration.keys)
            return {key: await self._load(key) for key in restoration.keys}
        except UnavailableError as error:
            if restoration.is_locking:
                restoration.is_locking = False
                self._committer.commit_alone(_nothing)
            restoration.refuse(error)
            return None

    async def _load(self, key: Key) -> StreamState | Document | None:
        if isinstance(key, DocumentKey):
            return await self._store.document(key.key)
        return await (self._store.load_id(key) if isinstance(key, int) else self._store.load(key))

    def _apply(self, restoration: Restoration, states: dict[Key, StreamState | Document | None]) -> None:
        streams = [one for one in restoration.changed if isinstance(one, LoadedStream)]
        for stream in streams:
            self._catalogue.undo(stream)
        seen = {stream: stream.seen for stream in streams}
        present = {stream: states.pop(stream.id, None) for stream in streams}
        for stream, state in present.items():
            if isinstance(state, StreamState):
                self._catalogue.reinstate(stream, state)
        for document in restoration.changed:
            if isinstance(document, LoadedDocument):
                document.pending = 0
        for one in restoration.changed:
            del self._held[one]
        self._catalogue.count = self._store.streams
        self.freshness.take_all(states)
        for stream, state in present.items():
            if state is None:
                self.freshness.drop(stream)
            elif stream.seen != seen[stream]:
                self.freshness.tell(stream)


def _nothing() -> None:
    """There is nothing to decide again."""
