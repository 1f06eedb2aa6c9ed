"""Retention and trims against a model, over restarts, in virtual time: a reader at any offset that it ever held gets
exactly what follows it, or 410 with the present beginning; a fork reads what its source had when it was made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import (
    OffsetGoneError,
    OffsetTrimmedError,
    PathBlockedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.log.moments import Moment
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.retention import Retention
from tests.fault.sim import SimLoop
from tests.fault.test_full_disk import Machine
from tests.waiting import wait_until_async

TEXT = "text/plain"
PATHS = ("a", "b", "c", "d")


class SmallMachine(Machine):
    """Its segments, chunks and reclaiming are so small that a history reaches all of them."""

    limits = Limits(segment_bytes=4096, fold_idle_s=1.0, expiry_sweep_s=0.5, expiry_grace_s=0.01, streams_loaded_max=2)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.now_ms = 0

    def run(self, body: Callable[[Engine], Awaitable[None]]) -> None:
        """A life. The time goes on from one to the next."""

        async def live() -> None:
            engine = Engine(self.store(), self.limits, clock=clock)
            await engine.start()
            await body(engine)
            await engine.stop()

        loop = SimLoop()
        clock = LifeClock(loop, self.now_ms)
        try:
            loop.run_until_complete(live())
        finally:
            self.now_ms = clock.now_ms()
            loop.close()


class LifeClock:
    def __init__(self, loop: asyncio.AbstractEventLoop, began_ms: int) -> None:
        self._loop = loop
        self._began_ms = began_ms

    def now_ms(self) -> int:
        return self._began_ms + int(self._loop.time() * 1000)

    def moment(self) -> Moment:
        return Moment(self.now_ms(), self.now_ms(), self.now_ms(), 1)


@dataclass
class Known:
    """A stream as the model has it."""

    id: int
    data: bytes = b""  # from position 0, also what was trimmed
    first: int = 0
    ends: list[int] = field(default_factory=list)  # of its records
    retention: Retention | None = None
    changing: bool = False  # the retention


@dataclass
class Held:
    """An offset that a reader has."""

    path: str
    stream_id: int
    offset: Offset


class Readers:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.known: dict[str, Known] = {}
        self.held: list[Held] = []
        self.trimmed = self.refused = self.read = 0

    async def live(self, engine: Engine) -> None:
        """One life of the server."""
        for path in self.known:
            await self.check_beginning(engine, path)
        for _ in range(60):
            await self.step(engine)
            for held in self.random.sample(self.held, min(3, len(self.held))):
                await self.check(engine, held)
        pause_s = self.random.choice([0, 3, 20])
        await asyncio.sleep(pause_s)  # it is folded and reclaimed, or not
        if pause_s:
            for path, known in self.known.items():
                await self.check_trimmed(engine, path, known)

    async def step(self, engine: Engine) -> None:
        chance, path = self.random, self.random.choice(PATHS)
        known = self.known.get(path)
        if known is None:
            with contextlib.suppress(PathBlockedError):  # forks read the stream that was there
                await self.create(engine, path)
            return
        action = chance.choice(["append"] * 6 + ["trim", "trim", "retain", "fork", "wait", "delete"])
        if action == "append":
            for _ in range(chance.randrange(1, 8)):
                body = bytes(chance.choices(b"abcdefghij", k=chance.choice([1, 30, 700])))
                reply = await engine.execute(Append(path, engine.now_ms(), body, TEXT))
                known.data += body
                known.ends.append(len(known.data))
                assert reply.tail is not None
                self.held.append(Held(path, known.id, reply.tail))
        elif action == "trim":
            await self.trim(engine, path, known)
        elif action == "retain":
            await self.retain(engine, path, known)
        elif action == "fork":
            await self.fork(engine, path, known)
        elif action == "wait":
            await asyncio.sleep(chance.choice([0.1, 1, 5]))
        elif chance.random() < 0.3:
            await engine.execute(Delete(path, engine.now_ms()))
            del self.known[path]

    async def create(self, engine: Engine, path: str) -> None:
        bytes_max = self.random.choice([None, None, 50, 2_000])
        retention = None if bytes_max is None else Retention(bytes=bytes_max)
        reply = await engine.execute(Create(path=path, now_ms=engine.now_ms(), content_type=TEXT, retention=retention))
        assert reply.tail is not None
        self.known[path] = Known(reply.tail.id, retention=retention)
        self.held.append(Held(path, reply.tail.id, reply.tail))

    async def trim(self, engine: Engine, path: str, known: Known) -> None:
        """At an offset, at a time or at the tail, and once more."""
        offsets = [held for held in self.held if held.path == path and held.stream_id == known.id]
        if self.random.random() < 0.7 and offsets:
            place: Offset | None = self.random.choice(offsets).offset
            wanted = 0 if place is None else place.position
        else:
            place, wanted = None, len(known.data)
        for _ in range(2):
            reply = await engine.trim(path, before=place)
            known.first = max(known.first, wanted)
            assert reply.first is not None
            await self.sync(engine, path, known)
            assert reply.first.position == known.first
        self.trimmed += 1

    async def retain(self, engine: Engine, path: str, known: Known) -> None:
        bytes_max = self.random.choice([None, 1, 100, 3_000])
        known.changing = True  # either retention may trim meanwhile
        await engine.retain(path, (("bytes", bytes_max),))
        await self.sync(engine, path, known)
        known.retention = None if bytes_max is None else Retention(bytes=bytes_max)
        known.changing = False

    async def fork(self, engine: Engine, path: str, known: Known) -> None:
        target = self.random.choice(PATHS)
        if target in self.known:
            return
        offsets = [held for held in self.held if held.path == path and held.stream_id == known.id]
        held = self.random.choice(offsets) if offsets else None
        request = ForkRequest(path, BEGINNING if held is None else held.offset)
        try:
            reply = await engine.execute(Create(path=target, now_ms=engine.now_ms(), fork=request))
        except PathBlockedError:
            return
        except OffsetTrimmedError:
            await self.sync(engine, path, known)
            assert held is not None
            assert held.offset.position < known.first
            return
        await self.sync(engine, path, known)
        assert reply.tail is not None
        info = await engine.info(target)
        end = reply.tail.position
        self.known[target] = Known(info.id, known.data[:end], info.first, [one for one in known.ends if one <= end])
        assert info.first <= known.first
        self.held.append(Held(target, info.id, reply.tail))
        if held is not None:
            self.held.append(Held(target, info.id, held.offset))

    # Checks

    async def sync(self, engine: Engine, path: str, known: Known) -> None:
        """Take over where the stream begins, which its retention may have moved: to the end of a record, not further
        than it says, and never back."""
        info = await engine.info(path)
        assert info.id == known.id
        assert info.tail == len(known.data)
        if info.first != known.first:
            assert info.first > known.first
            assert info.first in known.ends
            before = max([end for end in known.ends if end < info.first], default=0)
            if not known.changing:
                assert known.retention is not None
                assert info.tail - before > (known.retention.bytes or 0)
            known.first = info.first

    async def check_trimmed(self, engine: Engine, path: str, known: Known) -> None:
        """Nothing is appended, so the retention soon keeps no more than it says, or the last record."""
        tail = len(known.data)
        last = max([end for end in known.ends if end < tail], default=0)

        async def is_trimmed() -> bool:
            await self.sync(engine, path, known)
            most = tail if known.retention is None or known.retention.bytes is None else known.retention.bytes
            return tail - known.first <= most or known.first >= last

        await wait_until_async(is_trimmed)

    async def check_beginning(self, engine: Engine, path: str) -> None:
        known = self.known[path]
        with contextlib.suppress(OffsetTrimmedError):  # by its retention, between two reads
            data = await self.rest(engine, path, BEGINNING)
            before = known.first
            await self.sync(engine, path, known)
            assert data in (known.data[known.first :], known.data[before:])

    async def check(self, engine: Engine, held: Held) -> None:
        """A reader reads from an offset to the tail, in small pieces."""
        known = self.known.get(held.path)
        if known is None or known.id != held.stream_id:
            with pytest.raises((StreamNotFoundError, StreamGoneError, OffsetGoneError)) as gone:
                await self.rest(engine, held.path, held.offset)
            assert not isinstance(gone.value, OffsetTrimmedError)
            return
        first: tuple[int, int] | None = None
        try:
            data = await self.rest(engine, held.path, held.offset)
        except OffsetTrimmedError as error:
            first = error.first
        if first is None:
            assert data == known.data[held.offset.position :]
            self.read += 1
        else:
            await self.sync(engine, held.path, known)
            assert held.offset.position < first[1] == known.first
            self.refused += 1

    async def rest(self, engine: Engine, path: str, offset: Offset) -> bytes:
        """Everything after an offset."""
        data = b""
        while True:
            reply = await engine.read(Read(path, offset, bytes_max=self.random.choice([1, 100, 5_000])))
            data += reply.data
            if reply.at_tail:
                return data
            offset = reply.stream.offset(reply.next)


@pytest.mark.parametrize("seed", [*range(6), 11, 22])
def test_readers_get_what_follows_their_offset_or_are_told(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    machine, readers = SmallMachine(seed), Readers(seed)
    for _ in range(6):
        machine.run(readers.live)
    assert readers.trimmed
    assert readers.refused
    assert readers.read
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
