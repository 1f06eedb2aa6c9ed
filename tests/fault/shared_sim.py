"""A simulated database that several servers share: requests take virtual time, arrive late or get lost, and servers
pause, die and start again.

The servers are in one event loop. Each callback of a server runs in a context that names its machine, so that a machine
can be stopped between any two of them, as SIGSTOP does.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from headwater.errors import ServerError, UnavailableError
from headwater.log.events import DOCUMENT_EVENTS, Created, Deleted, Record
from headwater.log.moments import NEVER, Moment
from headwater.log.state import Document, StreamState
from headwater.store.contract import (
    Commit,
    DocumentKey,
    Done,
    Due,
    Expects,
    HeldRole,
    Key,
    Moved,
    NotStoredError,
    OutdatedError,
    RefusedError,
    StatePage,
    StoreReport,
    version_of,
)
from headwater.store.memory import MemoryStore
from headwater.store.pieces import Piece, RecordEnd
from tests.fault.shared_history import StateHistory
from tests.fault.sim import SimLoop

T = TypeVar("T")

LOCK_S = 1.0  # after which a lock is released by itself
PAGE = 3  # how many moved streams a query returns


class MachineState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(eq=False)
class Machine:
    """A machine with a server. What it is to do while it is paused is done afterwards; what a dead one is to do, when
    the history ends, so that its tasks can be cancelled."""

    number: int
    skew_ms: int
    state: MachineState = MachineState.RUNNING
    deferred: list[tuple[Callable[..., object], tuple[Any, ...], contextvars.Context]] = field(default_factory=list)

    def context(self) -> contextvars.Context:
        context = contextvars.Context()
        context.run(MACHINE.set, self)
        return context

    def resume(self) -> None:
        self.state = MachineState.RUNNING
        deferred, self.deferred = self.deferred, []
        for callback, arguments, context in deferred:
            asyncio.get_running_loop().call_soon(callback, *arguments, context=context)

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.skew_ms

    def moment(self) -> Moment:
        return Moment(self.now_ms(), self.now_ms(), self.now_ms(), 1)


MACHINE: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


class MachinesLoop(SimLoop):
    """A loop that runs no callbacks of machines that are paused or dead."""

    def call_soon(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._run, callback, arguments, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *arguments: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self._run, callback, arguments, context=context)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Tasks of dead machines are collected at any time."""
        exception = context.get("exception")
        if "asynchronous generator" not in f"{exception}" and not isinstance(exception, ServerError):
            super()._note(loop, context)

    def _run(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        machine = MACHINE.get()
        if machine is None or machine.state is MachineState.RUNNING:
            callback(*arguments)
        else:
            machine.deferred.append((callback, arguments, contextvars.copy_context()))


class LostError(Exception):
    """A connection was lost: it is unknown whether the database has done what it was asked."""


class LateError(Exception):
    """A transaction of an earlier epoch of its server."""


@dataclass
class ServerRow:
    epoch: int = 0
    batch: int = 0
    outdated: list[int] = field(default_factory=list)  # of this batch


@dataclass(eq=False)
class Attempt:
    """A batch on its way to the database, after one that is in progress on the same connection."""

    server: int
    epoch: int
    number: int
    batch: list[Commit]
    former: Attempt | None
    is_over: bool = False  # the database has answered it
    is_dropped: bool = False  # it never arrives
    is_lost: bool = False
    is_complete: bool = False  # all of it is stored
    last: ServerRow | None = None  # of the server, after the connection was lost
    again: Attempt | None = None  # on the next connection
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class LockSet:
    server: int
    keys: frozenset[Key]
    until_s: float


class SimDatabase:
    """The database: what it does is done at one moment."""

    def __init__(self, rng: random.Random) -> None:
        self.random = rng
        self.data = MemoryStore()
        self.history = StateHistory(self.data)
        self.rows: dict[int, ServerRow] = {}
        self.locks: list[LockSet] = []
        self.last_id = 0
        self.deleted_ids: dict[str, int] = {}  # the largest one of each path
        self.broken: list[Exception] = []  # guarantees that a commit has violated
        self.down_until_s = 0.0
        self.full_until_s = 0.0
        self.loss = 0.0  # share of the commits whose connection is lost
        self.slow = 1.0
        self.moves: list[tuple[int, Moved]] = []  # with the server
        self.watchers: dict[int, tuple[Machine, Callable[[Sequence[Moved]], None]]] = {}

    @property
    def time_s(self) -> float:
        return asyncio.get_running_loop().time()

    def delay_s(self) -> float:
        return self.slow * self.random.choice([0.0002, 0.0005, 0.001, 0.001, 0.004, 0.02])

    def later(self, delay_s: float, work: Callable[[], None], machine: Machine | None = None) -> None:
        context = contextvars.Context() if machine is None else machine.context()
        asyncio.get_running_loop().call_later(delay_s, work, context=context)

    # Versions and locks

    def version(self, key: Key) -> int:
        if isinstance(key, DocumentKey):
            return version_of(self.data._documents.get(key.key))
        if isinstance(key, str):
            return self.data._ids.get(key, 0)
        state = self.state(key)
        return 0 if state is None else state.version

    def state(self, key: int | str) -> StreamState | None:
        stream_id = self.data._ids.get(key) if isinstance(key, str) else key
        return None if stream_id is None else self.data._states.get(stream_id)

    def is_locked(self, server: int, keys: Collection[Key]) -> bool:
        """Whether another server has locked one of these."""
        self.locks = [lock for lock in self.locks if lock.until_s > self.time_s]
        return any(lock.server != server and not lock.keys.isdisjoint(keys) for lock in self.locks)

    def lock(self, server: int, keys: Collection[Key]) -> dict[Key, StreamState | Document | None]:
        existing = frozenset(key for key in keys if self.version(key))
        self.locks.append(LockSet(server, existing, self.time_s + LOCK_S))
        return {key: self._value(key) for key in keys}

    def _value(self, key: Key) -> StreamState | Document | None:
        if isinstance(key, DocumentKey):
            return self.data._documents.get(key.key)
        state = self.state(key)
        return None if state is None else state.copy()

    # Commits

    def fence(self, server: int) -> tuple[int, ServerRow]:
        """The last batch of a server. Transactions that began before are refused from now on."""
        row = self.rows[server]
        row.epoch += 1
        return row.epoch, row

    def execute(self, attempt: Attempt) -> list[int]:
        """Store the records of a batch that hold, and return the indices of the others."""
        server, batch = attempt.server, attempt.batch
        row = self.rows[server]
        if not self.is_current(row, attempt.epoch):
            raise LateError
        if attempt.former is not None and not self.follows(row, attempt.number):
            raise NotStoredError
        if self.full_until_s > self.time_s:
            raise RefusedError("the disk of the database is full")
        outdated = self.outdated(batch)
        stored = [commit for index, commit in enumerate(batch) if index not in outdated and commit.record]
        self.locks = [
            lock
            for lock in self.locks
            if lock.server != server or all(lock.keys.isdisjoint(one.expects or ()) for one in batch)
        ]
        row.batch, row.outdated = attempt.number, sorted(outdated)
        if stored:
            self._apply(server, stored)
        return row.outdated

    def is_current(self, row: ServerRow, epoch: int) -> bool:
        return row.epoch == epoch

    def follows(self, row: ServerRow, number: int) -> bool:
        """Whether the batch before this one was stored completely."""
        return row.batch == number - 1 and not row.outdated

    def outdated(self, batch: Sequence[Commit]) -> set[int]:
        """The records that do not hold, and those that share a key with them."""
        by_key: dict[Key, list[int]] = {}
        for index, commit in enumerate(batch):
            for key in commit.expects or ():
                by_key.setdefault(key, []).append(index)
        bad = {key for key, (first, *_) in by_key.items() if (batch[first].expects or {})[key] != self.version(key)}
        created = [event for commit in batch for event in commit.record if isinstance(event, Created)]
        bad |= {event.path for event in created if self.is_too_old(event)}
        outdated: set[int] = set()
        while bad:
            key = bad.pop()
            for index in by_key.pop(key, ()):
                if index not in outdated:
                    outdated.add(index)
                    bad |= {one for one in (batch[index].expects or ()) if one in by_key}
        return outdated

    def is_too_old(self, event: Created) -> bool:
        """Whether a later stream was deleted at the path of a new one."""
        return event.id < self.deleted_ids.get(event.path, 0)

    def _apply(self, server: int, stored: list[Commit]) -> None:
        self.history.begin(stored)
        paths: dict[int, str] = {}
        for commit in stored:
            ids = {event.id for event in commit.record if not isinstance(event, DOCUMENT_EVENTS)}
            changed = {stream_id: self._path_of(commit.record, stream_id) for stream_id in sorted(ids)}
            self.data.commit([commit], _nothing_failed)
            self.history.note(commit, changed)
            for event in commit.record:
                if isinstance(event, Deleted):
                    path = changed[event.id]
                    self.deleted_ids[path] = max(event.id, self.deleted_ids.get(path, 0))
            paths |= changed
        moved = [Moved(stream_id, path, self.version(stream_id)) for stream_id, path in paths.items()]
        self.moves += [(server, one) for one in moved]
        self._announce(server, moved)

    def _path_of(self, record: Record, stream_id: int) -> str:
        state = self.state(stream_id)
        if state is not None:
            return state.path
        return next(event.path for event in record if isinstance(event, Created) and event.id == stream_id)

    def _announce(self, server: int, moved: list[Moved]) -> None:
        for other, (machine, watcher) in self.watchers.items():
            if other != server and moved:
                for _ in range(self.random.choice([0, 1, 1, 1, 2])):
                    delay_s = self.random.choice([0.0005, 0.001, 0.05, 0.8])
                    self.later(delay_s, lambda watcher=watcher: watcher(moved), machine)  # type: ignore[misc]

    def moved_since(self, server: int, cursor: str) -> tuple[list[Moved], str]:
        if not cursor:
            return [], str(len(self.moves))
        since = int(cursor)
        part = self.moves[since : since + PAGE]
        newest = {one.id: one._replace(version=self.version(one.id)) for other, one in part if other != server}
        return list(newest.values()), str(since + len(part))

    def reserve_id(self) -> int:
        self.last_id = max(self.last_id + 1, int(self.time_s * 1_000_000))
        return self.last_id


def _nothing_failed(error: BaseException | None) -> None:
    if error is not None:
        raise error


def now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not wait."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise RuntimeError("it waits")


class SimSharedStore:
    """The store of one server."""

    shared = True
    next_id = 1
    timeline = 0
    latest = NEVER
    full: str | None = None

    def __init__(self, database: SimDatabase, machine: Machine, server: int) -> None:
        self._database = database
        self._machine = machine
        self._server = server
        self._batch = 0
        self._newest: Attempt | None = None
        database.rows[server] = ServerRow()
        self._epoch = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def streams(self) -> int:
        return self._database.data.streams

    async def start(self, failed: Callable[[BaseException], None], moment: Callable[[], Moment]) -> None:
        """There is no background work."""

    def on_replaced(self, replaced: Callable[[], None]) -> None:
        """The database is never replaced."""

    # Commits

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        self._batch += 1
        copied = [Commit(one.record, (), dict(one.expects or {})) for one in batch]
        former = None if self._newest is None or self._newest.ended.is_set() else self._newest
        self._newest = Attempt(self._server, self._epoch, self._batch, copied, former)
        task = asyncio.get_running_loop().create_task(self._commit(self._newest, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _commit(self, attempt: Attempt, done: Done) -> None:
        try:
            outdated = await self._stored(attempt)
        except (NotStoredError, UnavailableError, RefusedError) as error:
            attempt.ended.set()
            done(error)
        else:
            attempt.is_complete = not outdated
            attempt.ended.set()
            done(OutdatedError(outdated) if outdated else None)

    async def _stored(self, attempt: Attempt) -> list[int]:
        database, former = self._database, attempt.former
        if not any(commit.record for commit in attempt.batch):
            if former is not None:
                database.broken.append(AssertionError("a batch without events is beside another one"))
            return sorted(await self._ask(lambda: database.outdated(attempt.batch)))
        answer = await self._answer(attempt)
        if former is not None:
            await former.ended.wait()
            if former.last is not None and former.last.epoch > attempt.epoch:  # what became of both was found out
                stored = self._learned(attempt.number, former.last)
                if stored is None:
                    raise NotStoredError
                return stored
            if not former.is_complete:
                raise NotStoredError
        return await self._outcome(attempt, answer)

    async def _answer(self, attempt: Attempt) -> list[int] | Exception:
        try:
            return await self._ask(lambda: self._database.execute(attempt), attempt=attempt)
        except (LostError, LateError, NotStoredError, UnavailableError, RefusedError) as error:
            return error

    async def _outcome(self, attempt: Attempt, answer: list[int] | Exception) -> list[int]:
        if isinstance(answer, LostError):
            return await self._resolved(attempt)
        if isinstance(answer, LateError):  # another session of this server has raised the epoch
            self._epoch = (await self._fenced())[0]
            raise UnavailableError("the session was ended") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _resolved(self, attempt: Attempt) -> list[int]:
        """What became of a batch whose connection was lost."""
        self._epoch, batch, outdated = await self._fenced()
        attempt.last = ServerRow(self._epoch, batch, outdated)
        stored = self._learned(attempt.number, attempt.last)
        if stored is not None:
            return stored
        if self._database.random.random() < 0.5:
            raise UnavailableError("the connection was lost, and the batch is not stored")
        again = attempt.again = Attempt(self._server, self._epoch, attempt.number, attempt.batch, None)
        try:
            return await self._outcome(again, await self._answer(again))
        finally:
            attempt.last = again.last or attempt.last

    def _learned(self, number: int, last: ServerRow) -> list[int] | None:
        """The records of a batch that are outdated, by the last batch that was stored; None: it is not."""
        if last.batch < number:
            return None
        return last.outdated if last.batch == number else []

    async def _fenced(self) -> tuple[int, int, list[int]]:
        def fence() -> tuple[int, int, list[int]]:
            epoch, row = self._database.fence(self._server)
            return epoch, row.batch, list(row.outdated)

        while True:
            try:
                return await self._ask(fence)
            except UnavailableError:
                await asyncio.sleep(0.1)

    def _before(self, attempt: Attempt) -> Attempt | None:
        """What was sent before on the same connection. Decides whether this connection is lost."""
        former = attempt.former
        while former is not None and former.again is not None:
            former = former.again
        rng, loss = self._database.random, self._database.loss
        attempt.is_lost = rng.random() < loss or (former is not None and former.is_lost)
        return former

    async def _ask(self, work: Callable[[], T], keys: Collection[Key] = (), *, attempt: Attempt | None = None) -> T:
        """Let the database do something."""
        database, machine = self._database, self._machine
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        rng = database.random
        former = None if attempt is None else self._before(attempt)
        is_lost = attempt is not None and attempt.is_lost
        if attempt is not None:
            keys = [key for commit in attempt.batch for key in commit.expects or ()]

        def reply(result: T | None, error: Exception | None) -> None:
            if attempt is not None:
                attempt.is_over = True

            def deliver() -> None:
                if answer.done():
                    return
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)  # type: ignore[arg-type]

            if not is_lost:
                database.later(database.delay_s(), deliver, machine)

        def run() -> None:
            if attempt is not None and former is not None and not former.is_over:
                attempt.is_dropped = former.is_dropped
                if not attempt.is_dropped:  # a connection executes one after another
                    database.later(0.001, run)
                return
            if database.down_until_s > database.time_s:
                reply(None, UnavailableError("the database is down"))
                return
            if keys and database.is_locked(self._server, keys):
                database.later(0.002, run)
                return
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - for the server
                if isinstance(error, AssertionError | ValueError):
                    database.broken.append(error)
                reply(None, error)
            else:
                reply(result, None)

        def lose() -> None:
            if not answer.done():
                answer.set_exception(LostError())

        if is_lost:
            database.later(rng.choice([0.01, 0.1, 1.0]), lose, machine)
            if rng.random() < 0.7:  # late, or not at all
                database.later(rng.choice([0.001, 0.05, 0.5, 3.0]), run)
            elif attempt is not None:
                attempt.is_dropped = True
        else:
            database.later(database.delay_s(), run)
        return await answer

    # What several servers need

    def wall_s(self) -> float:
        raise NotImplementedError("the engines of the simulation have clocks of their own")

    async def changed(self, known: Expects) -> dict[Key, int]:
        newest = dict(known)
        versions = self._database.version
        return await self._ask(lambda: {key: versions(key) for key in newest if versions(key) != newest[key]})

    async def locked(self, keys: Collection[Key]) -> dict[Key, StreamState | Document | None]:
        names = list(keys)
        return await self._ask(lambda: self._database.lock(self._server, names), names)

    async def reserve_id(self) -> int:
        return await self._ask(self._database.reserve_id)

    async def watch(self, moved: Callable[[Sequence[Moved]], None]) -> None:
        self._database.watchers[self._server] = (self._machine, moved)

    async def moved_since(self, cursor: str) -> tuple[list[Moved], str]:
        return await self._ask(lambda: self._database.moved_since(self._server, cursor))

    async def recount(self) -> None:
        """The count is that of the database."""

    async def hold(self, name: str, seconds: float) -> HeldRole | None:
        raise NotImplementedError("the simulation has no roles")

    def give_up(self) -> None:
        """Engines of the simulation are killed, not stopped."""

    async def release(self, role: HeldRole) -> None:
        raise NotImplementedError("the simulation has no roles")

    # Reads

    async def load(self, path: str) -> StreamState | None:
        return await self._ask(lambda: now(self._database.data.load(path)))

    async def load_id(self, stream_id: int) -> StreamState | None:
        return await self._ask(lambda: now(self._database.data.load_id(stream_id)))

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        return await self._ask(
            lambda: self._reading(lambda: self._database.data.read(stream_id, start, end, bytes_max))
        )

    async def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        return await self._ask(lambda: self._reading(lambda: self._database.data.records(stream_id, start, end, limit)))

    async def boundary(self, stream_id: int, position: int) -> int:
        return await self._ask(lambda: self._reading(lambda: self._database.data.boundary(stream_id, position)))

    async def position_at(self, stream_id: int, start: int, at_ms: int) -> int | None:
        return await self._ask(lambda: self._reading(lambda: self._database.data.position_at(stream_id, start, at_ms)))

    def _reading(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return now(work())

    async def page(self, prefix: str, after: str, limit: int) -> StatePage:
        return await self._ask(lambda: now(self._database.data.page(prefix, after, limit)))

    async def due(self, after: tuple[int, int], now_ms: int, limit: int) -> Due:
        return await self._ask(lambda: now(self._database.data.due(after, now_ms, limit)))

    async def document(self, key: str) -> Document | None:
        return await self._ask(lambda: now(self._database.data.document(key)))

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        return await self._ask(lambda: now(self._database.data.documents(prefix, after, limit)))

    def report(self) -> StoreReport:
        return StoreReport()

    def relieve(self) -> None:
        """There is nothing that could be loaded again."""

    async def close(self) -> None:
        self._database.watchers.pop(self._server, None)
