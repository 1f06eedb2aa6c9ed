"""A simulated machine: a disk that crashes and lies in every way a disk may, and a loop whose time is virtual.

Everything random comes from one seed, nothing from threads or the real clock, so a seed is a run.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import random
import selectors
import sqlite3
from collections.abc import Callable

from headwater.store.embedded import index
from headwater.store.embedded.disk import File
from headwater.store.embedded.fold import fold
from headwater.store.embedded.folder import IndexFullError
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import read_segment, segment_name
from headwater.store.embedded.syncing import Synced

SECTOR = 512


class CrashError(BaseException):
    """The machine lost power. Not an Exception: nothing may catch it and go on."""


class DeadlockError(RuntimeError):
    """Everybody waits and nothing will ever happen."""


class SimFile:
    def __init__(self, disk: SimDisk, name: str, node: Node) -> None:
        self.name = name
        self._disk = disk
        self._node = node

    def write(self, position: int, data: bytes) -> None:
        self._disk.step("write", len(data))
        room = self._disk.room_for(self._node, position, len(data))
        if room < len(data):
            self._node.write(position, data[:room])
            raise OSError(errno.ENOSPC, "No space left on device", self.name)
        self._node.write(position, data)
        self._disk.step("written", len(data))

    def sync(self) -> None:
        self._disk.step("sync", 0)
        if self._disk.sync_fails():
            self._node.scatter(self._disk.random)
            raise OSError(errno.EIO, "Input/output error", self.name)
        self._node.sync()
        self._disk.step("synced", 0)

    def read(self) -> bytes:
        return bytes(self._node.data)

    def allocate(self, size: int) -> None:
        self._disk.step("allocate", size)
        if self._disk.room_for(self._node, 0, size) < size:
            raise OSError(errno.ENOSPC, "No space left on device", self.name)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", size)
        del self._node.data[size:]
        del self._node.durable[size:]
        self._node.pending.clear()

    def close(self) -> None:
        """Nothing is lost or won by closing."""


class Node:
    """A file's bytes: as everyone sees them, as they would be found after a crash, and what is in between."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []

    def write(self, position: int, data: bytes) -> None:
        _put(self.data, position, data)
        self.pending.append((position, data))

    def sync(self) -> None:
        self.durable = bytearray(self.data)
        self.pending.clear()

    def scatter(self, rng: random.Random) -> None:
        """Some sectors of what was not synced reach the disk, in any combination."""
        chance = rng.choice([0.0, 0.3, 0.7, 1.0])
        for position, data in self.pending:
            for start in range(0, len(data), SECTOR):
                if rng.random() < chance:
                    _put(self.durable, position + start, data[start : start + SECTOR])
        self.pending.clear()
        self.data = bytearray(self.durable)


def _put(target: bytearray, position: int, data: bytes) -> None:
    if len(target) < position:
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


