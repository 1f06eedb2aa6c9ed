"""Clients of a simulated server: they write, read, fork, follow and delete, and record the replies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import Callable, Coroutine, Iterator

from headwater.engine import Engine
from headwater.engine.messages import FindRecords, Read, VisibleStream
from headwater.errors import (
    ConflictError,
    DocumentConflictError,
    HeadwaterError,
    InternalError,
    InvalidOffsetError,
    OffsetGoneError,
    RequestError,
    SourceGoneError,
    StorageFullError,
    StreamGoneError,
    StreamNotFoundError,
    UnknownOutcomeError,
)
from headwater.limits import Limits
from headwater.log.commands import (
    Append,
    Command,
    Create,
    Delete,
    ForkRequest,
    Reply,
    WriteDocument,
)
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.producers import ProducerTuple
from headwater.protocol.tables.paths import LOG_PREFIX
from tests.fault.compose_clients import Composes
from tests.fault.document_clients import DocumentClients
from tests.fault.oracle import BrokenPromiseError, Follower, JointWrite, KnownStream, Lifetime
from tests.fault.table_clients import Tables
from tests.fault.table_oracle import changes_of, check_table
from tests.fault.world import KEYS, World, Writer

COMPOSED = 0.3  # the part of the appends whose data the server takes from other streams
ABSENT = (StreamNotFoundError, StreamGoneError, OffsetGoneError)


class Clients:
    """The clients of one life of the server."""

    def __init__(self, world: World, engine: Engine, limits: Limits) -> None:
        self.quiet = False
        self.tables = Tables(world, engine, limits)
        self._world = world
        self._random = world.random
        self._disk = world.disk
        self._engine = engine
        self._stopping = False
        self._changing: dict[str, tuple[str, int]] = {}  # path → pending create or delete, number of clients
        self._reads: list[tuple[KnownStream, int, int, int]] = []  # stream, times of request and reply, refusals
        self._composes = Composes(world, engine, limits)
        self._documents = DocumentClients(world, engine, self._ask)
        self._mirroring = False  # a table has one follower
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._client(number)) for number in range(6)]

    async def stop(self) -> None:
        """Wait until every client has its reply."""
        self._stopping = True
        _, waiting = await asyncio.wait(self._tasks, timeout=300)
        if waiting and not self._disk.crashed:
            raise BrokenPromiseError(f"{len(waiting)} clients got no reply")

    def check(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _client(self, number: int) -> None:
        name = f"w{number}"
        while not self._stopping:
            await asyncio.sleep(1.0 if self.quiet else self._random.choice([0.0, 0.001, 0.01, 0.1]))
            action = self._random.random()
            if action < 0.12:
                await self._documents.write(self._random.choice(KEYS))
                continue
            path = self._random.choice(self._world.paths)
            known = self._world.streams.get(path)
            if known is not None and self._world.has_expired(known, self._engine.now_ms()):
                known = None  # the path may be created again, or read and not found
            if known is None:
                await self._create(path)
            else:
                await self._use(known, name, action)

    async def _use(self, known: KnownStream, name: str, action: float) -> None:
        if action < 0.65 and known.is_mirror:
            await self._mirror(known)
        elif action < 0.65:
            await self._append(known, name)
        elif action < 0.74 and known.is_table:
            await self._read(known)
        elif action < 0.83:
            await self.look(known)
        elif action < 0.88:
            await self._follow(known)
        elif action < 0.91:
            await self._close(known)
        else:
            await self._delete(known)

    # Commands

    async def _ask(self, command: Command, composed: int = 0) -> Reply:
        """Execute a command. After a crash there is no reply. With a working disk there are no internal errors.

        `composed` is the number of an append that is to be composed from other streams.
        """
        try:
            if isinstance(command, Append) and composed:
                reply = await self._composes.append(command, composed)
            elif isinstance(command, Create | Append | Delete) and command.path.startswith(LOG_PREFIX):
                reply = await self.tables.execute(command)
            else:
                reply = await self._engine.execute(command)
        except (InternalError, UnknownOutcomeError) as error:
            if not self._disk.failed_syncs and not self._disk.crashed:
                raise BrokenPromiseError(f"{type(command).__name__}: {error}") from error
            raise
        except StorageFullError as error:
            if isinstance(command, Delete) and self._disk.reserved and os.strerror(errno.ENOSPC) in str(error):
                raise BrokenPromiseError(f"a deletion was refused, although there was a reserve: {error}") from error
            raise
        if self._disk.crashed:
            await asyncio.sleep(1e9)
        return reply

    @contextlib.contextmanager
    def using(self, known: KnownStream) -> Iterator[None]:
        """The stream is used, and its time-to-live renewed, at some time until the context ends."""
        self._world.requests[known.path] += 1
        try:
            yield
        finally:
            if not self._disk.crashed:
                self._world.request_ended(known, self._engine.now_ms())

    def _recorded(self, asked_ms: int) -> None:
        """A request of this time is durable, and so are the renewals of all reads that ended before it."""
        for known, read_ms, answered_ms, refusals in self._reads:
            if answered_ms < asked_ms and refusals == self._disk.refusals and known.life is not None:
                known.life.record_read(read_ms)
        self._reads = [read for read in self._reads if read[2] >= asked_ms]

    async def _change(self, what: str, path: str, change: Callable[[], Coroutine[None, None, None]]) -> None:
        """Create or delete a path. Only one client at a time does this, except that deletions may be concurrent."""
        doing, count = self._changing.get(path, (what, 0))
        if path in self._world.uncertain or (count and (doing != what or what != "delete")):
            return
        self._changing[path] = (what, count + 1)
        try:
            await change()
        finally:
            what, count = self._changing[path]
            if count == 1:
                del self._changing[path]
            else:
                self._changing[path] = (what, count - 1)

    # Streams

    async def _create(self, path: str) -> None:
        async def create() -> None:
            known = KnownStream(path, self._world.next_generation())
            command = await self._creation(known)
            source = self._world.streams.get(command.fork.source) if command.fork is not None else None
            self._world.uncertain[path] = command.now_ms
            try:
                # Finding the row at which a fork begins reads its source.
                with self.using(source) if source is not None and source.is_table else contextlib.nullcontext():
                    reply = await self._ask(command)
            except UnknownOutcomeError:
                return
            except HeadwaterError as error:
                self._world.uncertain.pop(path, None)
                if source is not None and isinstance(error, StreamNotFoundError | SourceGoneError):
                    self._world.lose(source, self._engine.now_ms())
                return
            self._world.uncertain.pop(path, None)
            await self._created(known, command, reply)

        await self._change("create", path, create)

    async def _creation(self, known: KnownStream) -> Create:
        now_ms = self._engine.now_ms()
        known.kind = "application/json" if known.path == "json" else "text/plain"
        fork = self._fork_request() if known.path.startswith("fork") else None
        if fork is not None:
            known.kind = self._world.streams[fork.source].kind
        text = f"<created:{known.generation}>"
        ttl_s, expires_ms = self._random.choice(
            [(None, None), (None, None), (None, None), (1, None), (4, None), (20, None), (None, now_ms + 3000)]
        )
        if known.is_table:
            return await self.tables.creation(known, now_ms, ttl_s, expires_ms)
        return Create(
            path=known.path,
            now_ms=now_ms,
            content_type=known.kind,
            ttl_s=ttl_s,
            expires_ms=expires_ms,
            body=f'["{text}","x"]'.encode() if known.kind == "application/json" else text.encode(),
            fork=fork,
        )

    def _fork_request(self) -> ForkRequest | None:
        sources = sorted(path for path, known in self._world.streams.items() if not known.is_table)
        if not sources or self._random.random() < 0.1:
            return None
        source = self._world.streams[self._random.choice(sources)]
        offset = self._random.choice([None, BEGINNING, *source.tails[-4:]])
        return ForkRequest(source.path, offset, self._random.choice([0, 0, 0, 1, 2, 5]))

    async def _created(self, known: KnownStream, command: Create, reply: Reply) -> None:
        before = self._world.streams.get(known.path)
        if reply.existed or (before is not None and before.must_exist(command.now_ms)):
            raise BrokenPromiseError(f"{known.path} was created although it exists")
        self._world.expired.pop(known.path, None)
        self._world.unseen.pop(known.path, None)
        self._world.streams[known.path] = known
        if reply.tail is not None:
            known.id = reply.tail.id
            known.tails.append(reply.tail)
        if command.fork is None or command.ttl_s is not None or command.expires_ms is not None:
            latest_ms = max(self._world.latest_ms, self._engine.now_ms())
            known.life = Lifetime(command.ttl_s, command.expires_ms, command.now_ms, latest_ms)
        self._recorded(command.now_ms)
        await self.look(known)

    async def _append(self, known: KnownStream, name: str) -> None:
        if self._random.random() < 0.15:
            if known.is_table:
                await self._send(known, f"{name}00", self._world.next_number(), None, ())
            else:
                await self._append_with_document(known, name)
            return
        key = f"{name}@{known.path}"
        writer = self._world.writers.get(key)
        if writer is None or writer.generation != known.generation:
            writer = self._world.writers[key] = Writer(known.generation)
        if writer.unacknowledged is None:
            writer.unacknowledged = self._world.next_number()
        number = writer.unacknowledged
        producer = ProducerTuple(f"{name}@{known.generation}", 0, writer.seq)
        if await self._send(known, name, number, producer, ()):
            writer.unacknowledged = None
            writer.seq += 1

    async def _append_with_document(self, known: KnownStream, name: str) -> None:
        document = self._world.documents[self._random.choice(KEYS)]
        if document.may_be_deleted:
            return
        number = self._world.next_number()
        with self._documents.writing(document):
            write = await self._documents.extend(document, number)
            if write is None or self._world.streams.get(known.path) is not known:
                return
            joint = JointWrite(number, (known,), ((document, document.incarnation),))
            self._world.joint.append(joint)
            if await self._send(known, f"{name}00", number, None, (write,)):
                self._documents.extended(document, write)

    async def _send(
        self,
        known: KnownStream,
        name: str,
        number: int,
        producer: ProducerTuple | None,
        documents: tuple[WriteDocument, ...],
    ) -> bool:
        """Append a message. Returns whether it was acknowledged."""
        asked_ms = self._engine.now_ms()
        writer = f"{name}@{known.generation}"
        text = f"<{writer}:{number}{'.' * random.Random(number).choice([0, 10, 700])}>"
        body = f'["{text}","x"]' if known.kind == "application/json" else text
        if known.is_table:
            body = b"\n".join(changes_of(writer, number)).decode()
        end = self._end_of(known)
        ends = None if end is None else (end,)
        with self.using(known):
            try:
                command = Append(
                    known.path, asked_ms, body.encode(), known.kind, producer, documents=documents, ends=ends
                )
                is_composed = not documents and random.Random(number).random() < COMPOSED
                reply = await self._ask(command, number if is_composed else 0)
            except ABSENT:
                self._world.lose(known, self._engine.now_ms())
                return False
            except DocumentConflictError:
                return False
            except ConflictError as error:
                current = self._world.streams.get(known.path) is known
                if current and not known.closed and not known.may_be_closed:
                    raise BrokenPromiseError(f"{known.path} refused an append: {error}") from None
                return False
            except HeadwaterError:
                return False
        known.acknowledged.append(number)
        if known.is_table:
            known.last_seqno = max(known.last_seqno, reply.last_seqno)
        if not reply.duplicate:
            if end is not None and _end_after(end, known, body) != (reply.tail or Offset(0, reply.last_seqno)).position:
                raise BrokenPromiseError(f"{known.path}: an append was accepted although the tail had moved")
            if reply.tail is not None:
                known.tails.append(reply.tail)
            else:
                known.last_seqnos[number] = reply.last_seqno
            if known.life is not None:
                known.life.record(asked_ms)
            self._recorded(asked_ms)
        return True

    def _end_of(self, known: KnownStream) -> Offset | None:
        """The tail that an append expects; None for any."""
        if not self._world.conditional or self._random.random() >= self._world.conditional:
            return None
        if known.is_table:
            return Offset(0, known.last_seqno)
        return self._random.choice(known.tails[-2:]) if known.tails else None

    async def _mirror(self, known: KnownStream) -> None:
        """Append the next rows of the remote table, as its follower does."""
        if self._mirroring:
            return
        self._mirroring = True
        try:
            with self.using(known):
                last_seqno = await self.tables.extend_mirror(known)
            known.last_seqno = max(known.last_seqno, last_seqno)
        except ABSENT:
            if not self._disk.crashed:
                self._world.lose(known, self._engine.now_ms())
        except ConflictError as error:
            if self._world.streams.get(known.path) is known and not known.closed and not known.may_be_closed:
                raise BrokenPromiseError(f"{known.path!r} refused rows: {error}") from None
        except HeadwaterError:
            return
        finally:
            self._mirroring = False

    async def _read(self, known: KnownStream) -> None:
        with self.using(known):
            await self.tables.read(known)

    def now_ms(self) -> int:
        """The engine's time."""
        return self._engine.now_ms()

    async def look(self, known: KnownStream) -> None:
        """Read a stream from its beginning to its tail."""
        asked_ms, before, last_seqno = self._engine.now_ms(), (known.seen, known.closed), known.last_seqno
        expired, refusals, full = (
            self._world.has_expired(known, asked_ms),
            self._disk.refusals,
            self._engine._store.full,
        )
        with self.using(known):
            content = await self.content(known.path)
            if content is None and not self._disk.crashed:
                self._world.lose(known, self._engine.now_ms())
        if content is None or self._world.streams.get(known.path) is not known or self._disk.crashed:
            return
        stream, whole = content
        if expired:
            raise BrokenPromiseError(f"{known.path} has expired but can be read")
        if known.id is not None and stream.id != known.id:
            raise BrokenPromiseError(f"{known.path} is another stream than before")
        known.id = stream.id
        self._note_life(known, stream)
        known.check_seen(whole, stream.closed, before)
        if known.is_table:
            known.is_mirror = stream.kind is ContentKind.MIRROR
            check_table(stream, whole, known.last_seqnos)
            if stream.last_seqno < last_seqno:
                raise BrokenPromiseError(f"{known.path!r} lost rows that were acknowledged")
        self._world.names.note(stream, known.generation, whole)
        if whole and not full and not self._engine._store.full:  # otherwise renewals are not stored
            self._reads.append((known, asked_ms, self._engine.now_ms(), refusals))

    def _note_life(self, known: KnownStream, stream: VisibleStream) -> None:
        known.kind = stream.content_type
        if known.life is None:
            latest_ms = max(self._world.latest_ms, self._engine.now_ms())
            known.life = Lifetime(stream.ttl_s, stream.expires_ms, stream.created_ms, latest_ms)
        elif (known.life.ttl_s, known.life.expires_ms) != (stream.ttl_s, stream.expires_ms):
            raise BrokenPromiseError(f"{known.path} has another time-to-live than it was created with")

    async def content(self, path: str) -> tuple[VisibleStream, bytes] | None:
        """A stream and all its bytes; None if it does not exist."""
        try:
            stream = await self._engine.info(path)
            whole = b""
            while len(whole) < stream.tail:
                reply = await self._engine.read(
                    Read(
                        path,
                        stream.offset(len(whole)),
                        stream.offset(stream.tail),
                        self._random.choice([1, 1500, 9000]),
                    )
                )
                if reply.stream.id != stream.id:
                    return None
                if not reply.data or reply.start != len(whole) or reply.next != len(whole) + len(reply.data):
                    raise BrokenPromiseError(f"{path}: a read from {len(whole)} made no progress")
                whole += reply.data
        except (*ABSENT, InvalidOffsetError):  # InvalidOffsetError if another stream was created there in the meantime
            return None
        return stream, whole

    async def check_times(self, known: KnownStream, stream: VisibleStream) -> None:
        command = FindRecords(known.path, until=stream.offset(stream.tail), limit=100_000)
        try:
            reply = await self._engine.records(command)
        except ABSENT:
            return
        if reply.stream.id == stream.id:
            known.check_times(reply.records, stream.tail)

    async def _follow(self, known: KnownStream) -> None:
        """Follow a stream for a while. Every update must continue where the one before ended."""
        with self.using(known):
            try:
                stream = await self._engine.info(known.path)
            except ABSENT:
                self._world.lose(known, self._engine.now_ms())
                return
            if self._world.streams.get(known.path) is not known:
                return
            follower = Follower(known, stream.id)
            try:
                follower.position = self._engine.follow(stream.id, follower).tail
            except ABSENT:
                return
            except RequestError as error:
                raise BrokenPromiseError(f"{known.path} cannot be followed: {error}") from error
            await asyncio.sleep(self._random.choice([0.1, 1.0, 5.0]))
            self._engine.unfollow(stream.id, follower)
            if follower.broken is not None:
                raise follower.broken

    async def _close(self, known: KnownStream) -> None:
        async def close() -> None:
            if self._world.streams.get(known.path) is not known:
                return
            known.may_be_closed = True
            with self.using(known):
                try:
                    await self._ask(Append(known.path, self._engine.now_ms(), b"", close=True))
                except ABSENT:
                    self._world.lose(known, self._engine.now_ms())
                    return
                except HeadwaterError:
                    return
            known.closed = True

        await self._change("close", known.path, close)

    async def _delete(self, known: KnownStream) -> None:
        async def delete() -> None:
            if self._world.streams.get(known.path) is not known:
                return
            known.may_be_deleted = True
            with self.using(known):
                try:
                    await self._ask(Delete(known.path, self._engine.now_ms()))
                except ABSENT:
                    self._world.lose(known, self._engine.now_ms())
                except HeadwaterError:
                    return
            if self._world.streams.get(known.path) is known:
                del self._world.streams[known.path]

        await self._change("delete", known.path, delete)


def _end_after(end: Offset, known: KnownStream, body: str) -> int:
    """The position or last SeqNo after an append of a body at a tail."""
    if known.is_table:
        return end.position + body.count("\n") + 1
    return end.position + len(body) - (1 if known.kind == "application/json" else 0)
