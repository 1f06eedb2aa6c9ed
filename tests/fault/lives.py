"""A seeded history of a server: clients write and read, the server crashes in many ways, and guarantees are checked.

The guarantees: an acknowledged write is stored once and in order; data that a reader has seen does not disappear; a
retry of a producer is recognised after a crash; closed streams stay closed and deleted ones stay deleted; a fork keeps
its bytes; a stream expires at its time and not before; a request is atomic; times never decrease; `check`
finds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from unittest.mock import patch

from headwater import limits as bounds
from headwater.backoff import Backoff
from headwater.engine import Engine, rows
from headwater.engine.clock import SteadyClock
from headwater.errors import StorageFullError
from headwater.limits import Limits
from headwater.log.commands import WriteDocument, WriteDocuments
from headwater.log.moments import Moment
from headwater.server.following import mirror
from headwater.server.subscriptions import links, subscription
from headwater.server.tables import active, feeds, snapshots, writes
from headwater.store.embedded.disk import Reserve
from headwater.store.embedded.recovery import recover
from headwater.store.embedded.store import EmbeddedStore, Parts
from tests.fault import logs
from tests.fault.clients import ABSENT, Clients
from tests.fault.copies import back_up_and_check, damage_and_salvage, new_directory
from tests.fault.oracle import BrokenPromiseError, KnownStream, check_joint
from tests.fault.rows import check_damaged_row
from tests.fault.sim import DeadlockError, SimFolder, SimIndex, SimLoop, SimReaders, SimRunner, SimSyncer, connect
from tests.fault.sim_disk import CrashError, SimDisk
from tests.fault.subscription_clients import Subscribers, SubscriptionWorld, seams
from tests.fault.world import KEYS, PATHS, World

LIMITS = Limits(
    segment_bytes=4096,
    fold_idle_s=1.0,
    unfolded_segments_max=3,
    streams_loaded_max=3,
    documents_loaded_max=1,
    expiry_sweep_s=0.5,
    expiry_grace_s=2.0,
    read_chunk_bytes=1500,
    sse_chunk_bytes=800,
)
ROUND_S = 0.05
# Smaller limits of tables, so that a history reaches them.
SMALL = (
    (rows, "ROW_PROBE_BYTES", 1200),
    (active, "ACTIVE_STEP_BYTES", 500),
    (active, "ACTIVE_SNAPSHOT_BYTES_MIN", 1500),
    (snapshots, "ACTIVE_SNAPSHOT_RECORD_BYTES", 400),
    (feeds, "BODY_PIECE_BYTES", 700),
    (writes, "CHANGES_INLINE_BYTES", 600),
    (mirror, "FOLLOW_BATCH_BYTES", 500),
    (bounds, "FULL_SEGMENT_BYTES", 300),
    (bounds, "WAKE_STREAMS_MAX", 2),
    (bounds, "SUBSCRIPTION_PENDING_MAX", 3),
    (bounds, "SUBSCRIPTION_WRITES", 2),
    (bounds, "WAKE_TOKEN_S", 10),
    (links, "LIST_PAGE_MAX", 2),
    (subscription, "_TELLS", Backoff(2.0, 20.0)),
)


class Death(Enum):
    POWER_LOSS = "power loss"
    KILL = "kill"
    STOP = "stop"


async def ended(tasks: set[asyncio.Task[object]]) -> None:
    """Wait for tasks. A gather without tasks outside a loop would create a loop that is never closed."""
    await asyncio.gather(*tasks, return_exceptions=True)


def release(engine: Engine) -> None:
    """Let the memory of a server that crashed be freed. Its live readers did not leave and its last batch did not end.
    The garbage collector does not look at streams and commits, and these refer to the engine through readers and
    callers (`LoadedStream`, `PendingRecord`)."""
    for stream in engine._live.watched():
        stream.live = None
    committer = engine._writer.committer
    committer.withdraw()
    committer._in_progress.clear()


class LoopClock:
    """A clock that is always right."""

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def moment(self) -> Moment:
        return Moment(self.now_ms(), self.now_ms(), self.now_ms(), 1)


DAY_S = 86_400.0
WALL_JUMPS_S = (-50.0, -3600.0, 3600.0, 40 * DAY_S, -40 * DAY_S)


@dataclass
class MachineClock:
    """The clocks of the simulated machine. The wall clock jumps in both directions, and the time since boot is that of
    the loop. A power loss is a reboot."""

    random: random.Random
    elapsed: Callable[[], float] = lambda: 0.0
    ahead_s: float = 0.0  # of the wall clock
    base_s: float = 50 * DAY_S  # of the wall clock
    boot: int = 1
    engine: SteadyClock | None = None

    def wall(self) -> float:
        return max(0.0, self.base_s + self.elapsed() + self.ahead_s)

    def start(self, elapsed: Callable[[], float], latest: Moment) -> SteadyClock:
        """The clock of a new life. Without a reboot, it continues by the elapsed time, whatever the wall clock says."""
        before, self.elapsed = self.engine, elapsed
        self.engine = SteadyClock(latest, elapsed, self.wall, lambda: self.boot)
        now_ms = self.engine.now_ms()
        if now_ms < latest.at_ms:
            raise BrokenPromiseError("the engine's time is before that of the journal")
        if latest.boot == self.boot and now_ms > latest.at_ms + int(elapsed() * 1000) - latest.up_ms + 1:
            raise BrokenPromiseError("the engine's time jumped at a restart")
        if before is None and latest.boot:
            raise BrokenPromiseError("a new journal has a moment")
        return self.engine

    def jump(self) -> None:
        """Set the wall clock, forwards or back, or correct it."""
        self.ahead_s = self.random.choice([0.0, self.random.choice(WALL_JUMPS_S)])

    def check(self, since: tuple[float, int]) -> tuple[float, int]:
        """The engine's time has advanced like the elapsed time."""
        if self.engine is None:
            raise RuntimeError("the machine was not started")
        elapsed_ms = (self.elapsed() - since[0]) * 1000
        now_ms = self.engine.now_ms()
        if not 0 <= now_ms - since[1] <= elapsed_ms * 1.01 + 12:  # it approaches the wall clock once a second
            raise BrokenPromiseError(f"the engine's time advanced {now_ms - since[1]} ms in {elapsed_ms} ms")
        return self.elapsed(), now_ms