class SimDisk:
    """The journal's directory. Names survive a crash in the order they were changed, up to some point."""

    def __init__(self, rng: random.Random) -> None:
        self.random = rng
        self.nodes: dict[str, Node] = {}
        self.durable_names: dict[str, Node] = {}
        self.crashed = False
        self.crash_in: int | None = None  # steps until the power fails
        self.full = False
        self.failing_sync_in: int | None = None
        self.steps = 0
        self.trace = hashlib.sha256()
        self._changes: list[Callable[[dict[str, Node]], None]] = []

    def step(self, what: str, size: int) -> None:
        """One operation: the moment before and after which the machine may crash."""
        self.steps += 1
        self.trace.update(f"{what} {size}\n".encode())
        if self.crashed:
            raise CrashError
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.crashed = True
                raise CrashError

    def sync_fails(self) -> bool:
        if self.failing_sync_in is None:
            return False
        self.failing_sync_in -= 1
        return self.failing_sync_in < 0

    def room_for(self, node: Node, position: int, size: int) -> int:
        if not self.full:
            return size
        return max(0, min(size, len(node.data) - position))

    def restart(self) -> None:
        """The power is back: what was not synced is there in part or not at all."""
        kept = self.random.randint(0, len(self._changes))
        for change in self._changes[:kept]:
            change(self.durable_names)
        self._changes.clear()
        self.nodes = dict(self.durable_names)
        for node in {id(node): node for node in self.nodes.values()}.values():
            node.scatter(self.random)
        self.crashed = self.full = False
        self.crash_in = self.failing_sync_in = None

    # Disk

    def names(self) -> list[str]:
        return sorted(self.nodes)

    def open(self, name: str) -> File:
        if name not in self.nodes:
            self.step("create", 0)
            node = Node()
            self._change(lambda names: names.__setitem__(name, node))
        return SimFile(self, name, self.nodes[name])

    def rename(self, old: str, new: str) -> None:
        self.step("rename", 0)

        def change(names: dict[str, Node]) -> None:
            if old in names:
                names[new] = names.pop(old)

        self._change(change)

    def remove(self, name: str) -> None:
        self.step("remove", 0)
        self._change(lambda names: names.pop(name, None))

    def _change(self, change: Callable[[dict[str, Node]], object]) -> None:
        change(self.nodes)
        self._changes.append(change)  # type: ignore[arg-type]

    def sync_names(self) -> None:
        self.step("sync names", 0)
        for change in self._changes:
            change(self.durable_names)
        self._changes.clear()


class SimIndex:
    """SQLite itself, in memory. That its commits are atomic and durable is taken from its own tests: a crash finds
    the image of the last commit."""

    def __init__(self) -> None:
        self._image: bytes | None = None
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

    def restart(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class SimFolder:
    def __init__(self, disk: SimDisk, sim_index: SimIndex) -> None:
        self._disk = disk
        self._index = sim_index

    async def fold(self, number: int) -> None:
        await asyncio.sleep(self._disk.random.choice([0.0, 0.01, 0.2]))
        self._disk.step("fold", number)
        if self._disk.full:
            raise IndexFullError("no room for the index")
        connection = self._index.connect()
        file = self._disk.open(segment_name(number))
        segment = read_segment(file.name, file.read(), number, last=False)
        if segment is not None:
            fold(index.IndexReader(connection), IndexWriter(connection), segment)
        self._disk.step("commit fold", number)
        self._index.commit()
        self._disk.step("folded", number)

    async def reclaim(self, chunks_max: int, *, urgent: bool) -> None:
        await asyncio.sleep(0.01)
        self._disk.step("reclaim", chunks_max)
        IndexWriter(self._index.connect()).reclaim(chunks_max)
        self._index.commit()

    async def close(self) -> None:
        """There is no process to end."""


class SimRunner:
    """Blocking work, done a little later on the loop itself."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def submit(self, work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        def run() -> None:
            try:
                result, error = work(), None
            except Exception as failure:  # noqa: BLE001
                result, error = None, failure
            done(result, error)

        asyncio.get_running_loop().call_later(self._disk.random.choice([0.0, 0.005, 0.05]), run)

    def close(self) -> None:
        """There is no thread to end."""


class SimSyncer:
    """A sync that takes its time, so that batches form and a crash can fall into it."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def start(self) -> None:
        """Ready at once."""

    def sync(self, file: File, synced: Synced) -> None:
        def run() -> None:
            try:
                file.sync()
            except OSError as error:
                synced(error)
            else:
                synced(None)

        asyncio.get_running_loop().call_later(self._disk.random.choice([0.0, 0.001, 0.02]), run)

    def close(self) -> None:
        """Nothing to let go of."""


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError
        self.now_s += max(0.0, timeout)
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """Time passes only when nobody has anything to do."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)
        self.set_exception_handler(self._note)
        self.failures: list[BaseException] = []

    def time(self) -> float:
        return self._virtual.now_s

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not isinstance(error, CrashError):
            self.failures.append(error)
