"""The simulated machine: parts of a store that take virtual time, and an event loop with virtual time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from headwater.store.embedded import index
from headwater.store.embedded.disk import File
from headwater.store.embedded.fold_worker import FoldWorker
from headwater.store.embedded.folder import FoldInterruptedError, IndexFullError, Reclaimed, WorkerAnswer
from headwater.store.embedded.syncing import Synced
from tests.fault.sim_disk import CrashError, SimDisk

T = TypeVar("T")

PAGE = 2048  # free space that the index needs; it does not use this space


class DeadlockError(RuntimeError):
    """All tasks wait, and no timer is pending."""


class SimIndex:
    """SQLite in memory. Its commits are assumed to be atomic and durable: a crash restores the image of the last
    commit."""

    def __init__(self, image: bytes | None = None) -> None:
        self._image = image
        self._connection: sqlite3.Connection | None = None

    def connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(":memory:", isolation_level=None)
            if self._image is None:
                index.install(self._connection)
            else:
                self._connection.deserialize(self._image)
        return self._connection

    def commit(self) -> None:
        self._image = self.connect().serialize()

    def copy(self) -> SimIndex:
        """A copy with the last commit."""
        return SimIndex(self._image)

    def restart(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class SimConnection(index.IndexReader):
    """A shared connection. Opening it needs a descriptor; closing it does nothing."""

    def close(self) -> None:
        """The connection is shared."""


def connect(disk: SimDisk, sim_index: SimIndex) -> index.IndexReader:
    if disk.no_descriptors:
        disk.refusals += 1
        raise sqlite3.OperationalError("unable to open database file")
    return SimConnection(sim_index.connect())


class SimFolder:
    """The fold worker without a process. It takes virtual time. The machine can crash before and after its commit, and
    the worker alone can die at any moment: before, in the middle of its statements, and after its commit."""

    def __init__(self, disk: SimDisk, sim_index: SimIndex) -> None:
        self._disk = disk
        self._index = sim_index

    async def fold(self, number: int) -> int:
        await asyncio.sleep(self._disk.random.choice([0.0, 0.01, 0.2]))
        return self._ask(f"fold {number}").added_bytes

    async def reclaim(self, *, urgent: bool) -> Reclaimed:
        await asyncio.sleep(0.01)
        return self._ask("reclaim urgently" if urgent else "reclaim").reclaimed

    def _ask(self, task: str) -> WorkerAnswer:
        self._disk.step(task, 0)
        if self._disk.free_bytes < PAGE:
            self._disk.refusals += 1
            raise IndexFullError("no room for the index")
        connection = self._index.connect()
        death = self._disk.worker_death()
        if death is not None:  # after this many steps of SQLite's virtual machine
            connection.set_progress_handler(lambda: 1, death)
        answer = FoldWorker(self._disk, connection, asyncio.get_running_loop().time).handle(task)
        connection.set_progress_handler(None, 0)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self._disk.step("commit", 0)
        self._index.commit()
        self._disk.step("committed", 0)
        if death is not None:
            raise FoldInterruptedError(f"killed; it would have answered {answer}")
        answer.check()
        return answer

    async def close(self) -> None:
        """There is no process to stop."""


class SimRunner:
    """Runs blocking work on the loop, a little later."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as failure:  # noqa: BLE001
                error = failure
            done(result, error)

        asyncio.get_running_loop().call_later(self._disk.random.choice([0.0, 0.005, 0.05]), run)

    def close(self) -> None:
        """There is no thread to stop."""


class SimReaders(concurrent.futures.Executor):
    """Runs reads of the index with delays before the read and before its result."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def delays_s(self) -> tuple[float, float]:
        choices = [0.0, 0.0, 0.01, 0.3]
        return self._disk.random.choice(choices), self._disk.random.choice(choices)

    def submit(self, work: Callable[..., T], /, *arguments: Any, **more: Any) -> concurrent.futures.Future[T]:
        loop = asyncio.get_running_loop()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        before, after = self.delays_s()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*arguments, **more)
            except Exception as error:  # noqa: BLE001 - reported to the caller
                loop.call_later(after, future.set_exception, error)
            else:
                loop.call_later(after, future.set_result, result)

        loop.call_later(before, run)
        return future


class SimSyncer:
    """A sync that takes virtual time, so that batches form and a crash can occur during it."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def start(self) -> None:
        """There is nothing to attach."""

    def delay_s(self) -> float:
        return self._disk.random.choice([0.0, 0.001, 0.001, 0.02, 0.02, 0.3])

    def sync(self, file: File, synced: Synced) -> None:
        def run() -> None:
            try:
                file.sync()
            except OSError as error:
                synced(error)
            else:
                synced(None)

        asyncio.get_running_loop().call_later(self.delay_s(), run)

    def close(self) -> None:
        """There is nothing to release."""


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.now_s = now_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError
        self.now_s += max(0.0, timeout)
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop whose time advances only when no task is ready."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self._virtual = _VirtualSelector(now_s)
        super().__init__(self._virtual)
        self.set_exception_handler(self._note)
        self.failures: list[BaseException] = []

    def time(self) -> float:
        return self._virtual.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: concurrent.futures.Executor | None, work: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        """There are no threads: work runs on the loop, a little later."""
        if executor is not None:
            return super().run_in_executor(executor, work, *arguments)
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(work(*arguments))
            except Exception as error:  # noqa: BLE001 - reported to the caller
                future.set_exception(error)

        self.call_later(0.003, run)
        return future

    def _write_to_self(self) -> None:
        """No other thread wakes the loop."""

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not isinstance(error, CrashError):
            self.failures.append(error)
