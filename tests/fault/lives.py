"""One seeded history of a server: clients write and read, the machine crashes, the next life must keep every promise.

What is promised: an acknowledged append is there once and in order; what a reader saw is never taken back; a
producer's retry is recognised across a crash; closed stays closed and deleted stays deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import (
    ConflictError,
    HeadwaterError,
    InternalError,
    OffsetGoneError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.log.offsets import Offset
from headwater.log.producers import ProducerTuple
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.recovery import recover
from headwater.store.embedded.reserve import Reserve
from headwater.store.embedded.store import EmbeddedStore, Parts
from tests.fault.sim import CrashError, DeadlockError, SimDisk, SimFolder, SimIndex, SimLoop, SimRunner, SimSyncer

PATHS = ("a", "b", "c", "fork")
LIMITS = Limits(segment_bytes=4096, fold_idle_s=1.0, unfolded_segments_max=3, streams_loaded_max=2)


class LoopClock:
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


class BrokenPromiseError(AssertionError):
    """What the simulation is there to find."""


@dataclass
class Known:
    """What the outside world may rely on about the stream at a path."""

    generation: int
    offset: Offset | None = None  # an offset of this incarnation
    acknowledged: list[bytes] = field(default_factory=list)
    seen: bytes = b""  # the most that any reader saw
    closed: bool = False
    uncertain_close: bool = False
    uncertain_delete: bool = False


@dataclass
class Writer:
    """An idempotent producer that retries what was not acknowledged until it knows."""

    name: str
    path: str
    generation: int
    seq: int = 0
    unacknowledged: bytes | None = None


@dataclass
class History:
    seed: int
    make_store: Callable[..., EmbeddedStore] = EmbeddedStore
    make_syncer: Callable[[SimDisk], SimSyncer] = SimSyncer
    lives: int = 6

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.disk = SimDisk(self.random)
        self.index = SimIndex()
        self.streams: dict[str, Known] = {}
        self.uncertain: set[str] = set()  # paths where a create or delete was under way at the crash
        self.writers: dict[str, Writer] = {}
        self.generation = 0
        self.messages = 0
        self.quiet = False

    def run(self) -> str:
        """Live all lives; a digest of everything that happened."""
        for life in range(self.lives):
            if life:
                self.disk.restart()
                self.index.restart()
            last = life == self.lives - 1
            self.disk.crash_in = None if last else self.random.randint(1, self.random.choice([40, 400, 2000]))
            loop = SimLoop()
            try:
                loop.run_until_complete(self._live(loop, last=last))
            except CrashError:
                pass
            except DeadlockError:
                if not self.disk.crashed:  # then everybody waits for a machine that is off
                    raise
            finally:
                tasks = asyncio.all_tasks(loop)
                for task in tasks:
                    task.cancel()
                with contextlib.suppress(BaseException):  # a machine that is off, or waits for ever
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
                loop.close()
            unexpected = [error for error in loop.failures if not isinstance(error, CrashError)]
            if unexpected:
                raise unexpected[0]
        return self.disk.trace.hexdigest()

    def _open(self) -> EmbeddedStore:
        def salt() -> int:
            return self.random.getrandbits(32)

        def connect() -> IndexReader:
            return IndexReader(self.index.connect())

        parts = Parts(
            disk=self.disk,
            connect=connect,
            syncer=self.make_syncer(self.disk),
            helper=SimRunner(self.disk),
            folder=SimFolder(self.disk, self.index),
            readers=None,
            salt=salt,
            reserve=Reserve(self.disk, 4096),
        )
        return self.make_store(parts, recover(self.disk, connect(), salt), LIMITS)

    async def _live(self, loop: SimLoop, *, last: bool) -> None:
        fatal: list[BaseException] = []
        engine = Engine(
            self._open(),
            LIMITS,
            clock=LoopClock(),
            fatal=fatal.append,
        )
        await engine.start()
        await self._check_promises(engine)
        if self.random.random() < 0.2 and not last:
            self.disk.failing_sync_in = self.random.randint(0, 60)
        clients = [asyncio.ensure_future(self._client(engine, number)) for number in range(6)]
        rounds = 0
        while not self.disk.crashed and not fatal and rounds < (40 if last else 400):
            await asyncio.sleep(0.05)
            rounds += 1
            self._change_weather(rounds, last=last)
        self.disk.full = self.quiet = False
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        if last:
            await self._check_promises(engine)
            await engine.stop()

    def _change_weather(self, rounds: int, *, last: bool) -> None:
        """Now and then the disk is full for a while, or nobody has anything to do."""
        if rounds % 4 == 0 and not last:
            self.disk.full = self.random.random() < 0.1
        if rounds % 40 == 0:
            self.quiet = self.random.random() < 0.3

    # Clients

    async def _client(self, engine: Engine, number: int) -> None:
        while True:
            await asyncio.sleep(1.0 if self.quiet else self.random.choice([0.0, 0.001, 0.01]))
            path = self.random.choice(PATHS)
            action = self.random.random()
            if path not in self.streams:
                await self._create(engine, path)
            elif action < 0.7:
                await self._append(engine, path, f"w{number}")
            elif action < 0.9:
                await self._look(engine, path)
            elif action < 0.95:
                await self._close(engine, path)
            else:
                await self._delete(engine, path)

    async def _ask(self, engine: Engine, command: Create | Append | Delete) -> Offset | None:
        """The next offset, or None for an answer that settles nothing. A crash answers nobody."""
        reply = await engine.execute(command)
        if self.disk.crashed:
            await asyncio.sleep(3600)
        return reply.tail

    async def _create(self, engine: Engine, path: str) -> None:
        if path in self.uncertain:
            return
        self.generation += 1
        known = Known(self.generation)
        self.uncertain.add(path)
        sources = sorted(set(self.streams) - {"fork"})
        fork = ForkRequest(self.random.choice(sources)) if path == "fork" and sources else None
        command = Create(
            path=path,
            now_ms=engine.now_ms(),
            content_type="text/plain",
            body=f"<created:{self.generation}>".encode(),
            fork=fork,
        )
        try:
            known.offset = await self._ask(engine, command)
        except HeadwaterError as error:
            if not isinstance(error, InternalError):  # that one leaves open what happened
                self.uncertain.discard(path)
            return
        self.streams[path] = known
        self.uncertain.discard(path)

    async def _append(self, engine: Engine, path: str, name: str) -> None:
        known = self.streams[path]
        key = f"{name}@{path}"
        writer = self.writers.get(key)
        if writer is None or writer.generation != known.generation:
            writer = self.writers[key] = Writer(name, path, known.generation)
        if writer.unacknowledged is None:
            self.messages += 1
            padding = "." * self.random.choice([0, 10, 700])
            writer.unacknowledged = f"<{name}:{self.messages}{padding}>".encode()
        message = writer.unacknowledged
        producer = ProducerTuple(f"{name}@{known.generation}", 0, writer.seq)
        command = Append(path, engine.now_ms(), message, "text/plain", producer)
        try:
            await self._ask(engine, command)
        except ConflictError:
            if not known.closed and not known.uncertain_close:
                raise BrokenPromiseError(f"{path} refused an append") from None
            return
        except HeadwaterError:
            return
        writer.unacknowledged = None
        writer.seq += 1
        known.acknowledged.append(message)

    async def _look(self, engine: Engine, path: str) -> None:
        known = self.streams[path]
        whole, closed = await self._content(engine, path)
        if self.streams.get(path) is not known or self.disk.crashed:
            return
        if whole is None:
            if not known.uncertain_delete:
                raise BrokenPromiseError(f"{path} is not there")
            return
        known.seen = max(known.seen, whole, key=len)
        known.closed = known.closed or closed

    async def _close(self, engine: Engine, path: str) -> None:
        known = self.streams[path]
        known.uncertain_close = True
        try:
            await self._ask(engine, Append(path, engine.now_ms(), b"", None, None, None, True))
        except HeadwaterError:
            return
        known.closed = True

    async def _delete(self, engine: Engine, path: str) -> None:
        known = self.streams[path]
        known.uncertain_delete = True
        try:
            await self._ask(engine, Delete(path, engine.now_ms()))
        except (StreamNotFoundError, StreamGoneError):
            pass
        except HeadwaterError:
            return
        if self.streams.get(path) is known:
            del self.streams[path]

    async def _content(self, engine: Engine, path: str) -> tuple[bytes | None, bool]:
        try:
            stream = await engine.info(path)
            whole = b""
            while len(whole) < stream.tail:
                reply = await engine.read(Read(path, stream.offset(len(whole)), stream.offset(stream.tail), 1500))
                if reply.stream.id != stream.id:
                    return None, False
                whole += reply.data
        except (StreamNotFoundError, StreamGoneError, OffsetGoneError):
            return None, False
        return whole, stream.closed

    # Promises

    async def _check_promises(self, engine: Engine) -> None:
        for path in PATHS:
            whole, closed = await self._content(engine, path)
            known = self.streams.get(path)
            if known is None:
                self._check_absent(path, whole)
            elif whole is None:
                if not known.uncertain_delete:
                    raise BrokenPromiseError(f"{path} was lost")
                del self.streams[path]
            else:
                self._check_content(path, known, whole, closed)
        self.uncertain.clear()

    def _check_absent(self, path: str, whole: bytes | None) -> None:
        """Nobody knows of a stream here; one whose creation was under way may have come to be."""
        if whole is None:
            return
        if path not in self.uncertain:
            raise BrokenPromiseError(f"{path} came back")
        self.generation += 1
        self.streams[path] = Known(self.generation, seen=whole)

    def _check_content(self, path: str, known: Known, whole: bytes, closed: bool) -> None:
        if not whole.startswith(known.seen):
            raise BrokenPromiseError(f"{path}: what a reader saw was taken back")
        messages = [part + b">" for part in whole.split(b">")[:-1]]
        if len(messages) != len(set(messages)):
            raise BrokenPromiseError(f"{path}: a message is there twice")
        missing = set(known.acknowledged) - set(messages)
        if missing:
            raise BrokenPromiseError(f"{path}: {len(missing)} acknowledged messages are lost")
        for writer in {message.split(b":")[0] for message in known.acknowledged}:
            numbers = [
                int(message.split(b":")[1].strip(b".>")) for message in messages if message.startswith(writer + b":")
            ]
            if numbers != sorted(numbers):
                raise BrokenPromiseError(f"{path}: the messages of a writer are out of order")
        if known.closed and not closed:
            raise BrokenPromiseError(f"{path} was closed and is open")
        known.closed, known.uncertain_close, known.uncertain_delete = closed, False, False
        known.seen = whole
