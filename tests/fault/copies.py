"""Backup, check and salvage of a simulated directory, and checks of their guarantees."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from headwater.errors import OffsetLostError
from headwater.limits import Limits
from headwater.log.offsets import Offset
from headwater.store.embedded import newest
from headwater.store.embedded.backup.failures import GapError
from headwater.store.embedded.backup.formats import decode_part, encode_part
from headwater.store.embedded.backup.tailing import JournalTail, Mark
from headwater.store.embedded.checking import Checker
from headwater.store.embedded.disk import Reserve
from headwater.store.embedded.fold import fold
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import CorruptJournalError, Segment, segment_name, segment_numbers
from headwater.store.embedded.recovery import recover
from headwater.store.embedded.salvage import salvage
from headwater.store.embedded.store import EmbeddedStore, Parts
from tests.fault.oracle import BrokenPromiseError, KnownStream, check_joint, check_messages
from tests.fault.sim import SimFolder, SimIndex, SimRunner, SimSyncer
from tests.fault.sim_disk import SECTOR, SimDisk
from tests.fault.world import KEYS, World

T = TypeVar("T")

TIMELINE = 10**15  # after all ids of a simulation, whose clock starts in 1970


@dataclass(frozen=True)
class Directory:
    """A data directory: the journal and the index."""

    disk: SimDisk
    index: SimIndex

    def copy(self, rng: random.Random) -> Directory:
        return Directory(self.disk.copy(rng), self.index.copy())

    def check(self) -> None:
        problems = Checker(self.disk, self.index.connect(), lambda _: None).run().problems
        if problems:
            raise BrokenPromiseError(f"check finds: {problems[0]}")


def new_directory(rng: random.Random, index: SimIndex) -> Directory:
    """A directory with an index and an empty journal."""
    disk = SimDisk(rng)
    newest.create(disk, IndexReader(index.connect()).meta().folded)
    return Directory(disk, index)


class Contents(NamedTuple):
    """The contents of a directory: the own bytes of each stream with their start, and the documents."""

    streams: dict[int, tuple[str, int, bytes]]  # id → path, start, bytes
    documents: dict[str, bytes]


def contents_of(directory: Directory) -> Contents:
    store = open_copy(directory)
    streams = {}
    for state in run_now(store.page("", "", 1000)).states:
        own = b""
        while state.start + len(own) < state.tail:
            own += run_now(store.read(state.id, state.start + len(own), state.tail, 1 << 20)).data
        check_messages(state.path, own)
        streams[state.id] = (state.path, state.start, own)
    documents = {document.key: document.data for document in run_now(store.documents("", "", 1000))}
    return Contents(streams, documents)


def open_copy(directory: Directory) -> EmbeddedStore:
    disk = directory.disk
    reader = IndexReader(directory.index.connect())
    parts = Parts(
        disk=disk,
        connect=lambda: reader,
        syncer=SimSyncer(disk),
        helper=SimRunner(disk),
        writer=SimRunner(disk),
        folder=SimFolder(disk, directory.index),
        readers=None,
        salt=lambda: 1,
        reserve=Reserve(disk, 1),
    )
    return EmbeddedStore(parts, recover(disk, reader), Limits())


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as result:
        return result.value  # type: ignore[no-any-return]
    raise RuntimeError("it waits")


# Backup


class SimJournal:
    """The journal for a backup, without links: a segment may be removed at any time."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def numbers(self) -> list[int]:
        return segment_numbers(self._disk)

    def read(self, number: int, position: int, size: int) -> bytes:
        return self._disk.read(segment_name(number))[position : position + size]

    def sync(self, number: int) -> None:
        if (node := self._disk.nodes.get(segment_name(number))) is not None:
            node.sync()

    def release(self, number: int) -> None:
        """There are no links."""


