"""Clients of a simulated server whose streams and tables are compacted, and what they may find.

The guarantees: whoever reads from an offset or a row that the server once gave, at any later time, folds to the same
state, or is told that it is gone; and it is gone only if the stream was trimmed by hand, or replaced for at least the
grace time. A fork reads what it read before. An offset of a stream that was deleted is never one of the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass, field
from typing import Any

from headwater.engine import Engine
from headwater.engine.follower import Pulled
from headwater.engine.messages import Ended, FindRow, Read, ReadMore, VisibleStream
from headwater.errors import (
    HeadwaterError,
    InvalidOffsetError,
    OffsetGoneError,
    OffsetTrimmedError,
    StreamGoneError,
    StreamNotFoundError,
    UnknownOutcomeError,
)
from headwater.limits import Limits
from headwater.log.commands import Append, Command, Create, Delete, ForkRequest, Reply
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.retention import Retention
from headwater.protocol.tables.paths import LOG_PREFIX, log_path
from headwater.server.compacting.compactor import Compactor
from tests.compacting import LocalContent
from tests.fault.oracle import BrokenPromiseError
from tests.fault.sim_disk import SimDisk

TABLE = log_path("t")
STREAMS = ("s1", "s2", "fork1", "fork2")
KEYS = ("a", "b", "c", "d")
ABSENT = (StreamNotFoundError, StreamGoneError)
RETENTION = Retention(compact=True, compact_after_s=1)

SMALL_GRACE_S = 2
SMALL_COMPACTIONS = Limits(compact_bytes_min=300, compact_deletions_s=2)
STREAM_IDS = 10**15  # smaller ids in offsets are those of snapshots

State = dict[str, int]


@dataclass(frozen=True)
class Entry:
    """An append: where it ends (a position, or the SeqNo of a table), and its changes. None: no state event."""

    end: int
    changes: tuple[tuple[str, str, int] | None, ...]


@dataclass(eq=False)
class Held:
    """A place that a reader was at, and its state there. It began with the entries after `base`."""

    place: Any  # an offset or a SeqNo
    base: int
    state: State


@dataclass(eq=False)
class Compactable:
    """What is known of one incarnation of a stream or table."""

    path: str
    id: int = 0
    log: list[Entry] = field(default_factory=list)
    bases: set[int] = field(default_factory=lambda: {0})  # where a new reader may begin: several after a lost reply
    held: list[Held] = field(default_factory=list)
    sending: bool = False
    uncertain: bool = False  # whether the last entry is there
    may_be_deleted: bool = False
    trimmed: int = 0  # by hand, up to here

    @property
    def is_table(self) -> bool:
        return self.path.startswith(LOG_PREFIX)

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else 0

    def state_at(self, end: int, base: int = 0) -> State:
        return folded({}, [entry for entry in self.log if base < entry.end <= end])

    def hold(self, rng: random.Random, held: Held) -> None:
        self.held.append(held)
        if len(self.held) > 40:
            del self.held[rng.randrange(len(self.held))]


def folded(state: State, entries: list[Entry]) -> State:
    state = dict(state)
    for entry in entries:
        for change in entry.changes:
            if change is not None:
                apply(state, *change)
    return state


def apply(state: State, operation: str, key: str, number: int) -> None:
    if operation == "reset":
        state.clear()
    elif operation == "delete":
        state.pop(key, None)
    else:
        state[key] = number


@dataclass
class CompactionWorld:
    """What all clients know, across the lives of the server."""

    random: random.Random
    disk: SimDisk
    streams: dict[str, Compactable] = field(default_factory=dict)
    dead: dict[str, list[Offset]] = field(default_factory=dict)  # offsets of deleted streams
    number: int = 0
    reached: set[str] = field(default_factory=set)


class CompactionClients:
    """The clients of one life of the server."""

    def __init__(self, world: CompactionWorld, engine: Engine) -> None:
        self._world = world
        self._random = world.random
        self._engine = engine
        self._compactor = Compactor(engine, SMALL_COMPACTIONS, LocalContent)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        with contextlib.suppress(HeadwaterError):  # for example, the disk is full
            await self._compactor.start()
        for known in list(self._world.streams.values()):
            await self._settle(known)
        self._tasks = [asyncio.ensure_future(self._client()) for _ in range(5)]

    async def stop(self) -> None:
        self._stopping = True
        _, waiting = await asyncio.wait(self._tasks, timeout=300)
        await self._compactor.stop()
        if waiting and not self._world.disk.crashed:
            raise BrokenPromiseError(f"{len(waiting)} clients got no reply")

    def check(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def check_all(self) -> None:
        """Read all streams from all places, when nothing else happens."""
        for path, known in list(self._world.streams.items()):
            await self._read(known, None)
            for held in list(known.held):
                await self._read(known, held)
            for offset in self._world.dead.get(path, []):
                await self._check_dead(path, offset)

    async def _client(self) -> None:
        while not self._stopping:
            await asyncio.sleep(self._random.choice([0.0, 0.001, 0.01, 0.1]))
            path = self._random.choice((*STREAMS, TABLE, TABLE))
            known = self._world.streams.get(path)
            action = self._random.random()
            if known is None:
                await self._create(path)
            elif action < 0.5:
                await self._append(known)
            elif action < 0.8:
                await self._read(known, self._random.choice([None, *known.held]))
            elif action < 0.86:
                await self._follow(known)
            elif action < 0.95:
                await self._compact(known)
            elif action < 0.97:
                await self._trim(known)
            elif action < 0.98:
                await self._delete(known)
            elif self._world.dead.get(path):
                await self._check_dead(path, self._random.choice(self._world.dead[path]))

    async def _ask(self, command: Command) -> Reply:
        reply = await self._engine.execute(command)
        await self._check_alive()
        return reply

    async def _check_alive(self) -> None:
        if self._world.disk.crashed:
            await asyncio.sleep(1e9)

    def _is(self, known: Compactable) -> bool:
        return self._world.streams.get(known.path) is known

    def _gone(self, known: Compactable) -> None:
        """A stream was not found."""
        if self._is(known) and not self._world.disk.crashed:
            if not known.may_be_deleted:
                raise BrokenPromiseError(f"{known.path!r} was not found")
            self._bury(known)

    def _bury(self, known: Compactable) -> None:
        del self._world.streams[known.path]
        if not known.is_table:
            places = [held.place for held in known.held]
            if known.path.startswith("fork"):  # another fork of its source may have inherited the others
                places = [place for place in places if place.id == known.id]
            self._world.dead[known.path] = places[-10:]

    # Writing

    async def _create(self, path: str) -> None:
        known = Compactable(path)
        if path in self._world.streams:
            return
        self._world.streams[path] = known
        known.sending = known.may_be_deleted = True
        command = Create(
            path=path,
            now_ms=self._engine.now_ms(),
            content_type="text/sequence" if known.is_table else "application/json",
            kind=ContentKind.ROWS if known.is_table else None,
            retention=RETENTION if self._random.random() < 0.7 else None,
            fork=self._fork(known) if path.startswith("fork") else None,
        )
        try:
            reply = await self._ask(command)
        except UnknownOutcomeError:
            known.uncertain = True
            return
        except HeadwaterError:
            if self._is(known) and not self._world.disk.crashed:
                del self._world.streams[path]
            return
        known.sending = known.may_be_deleted = False
        known.id = (await self._engine.info(path)).id if reply.tail is None else reply.tail.id
        if command.fork is not None:
            self._note_trims(known, command.fork.source)
            known.id = (await self._engine.info(path)).id
        await self._read(known, None)

    def _note_trims(self, fork: Compactable, path: str) -> None:
        """The source may have been trimmed while it was forked."""
        source = self._world.streams.get(path)
        if source is not None:
            fork.bases |= {min(base, fork.end) for base in source.bases}
            fork.trimmed = max(fork.trimmed, *fork.bases)

    def _fork(self, known: Compactable) -> ForkRequest | None:
        sources = [one for one in self._world.streams.values() if not one.is_table and one.log and not one.sending]
        if not sources:
            return None
        source = self._random.choice(sources)
        entry = self._random.choice(source.log[-6:])
        if source.bases != {source.trimmed} or source.uncertain or entry.end < source.trimmed:
            return None
        known.log = [one for one in source.log if one.end <= entry.end]
        known.bases, known.trimmed = {source.trimmed}, source.trimmed
        self._world.reached.add("fork")
        return ForkRequest(source.path, _offset_in(source, entry.end))

    async def _append(self, known: Compactable) -> None:
        if known.sending or known.uncertain or not self._is(known):
            return
        known.sending = True
        changes: list[tuple[str, str, int] | None] = []
        for _ in range(self._random.choice([1, 1, 1, 2, 5])):
            self._world.number += 1
            operation = self._random.choice(["upsert"] * 8 + ["delete", "delete"])
            change = (operation, self._random.choice(KEYS), self._world.number)
            if not known.is_table and self._random.random() < 0.02:
                change = ("reset", "", 0)
            changes.append(None if not known.is_table and self._random.random() < 0.03 else change)
        body, size = _body(known, changes, self._world.number)
        entry = Entry(known.end + size, tuple(changes))
        known.log.append(entry)
        content_type = "text/sequence" if known.is_table else "application/json"
        try:
            reply = await self._ask(Append(known.path, self._engine.now_ms(), body, content_type))
        except UnknownOutcomeError:
            known.uncertain = True
            return
        except HeadwaterError as error:
            if not self._world.disk.crashed:
                known.log.remove(entry)
                known.sending = False
                if isinstance(error, ABSENT):
                    self._gone(known)
            return
        known.sending = False
        end = reply.last_seqno if known.is_table or reply.tail is None else reply.tail.position
        if end != entry.end:
            raise BrokenPromiseError(f"{known.path!r}: an append ends at {end} instead of {entry.end}")
        place: Any = entry.end if known.is_table else reply.tail
        known.hold(self._random, Held(place, 0, known.state_at(entry.end)))

    async def _settle(self, known: Compactable) -> None:
        """After a crash: find out what has happened to the last request."""
        known.sending = False
        try:
            stream = await self._engine.info(known.path)
        except ABSENT:
            self._gone(known)
            return
        if known.id and stream.id != known.id:
            raise BrokenPromiseError(f"{known.path!r} is another stream than before")
        known.id, known.may_be_deleted, known.uncertain = stream.id, False, False
        end = stream.last_seqno if known.is_table else stream.tail
        if known.log and known.log[-1].end > end:
            known.log.pop()
        if known.end != end:
            raise BrokenPromiseError(f"{known.path!r} ends at {end} instead of {known.end}")

    async def _delete(self, known: Compactable) -> None:
        if known.sending or not self._is(known):
            return
        known.sending = known.may_be_deleted = True
        try:
            await self._ask(Delete(known.path, self._engine.now_ms()))
        except UnknownOutcomeError:
            known.uncertain = True
            return
        except HeadwaterError as error:
            known.sending = False
            if not self._world.disk.crashed and not isinstance(error, ABSENT):
                known.may_be_deleted = False
            return
        if self._is(known):
            self._bury(known)

    async def _compact(self, known: Compactable) -> None:
        with contextlib.suppress(HeadwaterError):
            result = await self._compactor.compact_now(known.path)
            self._world.reached.add("compact" if result.compacted else "skip")
        await self._check_alive()

    async def _trim(self, known: Compactable) -> None:
        """Trim by hand. Afterwards new readers begin there, unless a snapshot has replaced more."""
        if known.is_table or known.sending or known.uncertain or not known.log or not self._is(known):
            return
        known.sending = True
        entry = self._random.choice(known.log[-8:])
        before = known.bases
        known.bases = before | {entry.end}
        known.trimmed = max(known.trimmed, entry.end)
        try:
            reply = await self._engine.trim(known.path, before=_offset_in(known, entry.end))
            await self._check_alive()
        except UnknownOutcomeError:
            known.uncertain = True
            return
        except HeadwaterError:
            if not self._world.disk.crashed:
                known.sending = False
            return
        known.sending = False
        if reply.first is not None:
            is_here = reply.first.position == entry.end and reply.first.id >= STREAM_IDS
            known.bases = {entry.end} if is_here else before
            await self._check_dropped(known, entry.end, reply.first)
        self._world.reached.add("trim")

    async def _check_dropped(self, known: Compactable, end: int, first: Offset) -> None:
        """After a trim by hand, no snapshot has data from before it and nothing else."""
        try:
            stream = await self._engine.info(known.path)
        except ABSENT:
            return
        for one in stream.names.snapshots:
            if one.offset_id == first.id and one.next <= end:
                raise BrokenPromiseError(f"{known.path!r} still begins with a snapshot of what was trimmed at {end}")

    # Reading

    async def _read(self, known: Compactable, held: Held | None) -> None:
        """Read to the tail from a place that was held, or from the beginning."""
        if not self._is(known) or known.uncertain or (known.sending and known.may_be_deleted):
            return
        try:
            read = self._read_rows if known.is_table else self._read_messages
            await read(known, held)
        except OffsetTrimmedError as error:
            await self._check_alive()
            if held is None:
                return  # what it read next was trimmed meanwhile: it begins again
            self._world.reached.add("trimmed")
            if held in known.held:
                known.held.remove(held)
            if self._is(known):
                await self._check_trimmed(known, held, error)
        except ABSENT:
            await self._check_alive()
            self._gone(known)
        except (OffsetGoneError, InvalidOffsetError):
            await self._check_alive()
            if self._is(known) and not known.may_be_deleted:
                raise

    async def _read_messages(self, known: Compactable, held: Held | None) -> None:
        offset = BEGINNING if held is None else held.place
        state = {} if held is None else dict(held.state)
        bases = set(known.bases) if held is None else {held.base}
        while True:
            reply = await self._engine.read(Read(known.path, offset, bytes_max=self._random.choice([1, 200, 3000])))
            await self._check_alive()
            if not self._is(known) or reply.stream.id != known.id:
                return
            for message in json.loads(b"[%b]" % reply.data[:-1]) if reply.data else ():
                _apply_message(state, message)
            if reply.start < 0:
                self._world.reached.add("snapshot")
            offset = reply.stream.offset(reply.next)
            if reply.at_tail:
                break
            if self._random.random() < 0.3:
                for base in bases if len(bases) == 1 else ():
                    known.hold(self._random, Held(offset, base, dict(state)))
        bases |= known.bases if held is None else set()
        self._check_state(known, state, reply.stream.tail, bases, held)

    async def _read_rows(self, known: Compactable, held: Held | None) -> None:
        state = {} if held is None else dict(held.state)
        since_id = 0 if held is None else held.place
        reply = await self._engine.find_row(FindRow(known.path, since_id))
        table, position, skip = reply.table, reply.start.record, reply.start.skip
        if table.id != known.id:
            return
        seqnos = []
        while position < table.tail:
            read = await self._engine.read_more(
                ReadMore(table.id, position, table.tail, self._random.choice([1, 200, 3000]))
            )
            await self._check_alive()
            for row in read.data[skip:].splitlines():
                seqno, _, action, key, record = row.decode().split("\t")
                seqnos.append(int(seqno))
                apply(state, "delete" if action == "-" else "upsert", key, int(record.partition(".")[0] or 0))
            if read.start < 0:
                self._world.reached.add("rows of a snapshot")
            position, skip = read.next, 0
            if self._random.random() < 0.1 and seqnos and read.start >= 0:
                known.hold(self._random, Held(seqnos[-1], 0, dict(state)))
        if seqnos != sorted(set(seqnos)) or (seqnos and (seqnos[0] <= since_id or seqnos[-1] != table.last_seqno)):
            raise BrokenPromiseError(f"{known.path!r}: rows {seqnos} after row {since_id}")
        if not self._is(known):
            return
        self._check_state(known, state, table.last_seqno, {0}, held)
        if self._random.random() < 0.3:
            await self._read_last(known, table)

    async def _read_last(self, known: Compactable, table: VisibleStream) -> None:
        """The last rows: these are there, in a table without snapshot without gaps."""
        wanted = self._random.randint(1, 30)
        reply = await self._engine.find_row(FindRow(known.path, -wanted))
        await self._check_alive()
        if not self._is(known) or reply.table.id != known.id or reply.table.last_seqno == 0:
            return
        if reply.since_id >= reply.table.last_seqno:
            raise BrokenPromiseError(f"{known.path!r}: the last {wanted} rows are none")
        self._world.reached.add("last rows")

    def _check_state(self, known: Compactable, state: State, end: int, bases: set[int], held: Held | None) -> None:
        if end not in (0, known.id and known.end, *[entry.end for entry in known.log]):
            raise BrokenPromiseError(f"{known.path!r} ends at {end}, where no append ended")
        expected = [known.state_at(end, base) for base in bases]
        if state not in expected:
            where = "the beginning" if held is None else f"{held.place}"
            raise BrokenPromiseError(f"{known.path!r} from {where}: {state} instead of {expected}")
        if held is None and not known.is_table and not any(list(state) == list(one) for one in expected):
            raise BrokenPromiseError(f"{known.path!r}: {list(state)} in another order than {[*map(list, expected)]}")

    async def _check_trimmed(self, known: Compactable, held: Held, error: OffsetTrimmedError) -> None:
        """What is gone was trimmed by hand, or replaced for long enough."""
        try:
            stream = await self._engine.info(known.path)
        except ABSENT:
            return
        await self._check_alive()
        if known.is_table or not self._is(known) or stream.id != known.id:
            return
        if error.first is None:
            return
        names = stream.names
        position = held.place.position
        if held.place.id == known.id and position >= known.trimmed:
            replaced = [one for one in (*names.snapshots, names.dropped) if one is not None and one.next > position]
            now_ms = self._engine.now_ms()
            if not any(one.at_ms + SMALL_GRACE_S * 1000 <= now_ms for one in replaced):
                raise BrokenPromiseError(f"{known.path!r}: {held.place} was gone too early")

    async def _follow(self, known: Compactable) -> None:
        """Follow a stream from its beginning for a while."""
        if known.is_table or not self._is(known) or known.sending or known.uncertain:
            return
        bases = set(known.bases)
        try:
            stream = await self._engine.info(known.path)
        except ABSENT:
            self._gone(known)
            return
        await self._check_alive()
        if stream.id != known.id:
            return
        pulled = Pulled(self._engine, "view", stream, stream.begin, bytes_max=self._random.choice([1, 500]))
        pulled.follower.open()
        state: State = {}
        position = stream.begin
        with contextlib.suppress(TimeoutError, *ABSENT, OffsetTrimmedError):
            async with asyncio.timeout(self._random.choice([0.1, 1.0, 5.0])):
                while (piece := await pulled.next()) is not None:
                    if piece.start != position:
                        raise BrokenPromiseError(f"{known.path!r}: a slice from {piece.start} after {position}")
                    position = piece.next
                    for message in json.loads(b"[%b]" % piece.data[:-1]) if piece.data else ():
                        _apply_message(state, message)
        pulled.follower.close()
        await self._check_alive()
        if pulled.reason is None and self._is(known) and position >= stream.tail:
            self._check_state(known, state, position, bases | known.bases, None)
            self._world.reached.add("followed")
        if isinstance(pulled.reason, Ended) and pulled.reason is Ended.DELETED and self._is(known):
            self._gone(known)

    async def _check_dead(self, path: str, offset: Offset) -> None:
        """An offset of a stream that was deleted."""
        if self._world.streams.get(path) is None:
            return
        with contextlib.suppress(*ABSENT, OffsetGoneError, InvalidOffsetError):
            await self._engine.read(Read(path, offset))
            await self._check_alive()
            raise BrokenPromiseError(f"{path!r}: {offset} of a deleted stream was read")


def _offset_in(known: Compactable, end: int) -> Offset:
    """The offset after an entry. One that was inherited has the id of the stream where it was written."""
    places = [held.place for held in known.held if held.place.position == end and held.base == 0]
    return places[0] if places else Offset(known.id, end)


def _apply_message(state: State, message: Any) -> None:
    headers = message["headers"] if isinstance(message, dict) and "headers" in message else {}
    if headers.get("control") == "reset":
        state.clear()
    elif "operation" in headers:
        apply(state, headers["operation"], message["key"], message.get("value", {}).get("n", 0))


def _body(known: Compactable, changes: list[tuple[str, str, int] | None], number: int) -> tuple[bytes, int]:
    """The body of an append, and by how much the stream grows: bytes, or rows of a table."""
    padding = "." * random.Random(number).choice([0, 10, 300])
    if known.is_table:
        lines = [
            f"-\t{change[1]}\t" if change[0] == "delete" else f"+\t{change[1]}\t{change[2]}{padding}"
            for change in changes
            if change is not None
        ]
        return "\n".join(lines).encode(), len(lines)
    messages = [json.dumps(_message(change, padding)) for change in changes]
    return f"[{','.join(messages)}]".encode(), sum(len(message) + 1 for message in messages)


def _message(change: tuple[str, str, int] | None, padding: str) -> Any:
    if change is None:
        return {"no": "event"}
    operation, key, number = change
    if operation == "reset":
        return {"headers": {"control": "reset"}}
    event: dict[str, Any] = {"type": "t", "key": key, "headers": {"operation": operation}}
    return event if operation == "delete" else {**event, "value": {"n": number, "p": padding}}
