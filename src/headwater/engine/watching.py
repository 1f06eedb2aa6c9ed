"""Watching: what other servers change in a shared store.

The store announces changes, but an announcement may be lost or late. So each second the server asks for the versions of
the streams that have live readers, and, if something in it watches paths, for all streams that others have changed.
Either way a stream is only looked at again: what is new is read from the store, in order and once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.freshness import Freshness
from headwater.engine.live import LiveReaders
from headwater.engine.messages import News
from headwater.engine.writer import Writer
from headwater.errors import UnavailableError
from headwater.log.state import StreamState
from headwater.store.contract import Key, Moved, SharedStore
from headwater.tasks import Tasks

log = logging.getLogger("headwater.engine")


class Watcher:
    """Tells live readers, the `PathWatch` and the compactor of what other servers change."""

    def __init__(
        self,
        store: SharedStore,
        catalogue: Catalogue,
        freshness: Freshness,
        live: LiveReaders,
        writer: Writer,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._freshness = freshness
        self._live = live
        self._writer = writer
        self._now_ms = now_ms
        self._tasks = Tasks()
        self._polling: asyncio.Task[None] | None = None
        self._cursor = ""
        self._looked_at: set[int] = set()  # ids of streams that are being looked at again
        self._compactable: dict[int, None] = {}  # ids of streams that may be compacted, and are not loaded yet

    async def start(self) -> None:
        await self._store.watch(self.moved)
        _, self._cursor = await self._store.moved_since("")
        self._polling = asyncio.create_task(self._poll_always())

    async def stop(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._tasks.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    # What is told

    def moved(self, streams: Sequence[Moved]) -> None:
        """Other servers have changed streams."""
        for moved in streams:
            stream = self._catalogue.visible_by_id(moved.id)
            if stream is not None and stream.live is not None:
                self.look(stream)
            if self._writer.watch.version:
                for news in (News.CREATED, News.APPENDED) if moved.version else (News.DELETED,):
                    self._writer.tell_watch(moved.path, news)
            if self._writer.compactable is not None and moved.version:
                self._compactable[moved.id] = None

    def look(self, stream: LoadedStream) -> None:
        """Compare a stream with the store in the background."""
        if stream.id not in self._looked_at:
            self._looked_at.add(stream.id)
            self._tasks.start(self._look(stream))

    async def _look(self, stream: LoadedStream) -> None:
        # What is announced from now on is newer than this query.
        await asyncio.sleep(0)
        self._looked_at.discard(stream.id)
        try:
            await self._freshness.recheck(stream)
        except UnavailableError:
            """The next poll looks at it again."""
        except Exception:
            log.exception("failed to look at a stream again")

    # What is asked

    async def _poll_always(self) -> None:
        is_available = True
        while True:
            await asyncio.sleep(bounds.WATCH_POLL_MS / 1000)
            try:
                await self._poll()
                is_available = True
            except UnavailableError as error:
                if is_available:
                    log.warning("the database is not available, changes by other servers are not seen: %s", error)
                is_available = False
            except Exception:
                log.exception("failed to look for changes by other servers, retrying")

    async def _poll(self) -> None:
        await self._poll_live()
        if not self._writer.watch.version and self._writer.compactable is None:
            _, self._cursor = await self._store.moved_since("")
            return
        while True:
            moved, cursor = await self._store.moved_since(self._cursor)
            self.moved(moved)
            self._cursor = cursor
            if not moved:
                break
        await self._load_compactable()

    async def _poll_live(self) -> None:
        """Look again at streams with live readers that others have changed."""
        watched = self._live.watched()
        for first in range(0, len(watched), bounds.YIELD_EVERY_STREAMS):
            known: dict[Key, LoadedStream] = {
                one.id: one for one in watched[first : first + bounds.YIELD_EVERY_STREAMS]
            }
            for stream in known.values():
                self._writer.renew_if_watched(stream, self._now_ms())
            for key in await self._store.changed({key: stream.durable_version for key, stream in known.items()}):
                self.look(known[key])

    async def _load_compactable(self) -> None:
        """Look at some of the streams that others have changed, to learn which of them are to be compacted."""
        for stream_id in list(self._compactable)[: bounds.WATCH_LOADS_MAX]:
            del self._compactable[stream_id]
            stream = self._catalogue.visible_by_id(stream_id)
            if stream is not None:
                self.look(stream)
            elif isinstance(state := await self._store.load_id(stream_id), StreamState):
                self._writer.note_compactable(state)