class Following:
    """A backup that follows the journal: a copy of the index and the parts after it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._begin()

    def _begin(self) -> None:
        self._index = self._directory.index.copy()
        meta = IndexReader(self._index.connect()).meta()
        self._parts: list[bytes] = []
        source = self._directory.index
        self._tail = JournalTail(
            SimJournal(self._directory.disk),
            Mark(meta.folded_segment, meta.folded_sequence),
            lambda: IndexReader(source.copy().connect()).meta(),
        )

    def step(self, bytes_max: int = 1 << 20) -> bool:
        """Copy some batches. Returns whether there were any."""
        try:
            copied = self._tail.read(bytes_max)
        except GapError:
            self._begin()
            return True
        if copied is not None:
            self._parts.append(encode_part(copied)[1])
        return copied is not None

    def restored(self) -> Directory:
        connection = self._index.connect()
        for data in self._parts:
            reader = IndexReader(connection)
            batches = decode_part("part", data).batches
            folded = reader.meta().folded
            segment = Segment(folded.number + 1, batches, 0, True, folded.salt, folded.salt)
            fold(reader, IndexWriter(connection), segment)
        return new_directory(random.Random(0), self._index)


async def back_up_and_check(directory: Directory, world: World) -> None:
    """When a backup has caught up with a running server, it has all acknowledged writes."""
    disk = directory.disk
    if disk.no_descriptors:
        return
    following = Following(directory)
    for _ in range(world.random.randrange(8)):
        following.step(world.random.choice([1, 1000, 1 << 20]))
        await asyncio.sleep(world.random.choice([0.0, 0.01, 0.3]))
        if disk.crashed or disk.no_descriptors or disk.failed_syncs:
            return
    acknowledged = {
        known: list(known.acknowledged)
        for known in world.streams.values()
        if known.id is not None and known.life is not None and known.life.ttl_s is None and not known.life.expires_ms
    }
    writes = list(world.joint)
    while following.step():
        """Until it has caught up."""
    copy = following.restored()
    copy.check()
    contents = contents_of(copy)
    contents_there = {known: contents.streams[known.id][2] for known in acknowledged if known.id in contents.streams}
    for known, numbers in acknowledged.items():
        if known in contents_there:
            _check_acknowledged(known, numbers, contents_there[known])
        elif not known.may_be_deleted:
            raise BrokenPromiseError(f"the backup does not have {known.path}")
    check_joint(writes, contents_there, {key: contents.documents.get(key, b"") for key in KEYS})


def _check_acknowledged(known: KnownStream, numbers: list[int], own: bytes) -> None:
    missing = set(numbers) - check_messages(known.path, own)
    if missing:
        raise BrokenPromiseError(f"the backup lacks {len(missing)} acknowledged messages of {known.path}")


# Salvage


def _harm(disk: SimDisk, segment: Segment, rng: random.Random) -> bool:
    """Damage a segment. Returns whether this must be noticed. A flipped bit at the end may be an incomplete batch. A
    cut is before the seal: after it, a recycled file has old content, which is no loss."""
    name = segment_name(segment.number)
    node = disk.nodes[name]
    written = len(bytes(node.data).rstrip(b"\0"))
    harm = rng.choice(["flip", "flip", "remove", "empty", "zero", "cut", "record", "all"])
    if harm == "flip":
        node.data[rng.randrange(written)] ^= 1 << rng.randrange(8)
        return False
    if harm == "zero":
        node.data[:SECTOR] = bytes(min(SECTOR, len(node.data)))
    elif harm in ("cut", "empty"):
        del node.data[0 if harm == "empty" else rng.randrange(segment.end) :]
    elif harm == "all":
        disk.nodes.clear()
    else:
        del disk.nodes[newest.NAME if harm == "record" else name]
    return True


def _check_refused(directory: Directory) -> None:
    before = {name: bytes(node.data) for name, node in directory.disk.nodes.items()}
    if not Checker(directory.disk, directory.index.connect(), lambda _: None).run().problems:
        raise BrokenPromiseError("check does not find that a segment is lost")
    try:
        recover(directory.disk, IndexReader(directory.index.connect()))
    except CorruptJournalError:
        if before != {name: bytes(node.data) for name, node in directory.disk.nodes.items()}:
            raise BrokenPromiseError("a directory that was refused was changed") from None
        return
    raise BrokenPromiseError("a directory opens without a segment that was begun")


def damage_and_salvage(directory: Directory, world: World) -> None:
    """Damage or lose a segment of a copy of the journal. A loss is refused, and nothing is changed. After salvage the
    copy opens and has a prefix of each stream."""
    whole = contents_of(directory.copy(random.Random(0)))
    damaged = directory.copy(random.Random(0))
    meta = IndexReader(damaged.index.connect()).meta()
    segments = list(newest.read_segments(damaged.disk, meta.folded))
    if not segments:
        return
    if _harm(damaged.disk, world.random.choice(segments), world.random):
        _check_refused(damaged)
    cut: list[int] = []

    def cutting() -> None:
        cut.append(IndexWriter(damaged.index.connect()).begin_timeline(TIMELINE, 1))

    salvage(damaged.disk, meta.folded, cutting)
    try:
        contents = contents_of(damaged)
        damaged.check()
    except CorruptJournalError as error:
        raise BrokenPromiseError(f"a salvaged directory does not open: {error}") from error
    for stream_id, (path, start, own) in contents.streams.items():
        known = world.names.contents.get(stream_id, b"")[start:]
        after = whole.streams[stream_id][2] if stream_id in whole.streams else known
        if not (after.startswith(own) or (stream_id not in whole.streams and own.startswith(after))):
            raise BrokenPromiseError(f"{path}: salvage changed bytes")
        if cut and len(after) > len(own):  # damage of the last batch looks like an interrupted write
            _check_lost(damaged, stream_id, start + len(after))


def _check_lost(directory: Directory, stream_id: int, tail: int) -> None:
    """An offset of bytes that were cut is refused, and those before them keep their offsets."""
    store = open_copy(directory)
    state = run_now(store.load_id(stream_id))
    if state is None:
        raise BrokenPromiseError(f"stream {stream_id} has no state")
    kept = state.offset(state.tail)
    if state.names.resolve(state.tail, kept, store.timeline) != state.tail:
        raise BrokenPromiseError(f"{state.path}: its tail has no offset after salvage")
    try:
        state.names.resolve(state.tail, Offset(kept.id, tail), store.timeline)
    except OffsetLostError:
        return
    raise BrokenPromiseError(f"{state.path}: an offset of lost bytes is valid after salvage")