@dataclass
class History:
    seed: int
    make_store: Callable[..., EmbeddedStore] = EmbeddedStore
    make_syncer: Callable[[SimDisk], SimSyncer] = SimSyncer
    lives: int = 6
    paths: tuple[str, ...] = PATHS
    conditional: float = 0.0
    subscribed: bool = False  # there are subscriptions too

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.directory = new_directory(self.random, SimIndex())
        self.clock = MachineClock(self.random)
        self.disk = self.directory.disk
        self.world = World(self.random, self.disk, self.paths, self.conditional)
        self.subscriptions = SubscriptionWorld()
        self.now_s = 1_000.0
        self.engines: list[Engine] = []  # of the present life

    def run(self) -> str:
        """Run all lives. Returns a digest of everything that happened."""
        with contextlib.ExitStack() as small:
            small.enter_context(logs.dropped())
            for module, name, value in (*SMALL, *seams(self.random)):
                small.enter_context(patch.object(module, name, value))
            try:
                return self._run()
            finally:
                gc.collect()  # few objects, of which the disks and indexes are large, so it would not run by itself

    def _run(self) -> str:
        for life in range(self.lives):
            self.random.seed(f"{self.seed} {life}")  # independent of the random numbers at the end of the previous life
            if life:
                self._restart()
            last = life == self.lives - 1
            if not last:
                # Subscriptions write more, and should live for some time.
                steps = [60, 400, 1500, 4000] if self.subscribed else [15, 60, 400, 1500]
                self.disk.crash_in = self.random.randint(1, self.random.choice(steps))
            self._run_life(last=last)
        self.directory.check()
        return self.disk.trace.hexdigest()

    def _restart(self) -> None:
        power_lost = self.random.choice([Death.POWER_LOSS, Death.KILL]) is Death.POWER_LOSS
        self.disk.restart(power_lost=power_lost)
        self.clock.boot += power_lost
        if self.random.random() < 0.3:
            self.clock.jump()
        self.directory.index.restart()
        self.disk.full, self.disk.reserved = self.random.random() < 0.2, False
        self.now_s = max(1.0, self.now_s + self.random.choice([0.0, 0.5, 0.5, 3.0, 30.0]))
        self.directory.check()
        if self.random.random() < 0.3:
            damage_and_salvage(self.directory, self.world)
        if self.random.random() < 0.3:
            check_damaged_row(self.directory, self.random)

    def _run_life(self, *, last: bool) -> None:
        loop = SimLoop(self.now_s)
        try:
            loop.run_until_complete(self._live_until_crash(last=last))
        except CrashError:
            pass
        except DeadlockError:
            if not self.disk.crashed:  # otherwise all tasks wait for a crashed machine
                raise
        finally:
            self.disk.crashed = True  # pending work does not reach the disk
            self.now_s = loop.time()
            self.world.end_life(self.clock.engine.now_ms() if self.clock.engine is not None else 0)
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            with contextlib.suppress(BaseException):  # a crashed machine, or an endless wait
                loop.run_until_complete(ended(tasks))
            loop.close()
            for engine in self.engines:
                release(engine)
            self.engines.clear()
        if loop.failures:
            raise loop.failures[0]

    def _open(self) -> EmbeddedStore:
        def salt() -> int:
            return self.random.getrandbits(32)

        disk, index = self.directory.disk, self.directory.index
        parts = Parts(
            disk=disk,
            connect=lambda: connect(disk, index),
            syncer=self.make_syncer(disk),
            helper=SimRunner(disk),
            writer=SimRunner(disk),
            folder=SimFolder(disk, index),
            readers=SimReaders(disk),
            salt=salt,
            reserve=Reserve(disk, 4096),
            large_batch_bytes=400,
        )
        return self.make_store(parts, recover(disk, connect(disk, index)), LIMITS)

    async def _start(self, fatal: list[BaseException]) -> Engine:
        """Start a server. If there are no descriptors, it fails without any change."""
        if self.random.random() < 0.05:
            self.disk.no_descriptors = errno.EMFILE
            with contextlib.suppress(OSError, sqlite3.OperationalError):
                await self._engine([]).start()
            self.disk.no_descriptors = 0
        engine = self._engine(fatal)
        await engine.start()
        return engine

    def _engine(self, fatal: list[BaseException]) -> Engine:
        store = self._open()
        clock = self.clock.start(asyncio.get_running_loop().time, store.latest)
        self.engines.append(Engine(store, LIMITS, clock=clock, fatal=fatal.append))
        return self.engines[-1]

    async def _live_until_crash(self, *, last: bool) -> None:
        life = asyncio.ensure_future(self._live(last=last))
        while not self.disk.crashed and not life.done():
            await asyncio.wait((life,), timeout=ROUND_S)
        if life.done():
            life.result()

    async def _live(self, *, last: bool) -> None:
        fatal: list[BaseException] = []
        engine = await self._start(fatal)
        if self.random.random() < 0.2 and not last:
            self.disk.failing_sync_in = self.random.randint(0, 60)
        clients = Clients(self.world, engine, LIMITS)
        await self._check_promises(clients, engine)
        clients.start()
        subscribers = Subscribers(self.world, self.subscriptions, engine) if self.subscribed else None
        if subscribers is not None:
            await subscribers.start()
        backup = asyncio.ensure_future(self._back_up())
        rounds = 0
        since = self.clock.check((asyncio.get_running_loop().time(), engine.now_ms()))
        while not self.disk.crashed and not fatal and rounds < (40 if last else 200):
            await asyncio.sleep(ROUND_S)
            rounds += 1
            self._change_weather(clients, rounds, last=last)
            since = self.clock.check(since)
            clients.check()
            if subscribers is not None:
                subscribers.check()
            if backup.done():
                backup.result()
        self.disk.full, self.disk.no_descriptors, self.disk.failing_sync_in = False, 0, None
        self.disk.deadly = 0.0
        if not fatal:
            await clients.stop()
            clients.check()
        if not fatal and subscribers is not None:
            await subscribers.stop()
            subscribers.check()
        if not fatal:
            await self._end(clients, engine, subscribers, last=last)
        elif not self.disk.failed_syncs:
            raise fatal[0]

    async def _back_up(self) -> None:
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.random() * 5)
            await back_up_and_check(self.directory, self.world)

    def _change_weather(self, clients: Clients, rounds: int, *, last: bool) -> None:
        """At random times the disk is full, no file can be opened, the clock is set, or the clients pause."""
        if rounds % 4 == 0 and not last:
            self._fill_or_free()
            self.disk.deadly = self.random.choice([0.0, 0.0, 0.3, 0.9])
            self.disk.no_descriptors = self.random.choice([errno.EMFILE, errno.ENFILE]) * (self.random.random() < 0.08)
        if rounds % 10 == 0 and self.random.random() < 0.2:
            self.clock.jump()
        if rounds % 40 == 0:
            clients.quiet = self.random.random() < 0.3

    def _fill_or_free(self) -> None:
        """Fill the disk, or free all or a part of its space."""
        disk, was_full = self.disk, self.disk.full
        if was_full and self.random.random() < 0.5:
            disk.add_capacity(self.random.choice([500, 4096, 9000, 13000]))
            return
        disk.full = self.random.random() < 0.1
        if disk.full and not was_full:
            kept = [disk.nodes[name].allocated for name in ("reserve", "spare.journal") if name in disk.nodes]
            disk.reserved = len(kept) == 2 and all(kept)  # a file without space is one that did not fit

    async def _end(self, clients: Clients, engine: Engine, subscribers: Subscribers | None, *, last: bool) -> None:
        """End a life without a crash."""
        await self._check_recovered(engine)
        await self._check_promises(clients, engine)
        await self._check_catalogue(engine)
        if subscribers is not None:
            subscribers.check()
        if subscribers is not None and (last or self.random.random() < 0.3):
            await subscribers.calm()
        if last or self.random.random() < 0.5:
            if subscribers is not None:
                await subscribers.service.stop()
            await engine.stop()

    # Guarantees

    async def _check_promises(self, clients: Clients, engine: Engine) -> None:
        contents: dict[KnownStream, bytes] = {}
        for path in self.world.paths:
            known = await self._known_at(engine, path)
            if known is not None:
                await self._check_stream(clients, known, contents)
        documents = {key: await engine.document(key) for key in KEYS}
        for key, document in documents.items():
            self.world.documents[key].settle(document)
        check_joint(
            self.world.joint, contents, {key: document.data if document else b"" for key, document in documents.items()}
        )
        self.world.uncertain.clear()

    async def _known_at(self, engine: Engine, path: str) -> KnownStream | None:
        """The known stream at a path. Its creation may have been in progress at the crash."""
        streams, known = self.world.streams, self.world.streams.get(path)
        try:
            stream = await engine.info(path)
        except ABSENT:
            self.world.note_absent(path, engine.now_ms())
            return known
        if known is not None and known.id in (None, stream.id):
            return known
        expired = self.world.expired.get(path)
        if known is None and expired is not None and expired.id == stream.id:
            streams[path] = self.world.expired.pop(path)  # `look` checks whether the clock was set back
        elif self.world.may_exist(stream) and (known is None or not known.must_exist(self.world.latest_ms)):
            streams[path] = KnownStream(path, self.world.next_generation(), may_be_closed=True)
            self.world.unseen.pop(path, None)
        else:
            raise BrokenPromiseError(f"{path} exists again after its deletion")
        return streams[path]

    async def _check_stream(self, clients: Clients, known: KnownStream, contents: dict[KnownStream, bytes]) -> None:
        await clients.look(known)
        if self.world.streams.get(known.path) is not known:
            return
        with clients.using(known):
            content = await clients.content(known.path)
            if content is None:
                self.world.lose(known, clients.now_ms())
                return
        stream, whole = content
        known.check_whole(whole)
        if known.is_table:
            with clients.using(known):
                await clients.tables.check(known)
        await clients.check_times(known, stream)
        contents[known] = whole
        known.closed, known.may_be_closed, known.may_be_deleted = stream.closed, False, False

    async def _check_recovered(self, engine: Engine) -> None:
        """Writes are accepted again when the disk works and has space."""
        probe = WriteDocuments((WriteDocument("probe", b"0"),))
        for _ in range(30):
            with contextlib.suppress(StorageFullError):
                await engine.execute(probe)
                return
            await asyncio.sleep(1)
        raise BrokenPromiseError("the disk has space again, but writes are refused")

    async def _check_catalogue(self, engine: Engine) -> None:
        """Streams in memory equal those of the store, and no deleted stream without forks is kept."""
        store = engine._store
        for loaded in list(engine._catalogue._ids.values()):
            before = (0, loaded.state.version, loaded)
            if loaded.pending:
                continue
            state = await store.load_id(loaded.id)
            if before != (loaded.pending, loaded.state.version, engine._catalogue.by_id(loaded.id)):
                continue  # it changed in the meantime
            if state is None:
                raise BrokenPromiseError(f"{loaded.path} is in memory, but not in the store")
            own = (loaded.tail, loaded.closed, loaded.state.soft_deleted, loaded.state.forks)
            if own != (state.tail, state.closed, state.soft_deleted, state.forks):
                raise BrokenPromiseError(f"{loaded.path} differs between memory and store")
        for state in (await store.page("", "", 1000)).states:
            if state.soft_deleted and state.forks == 0:
                raise BrokenPromiseError(f"{state.path} is deleted and has no forks, but is kept")
