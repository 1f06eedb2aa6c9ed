"""A seeded history of several servers that share a simulated database."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field

from headwater.engine import Engine
from headwater.errors import HeadwaterError
from headwater.limits import Limits
from tests.fault import logs
from tests.fault.lives import ended
from tests.fault.oracle import BrokenPromiseError
from tests.fault.shared_clients import PATHS, Server, SharedClients
from tests.fault.shared_history import SKEW_MS
from tests.fault.shared_sim import Machine, MachinesLoop, MachineState, SimDatabase, SimSharedStore
from tests.fault.sim import DeadlockError

LIMITS = Limits(streams_loaded_max=3, documents_loaded_max=1, expiry_sweep_s=0.7, expiry_grace_s=0)
ROUND_S = 0.05


@dataclass
class SharedHistory:
    """Servers, clients and faults, from a seed."""

    seed: int
    servers: int = 0  # 0: two or three
    rounds: int = 160
    clients_count: int = 10
    faults: bool = True
    started: int = field(default=0, init=False)

    def run(self) -> str:
        """Run the history. Returns a digest of everything that was stored."""
        with logs.dropped():
            return self._digest()

    def _digest(self) -> str:
        self.random = random.Random(self.seed)
        loop = MachinesLoop()
        try:
            loop.run_until_complete(self._run())
        finally:
            with contextlib.suppress(DeadlockError):
                loop.run_until_complete(self._end())
            loop.close()
        if loop.failures:
            raise loop.failures[0]
        return self.database.history.digest.hexdigest()

    async def _end(self) -> None:
        """Cancel all that is in progress, also on machines that are paused or dead, and what that starts."""
        self.database.watchers.clear()
        for machine in self.machines:
            machine.resume()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await ended(tasks)

    def __post_init__(self) -> None:
        self.machines: list[Machine] = []

    async def _run(self) -> None:
        self.database = SimDatabase(self.random)
        count = self.servers or self.random.choice([2, 2, 3])
        self.running: list[Server | None] = [None] * count
        self.fatal: list[BaseException] = []
        for place in range(count):
            await self._start(place)
        self.clients = SharedClients(self.database, self.running, self.random)
        self.clients.start(self.clients_count)
        for _ in range(self.rounds):
            await asyncio.sleep(ROUND_S)
            if self.faults:
                await self._change_weather()
            self._check()
        await self._heal()
        await self.clients.stop()
        self._check()
        await self._check_end()

    def _check(self) -> None:
        if self.database.broken:
            raise self.database.broken[0]
        self.clients.check()
        if self.fatal:
            raise self.fatal[0]

    async def _start(self, place: int) -> None:
        self.started += 1
        machine = Machine(self.started, self.random.randint(-SKEW_MS // 2, SKEW_MS // 2))
        self.machines.append(machine)

        async def start() -> Engine:
            store = SimSharedStore(self.database, machine, self.started)
            engine = Engine(store, LIMITS, clock=machine, fatal=self.fatal.append)
            while True:
                try:
                    await engine.start()
                except HeadwaterError:
                    await asyncio.sleep(0.1)
                else:
                    return engine

        loop = asyncio.get_running_loop()
        engine = await loop.create_task(start(), context=machine.context())
        self.running[place] = Server(machine, engine, loop.create_future())

    # Faults

    async def _change_weather(self) -> None:
        rng, database = self.random, self.database
        if rng.random() < 0.03:
            self._pause(rng.randrange(len(self.running)))
        if rng.random() < 0.015:
            await self._kill(rng.randrange(len(self.running)))
        if rng.random() < 0.02:
            database.down_until_s = database.time_s + rng.choice([0.1, 0.5, 2.0])
        if rng.random() < 0.01:
            database.full_until_s = database.time_s + rng.choice([0.1, 1.0])
        if rng.random() < 0.1:
            database.loss = rng.choice([0.0, 0.0, 0.1, 0.4])
            database.slow = rng.choice([1.0, 1.0, 1.0, 10.0, 50.0])

    def _pause(self, place: int) -> None:
        server = self.running[place]
        if server is None or server.machine.state is not MachineState.RUNNING:
            return
        machine = server.machine
        machine.state = MachineState.PAUSED

        def resume() -> None:
            if machine.state is MachineState.PAUSED:
                machine.resume()

        self.database.later(self.random.choice([0.05, 0.5, 1.5, 4.0]), resume)

    async def _kill(self, place: int) -> None:
        server = self.running[place]
        if server is None:
            return
        self.running[place] = None
        server.machine.state = MachineState.DEAD
        self.database.watchers.pop(server.machine.number, None)
        server.died.set_result(None)
        self.clients.readers = [one for one in self.clients.readers if one[0] is not server]
        await self._start(place)

    async def _heal(self) -> None:
        """From now on everything works."""
        database = self.database
        database.down_until_s = database.full_until_s = 0.0
        database.loss, database.slow = 0.0, 1.0
        for server in self.running:
            if server is not None and server.machine.state is MachineState.PAUSED:
                server.machine.resume()

    # The end

    async def _check_end(self) -> None:
        await asyncio.sleep(8)  # late transactions, locks, and a few polls
        self._check()
        for server in self.running:
            if server is None:
                raise BrokenPromiseError("a server did not start")
            for path in PATHS:
                await self.clients._info(path, "")
        for server, reader in self.clients.readers:
            if server in self.running:
                reader.check_end()
        for server in self.running:
            if server is not None:
                await self._check_server(server)
                task = asyncio.get_running_loop().create_task(server.engine.stop(), context=server.machine.context())
                await asyncio.wait_for(task, 60)
        if self.clients.answers < 20:
            raise BrokenPromiseError(f"there were only {self.clients.answers} answers")

    async def _check_server(self, server: Server) -> None:
        """Nothing is left in progress for ever. Sweeps go on."""
        sharing = server.engine._writer.sharing
        for _ in range(100):
            pending = [stream.path for stream in server.engine._catalogue._ids.values() if stream.pending]
            if sharing is not None and not sharing._held and not pending:
                return
            await asyncio.sleep(0.05)
        raise BrokenPromiseError(f"{pending} have pending events, or states are held, for ever")
