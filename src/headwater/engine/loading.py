"""Loading: streams and documents from the store into the catalogue.

During a load, the stream may be loaded by another task, changed, evicted or deleted, so the result may be outdated. A
load is therefore repeated if anything left the catalogue in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from headwater.engine.catalogue import Catalogue, LoadedDocument, LoadedStream
from headwater.log.commands import Append, Command, Compact, Create, Expire, WriteDocuments
from headwater.store.contract import Store


class Loader:
    def __init__(self, store: Store, catalogue: Catalogue) -> None:
        self._store = store
        self._catalogue = catalogue
        self._loading: dict[str | int, asyncio.Future[None]] = {}

    async def load(self, path: str) -> None:
        """Load the stream at a path, if there is one."""
        while not self._catalogue.is_known(path):
            if not await self._load_stream(path):
                return

    async def load_id(self, stream_id: int) -> None:
        """Load a stream by its id, if it exists."""
        while self._catalogue.visible_by_id(stream_id) is None:
            if not await self._load_stream(stream_id):
                return

    async def load_for(self, command: Command) -> None:
        """Load all states that are needed to decide a command. When this returns, all of them are in memory."""
        catalogue = self._catalogue
        while True:
            removals = catalogue.removals
            await self._load_streams(command)
            if not isinstance(command, Expire):
                for write in command.documents:
                    await self.load_document(write.key)
            if removals == catalogue.removals:
                return

    def has_all(self, command: Command) -> bool:
        """Whether all states that are needed to decide a command are in memory, as far as there are any."""
        if not isinstance(command, Expire) and any(
            self._catalogue.loaded_document(write.key) is None for write in command.documents
        ):
            return False
        return next(self._needed(command), None) is None

    async def _load_streams(self, command: Command) -> None:
        absent: set[str | int] = set()
        removals = self._catalogue.removals
        while True:
            if removals != self._catalogue.removals:  # a stream that was loaded before may have been evicted
                absent.clear()
                removals = self._catalogue.removals
            key = next((key for key in self._needed(command) if key not in absent), None)
            if key is None:
                return
            if not await self._load_stream(key):
                absent.add(key)

    def _needed(self, command: Command) -> Iterator[str | int]:
        """The streams that are not loaded yet: the one at the path, the source of a fork, the snapshots of both, and
        the ancestors of the stream at the path, which its deletion may delete."""
        if isinstance(command, WriteDocuments):
            return
        catalogue = self._catalogue
        if not catalogue.is_known(command.path):
            yield command.path
        if isinstance(command, Create) and command.fork is not None and not catalogue.is_known(command.fork.source):
            yield command.fork.source
        if isinstance(command, Compact) and not catalogue.is_known(command.snapshot_path):
            yield command.snapshot_path
        stream = catalogue.newest(command.path)
        if not isinstance(command, Append):
            yield from self._snapshots(stream)
        if isinstance(command, Create) and command.fork is not None:
            yield from self._snapshots(catalogue.newest(command.fork.source))
        while stream is not None and stream.state.fork is not None:
            source_id = stream.state.fork.source_id
            stream = catalogue.by_id(source_id)
            if stream is None:
                yield source_id

    def _snapshots(self, stream: LoadedStream | None) -> Iterator[int]:
        """The snapshots of a stream that are not loaded yet. Removing the stream or a part of it, or a fork of it,
        changes them."""
        snapshots = () if stream is None else stream.state.snapshots
        yield from [one.id for one in snapshots if self._catalogue.by_id(one.id) is None]

    async def _load_stream(self, key: str | int) -> bool:
        """Load a stream. Concurrent calls share one load. Returns whether the stream may exist."""
        loading = self._loading.get(key)
        if loading is not None:
            await asyncio.shield(loading)
            return True
        loading = self._loading[key] = asyncio.get_running_loop().create_future()
        try:
            removals = self._catalogue.removals
            state = await (self._store.load(key) if isinstance(key, str) else self._store.load_id(key))
            if state is None:
                return self._catalogue.has(key)
            if removals == self._catalogue.removals or self._catalogue.has(state.id):
                return self._catalogue.add(state)
            return True  # load it again
        finally:
            del self._loading[key]
            loading.set_result(None)

    async def load_document(self, key: str) -> LoadedDocument:
        catalogue = self._catalogue
        while (loaded := catalogue.loaded_document(key)) is None:
            removals = catalogue.removals
            document = await self._store.document(key)
            if catalogue.loaded_document(key) is None and removals == catalogue.removals:
                catalogue.add_document(key, document)
        loaded.used = True
        return loaded

    async def roll_back(self, streams: Iterable[LoadedStream], documents: Iterable[LoadedDocument]) -> None:
        """Reset streams and documents to their durable states. No command may be decided in the meantime.

        The catalogue is changed in one step, after everything is loaded.
        """
        durable = {stream: await self._store.load_id(stream.id) for stream in streams}
        for stream in durable:
            self._catalogue.undo(stream)
        for stream, state in durable.items():
            if state is not None:
                self._catalogue.restore(stream, state)
        for document in documents:
            document.newest, document.pending = document.durable, 0
