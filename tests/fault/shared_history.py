"""What a simulated database has committed, in order: the truth with which answers of servers are compared."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence

from headwater.log.events import (
    DOCUMENT_EVENTS,
    Appended,
    Created,
    Deleted,
    Event,
    SoftDeleted,
)
from headwater.log.offsets import Offset
from headwater.log.state import Document, StreamState
from headwater.store.contract import Commit
from headwater.store.memory import MemoryStore
from tests.fault.oracle import BrokenPromiseError

NUMBER = re.compile(rb"<[^:<]*:(\d+)>")
SKEW_MS = 300  # between two servers, at most
SAFE_MS = 5_000  # a renewal is stored within this time


class StoredMessage:
    """Where a message was stored."""

    __slots__ = ("commit", "end", "id")

    def __init__(self, commit: int, stream_id: int, end: int) -> None:
        self.commit = commit
        self.id = stream_id
        self.end = end


class StateHistory:
    """All states of all paths and documents, by the number of the commit after which they held."""

    def __init__(self, data: MemoryStore) -> None:
        self._data = data
        self.commit = 0
        self.paths: dict[str, list[tuple[int, StreamState | None]]] = {}
        self.documents: dict[str, list[tuple[int, Document | None]]] = {}
        self.contents: dict[int, bytes] = {}  # the own bytes of each stream
        self.messages: dict[int, StoredMessage] = {}
        self.created: dict[int, int] = {}  # stream id → commit
        self.newest: dict[str, int] = {}  # path → the last stream that was created there
        self.closed: dict[int, int] = {}  # stream id → commit that closed it
        self.deleted: dict[int, int] = {}  # stream id → commit that deleted it, perhaps while forks read it
        self.deleting: dict[str, int] = {}  # how many clients delete the stream at a path
        self.used_ms: dict[int, int] = {}  # stream id → time of the last use that must be known
        self.digest = hashlib.sha256()

    def begin(self, stored: Sequence[Commit]) -> None:
        """The database commits records together."""
        self.commit += 1
        self.digest.update(f"{asyncio.get_running_loop().time():.6f} {[one.record for one in stored]}".encode())

    def note(self, commit: Commit, paths: dict[int, str]) -> None:
        """Note a record, whose states have changed already. Answers may be true between two records of a commit."""
        for event in commit.record:
            self._note_event(event, paths)
        for path in paths.values():
            state = self._data._states.get(self._data._ids.get(path, 0))
            self.paths.setdefault(path, []).append((self.commit, None if state is None else state.copy()))
        for event in commit.record:
            if isinstance(event, DOCUMENT_EVENTS):
                document = self._data._documents.get(event.key)
                self.documents.setdefault(event.key, []).append((self.commit, document))

    def _note_event(self, event: Event, paths: dict[int, str]) -> None:
        if isinstance(event, Created):
            if self.newest.get(event.path, 0) > event.id:
                raise BrokenPromiseError(f"{event.path} had a stream with a larger id than {event.id} before")
            self.newest[event.path] = event.id
            self.created[event.id] = self.commit
            self.contents[event.id] = b""
            start = event.lineage[-1].end if event.lineage else 0
            self._note_data(event.id, start, event.data, closes=event.closed)
        elif isinstance(event, Appended):
            self._note_data(event.id, event.position, event.data, closes=event.close)
        elif isinstance(event, Deleted | SoftDeleted) and event.id not in self.deleted:
            self.deleted[event.id] = self.commit
            self._check_expiry(event.id, paths[event.id])

    def _note_data(self, stream_id: int, start: int, data: bytes, *, closes: bool) -> None:
        self.contents[stream_id] += data
        for match in NUMBER.finditer(data):
            number = int(match[1])
            before = self.messages.get(number)
            if before is not None and before.id == stream_id:  # a retry may meet another stream at the path
                raise BrokenPromiseError(f"message {number} is stored twice")
            self.messages[number] = StoredMessage(self.commit, stream_id, start + len(data))
        if closes:
            self.closed[stream_id] = self.commit

    def _check_expiry(self, stream_id: int, path: str) -> None:
        """A stream that nobody deletes has expired. It must not have been used for its time-to-live."""
        before = next((state for _, state in reversed(self.paths.get(path, ()))), None)
        if self.deleting.get(path) or before is None or before.id != stream_id:
            return
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        if before.ttl_s is None and before.expires_ms is None:
            raise BrokenPromiseError(f"{path} was deleted, but nobody has asked for it")
        due_ms = before.expires_ms
        if before.ttl_s is not None:
            due_ms = self.used_ms.get(stream_id, before.created_ms) + before.ttl_s * 1000
        if due_ms is not None and now_ms < due_ms - 2 * SKEW_MS:
            raise BrokenPromiseError(f"{path} was deleted {due_ms - now_ms} ms before it expires")

    def use(self, stream_id: int, path: str, asked_ms: int) -> None:
        """A stream was read, which must renew it, unless it was about to expire."""
        state = self.window(path, self.commit, self.commit)[0]
        if state is not None and state.id == stream_id and (state.deadline_ms or 0) > asked_ms + SAFE_MS:
            self.used_ms[stream_id] = max(self.used_ms.get(stream_id, 0), asked_ms)

    # Questions

    def window(self, path: str, since: int, until: int) -> list[StreamState | None]:
        """The states of a path from a commit to another one."""
        before: StreamState | None = None
        states: list[StreamState | None] = []
        for commit, state in self.paths.get(path, ()):
            if commit <= since:
                before = state
            elif commit <= until:
                states.append(state)
        return [before, *states]

    def documents_in(self, key: str, since: int, until: int) -> list[Document | None]:
        before: Document | None = None
        documents: list[Document | None] = []
        for commit, document in self.documents.get(key, ()):
            if commit <= since:
                before = document
            elif commit <= until:
                documents.append(document)
        return [before, *documents]

    def content(self, state: StreamState) -> bytes:
        """All bytes of a stream up to its tail, with those that it has inherited."""
        whole = b""
        for span in state.lineage:
            own = self.contents[span.id]
            whole += own[span.start - self._start(span.id) :][: span.end - span.start]
        return (whole + self.contents[state.id])[: state.tail]

    def _start(self, stream_id: int) -> int:
        for states in self.paths.values():
            for _, state in states:
                if state is not None and state.id == stream_id:
                    return state.start
        return 0

    def tail(self, state: StreamState) -> Offset:
        return state.offset(state.tail)
