"""A batch of records as the arguments of the function `store_batch` (`schema.sql`). `appends.py` makes those of
`store_appends`.

Records that share a key (a stream, a path or a document) are a group: they are stored together or not at all. Only the
first record of a batch that expects a key is compared with the database, because the others build on it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, KeysView, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import xxhash

from headwater import limits
from headwater.log.events import (
    Appended,
    Compacted,
    Created,
    Deleted,
    DocumentDeleted,
    DocumentWritten,
    Event,
    ForkReleased,
    SoftDeleted,
    Trimmed,
)
from headwater.log.producers import ProducerTuple, hash_of, key_of
from headwater.log.state import Document, StreamState
from headwater.store.contract import Commit, DocumentKey, Expects, Key, Moved, version_of
from headwater.store.postgres.arrays import EncodedArray, IntArray, bigints, byteas, ints
from headwater.store.postgres.rows import ByteRow, cut, encode_state

_FREEING = (Trimmed, Compacted, ForkReleased, SoftDeleted)


def encode_name(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def decode_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogatepass")


def slot_of(key: str | DocumentKey) -> int:
    """The lock of a path or a document. A lock for each name would need too many of PostgreSQL's."""
    name = key if isinstance(key, str) else "\0" + key.key
    return xxhash.xxh3_64_intdigest(encode_name(name)) % limits.POSTGRES_NAME_LOCKS


