"""A seeded history of a server that compacts its streams and tables, and crashes in many ways meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from unittest.mock import patch

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.log import state as log_state
from headwater.server.compacting.compactor import Compactor
from tests.compacting import LocalContent
from tests.fault.compaction_clients import SMALL_COMPACTIONS, SMALL_GRACE_S, CompactionClients, CompactionWorld
from tests.fault.lives import DAY_S, ROUND_S, Death, History, MachineClock
from tests.fault.oracle import BrokenPromiseError

SMALL = (
    (log_state, "COMPACT_GRACE_S", SMALL_GRACE_S),
    (bounds, "COMPACT_AFTER_S_MIN", 1),
    (bounds, "COMPACT_READ_BYTES", 700),
    (bounds, "COMPACT_RECORD_BYTES", 150),
    (bounds, "COMPACT_LOOK_S_MIN", 0.5),
    (bounds, "COMPACT_RETRY_S", 0.2),
)
TODAY_S = 20_000 * DAY_S  # ids come from the clock, and must be large enough for compaction


@dataclass
class CompactedHistory(History):
    """A history of streams that are compacted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clock = MachineClock(self.random, base_s=TODAY_S)
        self.compactions = CompactionWorld(self.random, self.disk)

    def run(self) -> str:
        with ExitStack() as small:
            for module, name, value in SMALL:
                small.enter_context(patch.object(module, name, value))
            return super().run()

    def _restart(self) -> None:
        power_lost = self.random.choice([Death.POWER_LOSS, Death.KILL]) is Death.POWER_LOSS
        self.disk.restart(power_lost=power_lost)
        self.clock.boot += power_lost
        self.directory.index.restart()
        self.disk.full, self.disk.reserved = self.random.random() < 0.1, False
        self.now_s = max(1.0, self.now_s + self.random.choice([0.0, 0.5, 0.5, 3.0, 30.0]))
        self.directory.check()

    async def _live(self, *, last: bool) -> None:
        fatal: list[BaseException] = []
        engine = await self._start(fatal)
        clients = CompactionClients(self.compactions, engine)
        await clients.start()
        rounds = 0
        while not self.disk.crashed and not fatal and rounds < (60 if last else 200):
            await asyncio.sleep(ROUND_S)
            rounds += 1
            if rounds % 4 == 0 and not last:
                self._fill_or_free()
                self.disk.deadly = self.random.choice([0.0, 0.0, 0.3])
            clients.check()
        self.disk.full, self.disk.deadly = False, 0.0
        if fatal:
            raise fatal[0]
        await clients.stop()
        clients.check()
        await self._check_recovered(engine)
        await clients.check_all()
        await self._check_snapshots(engine)
        if last or self.random.random() < 0.5:
            await engine.stop()

    async def _check_snapshots(self, engine: Engine) -> None:
        """There are the snapshots that streams use, and no others."""
        await Compactor(engine, SMALL_COMPACTIONS, LocalContent)._remove_unused()
        states = (await engine._store.page("", "", 1_000)).states
        hidden = {state.id: state for state in states if state.path.startswith(bounds.SNAPSHOT_PREFIX)}
        used = Counter(snapshot.id for state in states for snapshot in state.snapshots)
        if {stream_id: state.forks for stream_id, state in hidden.items()} != used:
            raise BrokenPromiseError(f"the snapshots {sorted(hidden)} are there, and {used} are used")
        if not all(state.soft_deleted for state in hidden.values()):
            raise BrokenPromiseError("a snapshot that is used is not hidden")
