"""Readings: the newest states for one decision over a shared store, with the versions of all that it read.

Whatever the decision is, a record, an error or an answer without events, the store compares these versions before it is
stored or said (`Commit.expects`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headwater.engine.catalogue import Catalogue, LoadedDocument, LoadedStream
from headwater.engine.committer import Answered, PendingRecord
from headwater.errors import HeadwaterError
from headwater.log.commands import Command
from headwater.log.events import Created, Deleted, Record
from headwater.log.state import Document, StreamState
from headwater.store.contract import DocumentKey, Key, version_of


class Restoration:
    """States that are being restored, and the commands that wait for them."""

    __slots__ = ("changed", "error", "is_locking", "is_void", "keys", "waiting")

    def __init__(
        self,
        entries: Iterable[PendingRecord],
        again: Iterable[tuple[Command, Answered]],
        keys: Iterable[Key],
        *,
        is_locking: bool,
    ) -> None:
        self.is_locking = is_locking  # the states are locked, and no batch is committed before
        entries = list(entries)
        self.changed = dict.fromkeys(one for entry in entries for one in entry.changed)
        self.keys = dict.fromkeys([*(key for entry in entries for key in entry.expects or ()), *keys])
        self.waiting = list(again)  # in the order in which they are decided
        self.is_void = False  # the states are of a database that is not there any more
        self.error: HeadwaterError | None = None  # why the states cannot be restored at present

    def add(self, command: Command, answered: Answered) -> None:
        """Decide a command when the states are restored, or refuse it if they cannot be at present."""
        if self.error is not None:
            answered(self.error)
        else:
            self.waiting.append((command, answered))

    def refuse(self, error: HeadwaterError) -> None:
        """Refuse all commands that wait, and those that come before the states are restored."""
        self.error = error
        waiting, self.waiting = self.waiting, []
        for _, answered in waiting:
            answered(error)


class HeldError(Exception):
    """A decision needs a state that is being restored."""

    def __init__(self, restoration: Restoration) -> None:
        super().__init__("a state is being restored")
        self.restoration = restoration


class UnknownStateError(Exception):
    """A state refers to a stream that is not there, so it is outdated."""


class Readings:
    """The `NewestStates` of `decide`."""

    __slots__ = ("_catalogue", "_held", "expects")

    def __init__(self, catalogue: Catalogue, held: Mapping[LoadedStream | LoadedDocument, Restoration]) -> None:
        self._catalogue = catalogue
        self._held = held
        self.expects: dict[Key, int] = {}

    @property
    def timeline(self) -> int:
        return self._catalogue.timeline

    def at(self, path: str) -> StreamState | None:
        stream = self._catalogue.newest(path)
        if stream is None:
            deleted = self._catalogue.visible(path)
            if deleted is not None and deleted in self._held:  # its deletion is being taken back
                raise HeldError(self._held[deleted])
            self.expects.setdefault(path, 0)
            return None
        return self._state(stream)

    def get(self, stream_id: int) -> StreamState:
        stream = self._catalogue.by_id(stream_id)
        if stream is None:
            raise UnknownStateError(f"stream {stream_id} is not there")
        return self._state(stream)

    def document(self, key: str) -> Document | None:
        loaded = self._catalogue.loaded_document(key)
        if loaded is None:
            raise UnknownStateError(f"document {key!r} is not loaded")
        if loaded in self._held:
            raise HeldError(self._held[loaded])
        self.expects.setdefault(DocumentKey(key), version_of(loaded.newest))
        return loaded.newest

    def note(self, record: Record) -> None:
        """Note what a record names beside what was read. The record is not applied yet."""
        for event in record:
            if isinstance(event, Created):
                self.expects[event.id] = 0
            elif isinstance(event, Deleted):
                self.expects.setdefault(self._catalogue.get(event.id).path, event.id)

    def _state(self, stream: LoadedStream) -> StreamState:
        if stream in self._held:
            raise HeldError(self._held[stream])
        state = stream.state
        self.expects.setdefault(state.id, state.version)
        return state

    @property
    def newest_id(self) -> int:
        """The largest id of the streams and timelines that were read. The id of a new stream is larger."""
        states = [self._catalogue.by_id(key) for key in self.expects if isinstance(key, int)]
        ids = [max(one.id, one.state.timeline) for one in states if one is not None]
        return max(ids, default=0)