class NewBytes:
    """What a batch appends to one stream."""

    __slots__ = ("ends", "parts", "size", "start", "times")

    def __init__(self, start: int) -> None:
        self.start = start
        self.size = 0
        self.ends: list[int] = []
        self.times: list[int] = []
        self.parts: list[bytes] = []

    def add(self, data: bytes, at_ms: int) -> None:
        self.size += len(data)
        self.ends.append(self.size)
        self.times.append(at_ms)
        self.parts.append(data)

    @property
    def data(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def rows(self, stream_id: int) -> list[ByteRow]:
        return list(cut(stream_id, self.start, self.ends, self.times, self.data))


LastRequests: TypeAlias = dict[tuple[int, str], tuple[ProducerTuple, int, int]]
"""The last request of each producer to each stream, with its time and its number among the events of the stream."""


class StoringFunction(enum.Enum):
    """The functions of `schema.sql` that store a batch. The first four arguments are the same."""

    BATCH = "store_batch"
    APPENDS = "store_appends"


class EncodedBatch(NamedTuple):
    """A batch that can be sent, more than once if need be."""

    function: StoringFunction
    arguments: tuple[EncodedArray, ...]  # after the first four
    record_count: int
    group_of: Callable[[int], int]  # the group of a record
    keys: KeysView[Key]  # all that it expects or changes
    slots: frozenset[int]
    moved: list[Moved]  # what other servers are told
    added: list[tuple[int, int]]  # streams and how many bytes they got
    created: int
    deleted: int

    def outdated(self, groups: Sequence[int]) -> list[int]:
        """The records of some groups."""
        some = set(groups)
        return [index for index in range(self.record_count) if self.group_of(index) in some]


class RecordGroups:
    """Which records share a key, directly or through others. The group of a record is the first of them."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))
        self.owners: dict[Key, int] = {}  # key → the first record with it

    def of(self, record: int) -> int:
        parents = self._parents
        while parents[record] != record:
            parents[record] = parents[parents[record]]
            record = parents[record]
        return record

    def note_only(self, key: Key, record: int) -> bool:
        """The same as `note` for a record that has no other key."""
        owner = self.owners.setdefault(key, record)
        self._parents[record] = owner
        return owner == record

    def note(self, key: Key, record: int) -> bool:
        """Note a key of a record. Returns whether it is the first one of the batch that has it."""
        owner = self.owners.setdefault(key, record)
        if owner == record:
            return True
        one, other = self.of(owner), self.of(record)
        if one != other:
            self._parents[max(one, other)] = min(one, other)
        return False


class _Expectations:
    """What is compared with the database: keys, and the version of each."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}
        self.paths: dict[str, int] = {}
        self.documents: dict[DocumentKey, int] = {}

    def add(self, key: Key, version: int) -> None:
        if isinstance(key, int):
            self.streams[key] = version
        elif isinstance(key, str):
            self.paths[key] = version
        else:
            self.documents[key] = version


class _Changes:
    """What a batch does to streams and documents, each in its last state."""

    def __init__(self) -> None:
        self.streams: dict[int, StreamState] = {}
        self.events: dict[int, int] = {}  # how many each stream has
        self.created: set[int] = set()
        self.deleted: set[int] = set()
        self.bytes: dict[int, NewBytes] = {}
        self.producers: LastRequests = {}
        self.documents: dict[str, Document | None] = {}
        self.freeing: set[int] = set()

    def apply(self, event: Event, after: StreamState | Document | None) -> None:
        if isinstance(event, DocumentWritten | DocumentDeleted):
            self.documents[event.key] = after if isinstance(after, Document) else None
            return
        if not isinstance(after, StreamState):
            raise TypeError(f"{type(event).__name__} of stream {event.id} comes without its state")
        if type(event) is Appended:
            self.append(event, after)
            return
        stream_id = event.id
        self.streams[stream_id] = after
        self.events[stream_id] = self.events.get(stream_id, 0) + 1
        if isinstance(event, Created):
            self.created.add(stream_id)
            if event.data:
                self._add_bytes(stream_id, after.start, event.data, event.at_ms)
        elif isinstance(event, Deleted):
            self.deleted.add(stream_id)
        elif isinstance(event, _FREEING):
            self.freeing.add(stream_id)

    def append(self, event: Appended, after: StreamState) -> None:
        stream_id = event.id
        self.streams[stream_id] = after
        number = self.events[stream_id] = self.events.get(stream_id, 0) + 1
        if event.data:
            self._add_bytes(stream_id, event.position, event.data, event.at_ms)
        if event.producer is not None:
            self.producers[stream_id, key_of(event.producer.id)] = (event.producer, event.at_ms, number)

    def _add_bytes(self, stream_id: int, position: int, data: bytes, at_ms: int) -> None:
        new = self.bytes.get(stream_id)
        if new is None:
            new = self.bytes[stream_id] = NewBytes(position)
        new.add(data, at_ms)


def encode_batch(batch: Sequence[Commit]) -> EncodedBatch:
    """Encode any batch."""
    draft = _Draft(len(batch))
    for index, commit in enumerate(batch):
        draft.add(index, commit)
    for stream_id in draft.changes.created:
        draft.expectations.streams.pop(stream_id, None)  # ids are not used twice
    return _Encoder(draft).encoded()


class _Draft:
    """A batch, record by record."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.groups = RecordGroups(count)
        self.expectations = _Expectations()
        self.changes = _Changes()
        self.names: set[str | DocumentKey] = set()

    def add(self, index: int, commit: Commit) -> None:
        expects = commit.expects
        if expects is None:
            raise TypeError("a record for a shared store says what it was decided on")
        if not (len(commit.record) == 1 == len(expects) and self._add_append(index, commit, expects)):
            self._note_expected(index, expects)
            self._note_changes(index, commit)

    def _add_append(self, index: int, commit: Commit, expects: Expects) -> bool:
        """Add a record that only appends to a stream, as most do. Returns whether it is one."""
        event, after = commit.record[0], commit.after[0]
        if type(event) is not Appended or type(after) is not StreamState or event.id not in expects:
            return False
        stream_id = event.id
        if self.groups.note_only(stream_id, index):
            self.expectations.streams[stream_id] = expects[stream_id]
        self.changes.append(event, after)
        return True

    def _note_expected(self, index: int, expects: Expects) -> None:
        for key, version in expects.items():
            if not isinstance(key, int):
                self.names.add(key)
            if self.groups.note(key, index):
                self.expectations.add(key, version)

    def _note_changes(self, index: int, commit: Commit) -> None:
        for event, after in zip(commit.record, commit.after, strict=True):
            self.changes.apply(event, after)
            if isinstance(after, StreamState):
                self.groups.note(after.id, index)
                if isinstance(event, Created | Deleted):
                    self.groups.note(after.path, index)  # so that a later record at this path builds on this one
            elif isinstance(event, DocumentWritten | DocumentDeleted):
                self.groups.note(DocumentKey(event.key), index)


class _Encoder:
    def __init__(self, draft: _Draft) -> None:
        groups = draft.groups
        self._count = draft.count
        self._groups = groups
        self._expectations = draft.expectations
        self._changes = draft.changes
        self._names = draft.names
        self._group_of = {key: groups.of(owner) for key, owner in groups.owners.items()}

    def encoded(self) -> EncodedBatch:
        changes = self._changes
        gone = changes.created & changes.deleted  # never written at all
        present = [one for stream_id, one in changes.streams.items() if stream_id not in changes.deleted]
        slots = {slot_of(name) for name in self._names}
        arguments = (
            ints(sorted(slots)),
            *self._compared(),
            *self._states([one for one in present if one.id not in changes.created]),
            *self._creations([one for one in present if one.id in changes.created]),
            *self._deletions(sorted(changes.deleted - gone)),
            *self._incarnations(sorted(changes.created)),
            *self._incarnations(sorted(changes.deleted)),
            *self._bytes(),
            *self._producers(),
            *self._documents(),
            *self._unread(),
        )
        moved = [Moved(one.id, one.path, one.version) for one in present]
        moved += [Moved(one, changes.streams[one].path, 0) for one in changes.deleted - gone]
        return EncodedBatch(
            function=StoringFunction.BATCH,
            arguments=arguments,
            record_count=self._count,
            group_of=self._groups.of,
            keys=self._groups.owners.keys(),
            slots=frozenset(slots),
            moved=moved,
            added=[(stream_id, new.size) for stream_id, new in changes.bytes.items()],
            created=len(changes.created - gone),
            deleted=len(changes.deleted - gone),
        )

    def _of_streams(self, stream_ids: Sequence[int]) -> IntArray:
        group_of = self._group_of
        return ints([group_of[stream_id] for stream_id in stream_ids])

    def _compared(self) -> tuple[EncodedArray, ...]:
        expected, group_of = self._expectations, self._group_of
        ids = sorted(expected.streams)
        return (
            bigints(ids),
            bigints([expected.streams[one] for one in ids]),
            self._of_streams(ids),
            byteas([encode_name(path) for path in expected.paths]),
            bigints(list(expected.paths.values())),
            ints([group_of[path] for path in expected.paths]),
            byteas([encode_name(one.key) for one in expected.documents]),
            bigints(list(expected.documents.values())),
            ints([group_of[one] for one in expected.documents]),
        )

    def _states(self, states: list[StreamState]) -> tuple[EncodedArray, ...]:
        ids = [one.id for one in states]
        return (
            bigints(ids),
            bigints([one.version for one in states]),
            bigints([due_column(one) for one in states]),
            byteas([encode_state(one) for one in states]),
            self._of_streams(ids),
        )

    def _creations(self, states: list[StreamState]) -> tuple[EncodedArray, ...]:
        ids, versions, dues, encoded, groups = self._states(states)
        return ids, byteas([encode_name(one.path) for one in states]), versions, dues, encoded, groups

    def _deletions(self, ids: list[int]) -> tuple[EncodedArray, ...]:
        paths = [encode_name(self._changes.streams[one].path) for one in ids]
        return bigints(ids), byteas(paths), self._of_streams(ids)

    def _incarnations(self, ids: list[int]) -> tuple[EncodedArray, ...]:
        slots = [slot_of(self._changes.streams[one].path) for one in ids]
        return bigints(ids), ints(slots), self._of_streams(ids)

    def _bytes(self) -> tuple[EncodedArray, ...]:
        deleted = self._changes.deleted
        rows = [
            row
            for stream_id, new in self._changes.bytes.items()
            if stream_id not in deleted
            for row in new.rows(stream_id)
        ]
        return (
            bigints([row.stream_id for row in rows]),
            bigints([row.start for row in rows]),
            bigints([row.size for row in rows]),
            bigints([row.last_ms for row in rows]),
            byteas([row.outline for row in rows]),
            byteas([row.data for row in rows]),
            self._of_streams([row.stream_id for row in rows]),
        )

    def _producers(self) -> tuple[EncodedArray, ...]:
        changes = self._changes
        rows = {key: value for key, value in changes.producers.items() if key[0] not in changes.deleted}
        before = {stream_id: changes.streams[stream_id].version - changes.events[stream_id] for stream_id, _ in rows}
        return encode_producers(rows, before, self._group_of)

    def _documents(self) -> tuple[EncodedArray, ...]:
        group_of = self._group_of
        written = [one for one in self._changes.documents.values() if one is not None]
        removed = [key for key, one in self._changes.documents.items() if one is None]
        return (
            byteas([encode_name(one.key) for one in written]),
            bigints([one.version for one in written]),
            bigints([version_of(one) for one in written]),
            byteas([one.data for one in written]),
            ints([group_of[DocumentKey(one.key)] for one in written]),
            byteas([encode_name(key) for key in removed]),
            ints([group_of[DocumentKey(key)] for key in removed]),
        )

    def _unread(self) -> tuple[EncodedArray, ...]:
        changes = self._changes
        ids = sorted(changes.freeing - changes.deleted)
        ranges = [(one, low, high) for one in ids for low, high in changes.streams[one].unread]
        return (
            bigints([stream_id for stream_id, _, _ in ranges]),
            bigints([low for _, low, _ in ranges]),
            bigints([high for _, _, high in ranges]),
            self._of_streams([stream_id for stream_id, _, _ in ranges]),
        )


def encode_producers(
    requests: LastRequests, former_versions: Mapping[int, int], group_of: Mapping[Any, int]
) -> tuple[EncodedArray, ...]:
    """The arrays of producers, which are the same for both functions. `former_versions`: of the streams before the
    batch."""
    rows = [(*key, *value) for key, value in requests.items()]
    return (
        bigints([stream_id for stream_id, *_ in rows]),
        byteas([encode_name(key) for _, key, *_ in rows]),
        bigints([producer.epoch for _, _, producer, *_ in rows]),
        bigints([producer.seq for _, _, producer, *_ in rows]),
        bigints([at_ms for _, _, _, at_ms, _ in rows]),
        bigints([former_versions[stream_id] + number for stream_id, _, _, _, number in rows]),
        bigints([hash_of(key) for _, key, *_ in rows]),
        ints([group_of[stream_id] for stream_id, *_ in rows]),
    )


def due_column(state: StreamState) -> int:
    """The deadline of a stream; -1 if it has none."""
    if state.ttl_s is None and state.expires_ms is None and state.retention is None and not state.snapshots:
        return -1
    due_ms = None if state.soft_deleted else state.due_ms
    return -1 if due_ms is None else due_ms
