"""A worker of a subscription whose streams are trimmed, compacted, forked, deleted and created again meanwhile, in
virtual time: what it has folded when nothing is pending is the state of every stream, and no further wake begins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import (
    FencedError,
    HeadwaterError,
    InvalidAckError,
    NoPendingWorkError,
    OffsetGoneError,
    OffsetTrimmedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.limits import Limits
from headwater.log import state as log_state
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.log.moments import Moment
from headwater.log.offsets import BEGINNING, Offset
from headwater.log.retention import Retention
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.subscriptions.config import Ack, AckBody, ClaimBody, Delivery, SubscriptionConfig
from headwater.server.auth.grants import Grant, GrantedCallers
from headwater.server.compacting.compactor import Compactor
from headwater.server.subscriptions.records import SubscriptionRecord, WakeStream
from headwater.server.subscriptions.subscriptions import Subscriptions
from headwater.store.memory import MemoryStore
from tests.compacting import LocalContent
from tests.fault.sim import SimLoop
from tests.quick import quick

JSON = "application/json"
PATHS = ("s/a", "s/b", "s/f")
SMALL = Limits(compact_bytes_min=300, expiry_sweep_s=0.5)
RETENTION = Retention(compact=True, compact_after_s=1)
ABSENT = (StreamNotFoundError, StreamGoneError)
CLOCK_MS = 1_700_000_000_000  # ids come from the clock, and must be large enough for compaction

State = dict[str, int]


@dataclass
class Life:
    """One incarnation of a stream: its events, and where a reader may have begun."""

    id: int
    base: State = field(default_factory=dict)  # of a fork: what it inherits
    events: list[tuple[int, str, int | None]] = field(default_factory=list)  # end of the record, key, value
    trims: list[int] = field(default_factory=lambda: [0])
    folded: State = field(default_factory=dict)  # by the worker

    def states(self) -> list[State]:
        """What a reader may have, who began at the beginning, or after a trim."""
        return [self._after(trim) for trim in self.trims]

    def _after(self, trim: int) -> State:
        state = dict(self.base) if trim == 0 else {}
        for end, key, value in self.events:
            if end > trim:
                _put(state, key, value)
        return state


def _put(state: State, key: str, value: int | None) -> None:
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value


def _fold(state: State, data: bytes) -> None:
    for message in json.loads(b"[%b]" % data[:-1]) if data else ():
        control = message["headers"].get("control")
        if control in ("snapshot-start", "reset"):
            state.clear()
        elif control is None:
            _put(state, message["key"], message.get("value"))


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lives: dict[str, Life] = {}
        self.number = 0
        self.reached: set[str] = set()

    async def run(self, engine: Engine) -> None:
        self.engine = engine
        self.compactor = Compactor(engine, SMALL, LocalContent)
        await self.compactor.start()
        outbound = SimpleNamespace(aclose=lambda: asyncio.sleep(0))
        self.service = Subscriptions(engine, outbound, GrantedCallers(None))  # type: ignore[arg-type]
        await self.service.start()
        self.service.begin()
        await engine.execute(Create(path="wake", now_ms=engine.now_ms(), content_type=JSON))
        config = SubscriptionConfig(Delivery.PULL_WAKE, "s/*", (), wake_stream="wake", lease_ttl_ms=2000)
        wanted = SubscriptionRecord("s", "", config, engine.now_ms(), Grant(""), "http://server.example")
        self.subscription, _ = await self.service.create(wanted)
        await asyncio.gather(*[self._repeat(one) for one in (self._write, self._write, self._change, self._work)])
        await self._drain()
        await self.service.stop()
        await self.compactor.stop()

    async def _repeat(self, step: Callable[[], Awaitable[object]]) -> None:
        for _ in range(80):
            await asyncio.sleep(self.random.choice([0.0, 0.01, 0.1, 0.5]))
            await step()

    # The streams

    async def _write(self) -> None:
        path = self.random.choice(PATHS)
        life = self.lives.get(path)
        if life is None:
            await self._create(path)
            return
        self.number += 1
        key, value = f"k{self.random.randrange(4)}", None if self.random.random() < 0.2 else self.number
        operation = "delete" if value is None else "upsert"
        event: dict[str, Any] = {"type": "t", "key": key, "headers": {"operation": operation}}
        if value is not None:
            event |= {"value": value, "pad": "x" * 60}
        body = json.dumps(event).encode()
        try:
            reply = await self.engine.execute(Append(path, self.engine.now_ms(), body, JSON))
        except ABSENT:
            return
        if reply.tail is not None and reply.tail.id == life.id:
            life.events.append((reply.tail.position, key, value))
            life.events.sort()

    async def _create(self, path: str) -> None:
        sources = [one for one in self.lives if one != path]
        fork = ForkRequest(self.random.choice(sources)) if path == "s/f" and sources else None
        command = Create(path=path, now_ms=self.engine.now_ms(), content_type=JSON, retention=RETENTION, fork=fork)
        with contextlib.suppress(HeadwaterError):  # a fork still reads the deleted stream at the path
            reply = await self.engine.execute(command)
            if reply.existed:
                return
            life = Life((await self.engine.info(path)).id)
            if fork is not None:
                await self._read(path, BEGINNING, life.base)
                life.folded = dict(life.base)
                self.reached.add("fork")
            self.lives[path] = life

    async def _change(self) -> None:
        path, action = self.random.choice(PATHS), self.random.random()
        life = self.lives.get(path)
        if life is None:
            return
        with contextlib.suppress(HeadwaterError):
            if action < 0.6:
                self.reached.add("compact" if (await self.compactor.compact_now(path)).compacted else "skip")
            elif action < 0.85 and life.events:
                end = self.random.choice(life.events)[0]
                life.trims.append(end)
                await self.engine.trim(path, before=Offset(life.id, end))
                self.reached.add("trim")
            elif action > 0.93:
                del self.lives[path]
                await self.engine.execute(Delete(path, self.engine.now_ms()))
                self.reached.add("delete")

    async def _read(self, path: str, offset: Offset, state: State) -> list[Offset]:
        """Fold what follows an offset, in small reads. Returns where they ended."""
        places = []
        while True:
            reply = await self.engine.read(Read(path, offset, bytes_max=self.random.choice([1, 300, 3000])))
            _fold(state, reply.data)
            offset = reply.stream.offset(reply.next)
            places.append(offset)
            if reply.at_tail:
                return places

    # The worker

    async def _work(self) -> None:
        try:
            wake, streams = await self.subscription.claim(ClaimBody("worker"))
        except NoPendingWorkError:
            return
        acks: list[Ack] = []
        for stream in streams:
            place = await self._process(stream)
            if place is not None:
                acks.append(Ack(format_offset(place), stream.path))
        body = AckBody(wake.id, wake.generation, acks, done=True)
        token = self.subscription.token(wake)
        try:
            await self.subscription.ack(token, body)
        except InvalidAckError:  # a stream was deleted meanwhile, or what was read of its snapshot is replaced
            await self.subscription.release(token, AckBody(wake.id, wake.generation, [], done=True))
        except FencedError:
            self.reached.add("fenced")  # the subscription's lease has ended meanwhile

    async def _process(self, stream: WakeStream) -> Offset | None:
        """Fold what is pending. Returns up to where it is acked: a place that was reached, or the tail of the wake."""
        life = self.lives.get(stream.path)
        if life is None or life.id != stream.tail.id:
            return None
        try:
            places = await self._read(stream.path, stream.acked or BEGINNING, life.folded)
        except OffsetTrimmedError:
            self.reached.add("trimmed")
            try:
                life.folded.clear()
                places = await self._read(stream.path, BEGINNING, life.folded)
            except HeadwaterError:
                return None
        except (*ABSENT, OffsetGoneError):
            return None
        return self.random.choice(places)

    async def _drain(self) -> None:
        """Work until nothing is pending. Then the worker has every stream, and no wake begins."""
        for _ in range(300):
            if self.subscription.wakes.wake is None and not self.subscription.pending:
                break
            await self._work()
            await asyncio.sleep(0.5)
        else:
            raise AssertionError(f"there is always something pending: {self.subscription.wakes}")
        generation = self.subscription.wakes.generation
        await asyncio.sleep(10)
        assert self.subscription.wakes.generation == generation, "a wake began although nothing was appended"
        for path, life in self.lives.items():
            stream = await self.engine.info(path)
            if stream.id == life.id and stream.first < stream.tail:  # what was trimmed is not pending, nor is it read
                assert life.folded in life.states(), (path, life.folded, life.states())


class VirtualClock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return CLOCK_MS + int(self._loop.time() * 1000)

    def moment(self) -> Moment:
        return Moment(self.now_ms(), self.now_ms(), self.now_ms(), 1)


def run(seed: int) -> set[str]:
    loop = SimLoop()
    world = World(seed)

    async def live() -> None:
        engine = Engine(MemoryStore(), SMALL, clock=VirtualClock(loop))
        await engine.start()
        await world.run(engine)
        await engine.stop()

    small = (
        (log_state, "COMPACT_GRACE_S", 2),
        (bounds, "COMPACT_AFTER_S_MIN", 1),
        (bounds, "COMPACT_READ_BYTES", 700),
        (bounds, "COMPACT_RECORD_BYTES", 150),
    )
    try:
        with contextlib.ExitStack() as patches:
            for module, name, value in small:
                patches.enter_context(patch.object(module, name, value))
            loop.run_until_complete(live())
    finally:
        loop.close()
    return world.reached


@pytest.mark.parametrize("seed", quick(4, range(60)))
def test_a_worker_has_every_stream_when_nothing_is_pending(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_the_seeds_reach_the_rare_cases() -> None:
    reached: set[str] = set()
    for seed in range(12):
        reached |= run(seed)
    assert reached >= {"compact", "trim", "trimmed", "fork", "delete"}
