"""A simulated disk with crashes, torn and reordered writes, full disks and missing file descriptors.

All randomness comes from one seed, so a seed determines a run.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
from collections.abc import Callable

from headwater.store.embedded.disk import File

SECTOR = 512


class CrashError(BaseException):
    """The machine lost power or the process was killed. It is not an Exception, so that no code catches it."""


class Node:
    """The bytes of a file: in the page cache, on the disk, and the writes that are not synced."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.allocated = 0  # bytes that have blocks; the rest of the file is a hole

    def copy(self) -> Node:
        node = Node()
        node.allocated = self.allocated
        node.data, node.durable = bytearray(self.data), bytearray(self.data)
        return node

    def write(self, position: int, data: bytes) -> None:
        self.allocated = max(self.allocated, position + len(data))
        _put(self.data, position, data)
        self.pending.append((position, data))

    def extend(self, size: int) -> None:
        """Extend the file by a hole."""
        if size > len(self.data):
            self.pending.append((len(self.data), bytes(size - len(self.data))))
            self.data.extend(bytes(size - len(self.data)))

    def sync(self) -> None:
        """Write the changes since the last sync to the disk, as a kernel writes dirty pages."""
        for position, data in self.pending:
            _put(self.durable, position, data)
        self.pending.clear()

    def scatter(self, rng: random.Random) -> None:
        """Write a random subset of the unsynced sectors to the disk."""
        chance = rng.choice([0.0, 0.3, 0.7, 1.0])
        for position, data in self.pending:
            for start in range(0, len(data), SECTOR):
                if rng.random() < chance:
                    _put(self.durable, position + start, data[start : start + SECTOR])
        self.pending.clear()

    def lose_power(self, rng: random.Random) -> None:
        self.scatter(rng)
        self.data = bytearray(self.durable)

    def fail_sync(self, rng: random.Random) -> None:
        """A random part reaches the disk. The page cache is dropped, or keeps the bytes and marks them as clean."""
        self.scatter(rng)
        if rng.random() < 0.5:
            self.data = bytearray(self.durable)


def _put(target: bytearray, position: int, data: bytes) -> None:
    if len(target) < position:
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


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
            self._disk.refuse(errno.ENOSPC, self.name)
        self._node.write(position, data)
        self._disk.step("written", len(data))

    def sync(self) -> None:
        self._disk.step("sync", 0)
        if self._disk.sync_fails():
            self._node.fail_sync(self._disk.random)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.name)
        self._node.sync()
        self._disk.step("synced", 0)

    def read(self) -> bytes:
        return bytes(self._node.data)

    def allocate(self, size: int) -> None:
        """Extend the file with zeros, or fail without a change."""
        end = self._node.allocated
        self._disk.step("allocate", size)
        if size > end:
            if self._disk.room_for(self._node, end, size - end) < size - end:
                self._disk.refuse(errno.ENOSPC, self.name)
            self._node.write(end, bytes(size - end))

    def truncate(self, size: int) -> None:
        self._disk.step("truncate", size)
        self._node.allocated = min(self._node.allocated, size)
        del self._node.data[size:]
        del self._node.durable[size:]
        self._node.pending.clear()

    def extend(self, size: int) -> int:
        self._disk.step("extend", size)
        self._node.extend(size)
        return len(self._node.data)

    def close(self) -> None:
        """Closing has no effect."""


class SimDisk:
    """The directory of the journal. After a power loss, a prefix of the changes of names survives."""

    def __init__(self, rng: random.Random) -> None:
        self.random = rng
        self.nodes: dict[str, Node] = {}
        self.durable_names: dict[str, Node] = {}
        self.crashed = False
        self.crash_in: int | None = None  # steps until the machine or the process dies
        self._capacity: int | None = None  # of a full disk
        self.no_descriptors = 0  # errno of opening a file; 0 if it succeeds
        self.failing_sync_in: int | None = None
        self.deadly = 0.0  # share of the tasks of the fold worker during which it is killed
        self.worker_deaths = 0
        self.reserved = False  # the reserve and a spare segment were allocated when the disk became full
        self.refusals = 0  # number of failures for lack of space or descriptors
        self.failed_syncs = 0
        self.trace = hashlib.sha256()
        self._changes: list[Callable[[dict[str, Node]], object]] = []

    def copy(self, rng: random.Random) -> SimDisk:
        """Another disk with the same files, all of them durable."""
        other = SimDisk(rng)
        other.nodes = {name: node.copy() for name, node in self.nodes.items()}
        other.durable_names = dict(other.nodes)
        return other

    def step(self, what: str, size: int) -> None:
        """Start an operation. The machine may crash before it."""
        if self.crashed:
            raise CrashError
        self.trace.update(f"{what} {size}\n".encode())
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                self.crashed = True
                raise CrashError

    def sync_fails(self) -> bool:
        if self.failing_sync_in is None:
            return False
        self.failing_sync_in -= 1
        if self.failing_sync_in >= 0:
            return False
        self.failed_syncs += 1
        return True

    def worker_death(self) -> int | None:
        """After how many steps of its task the fold worker is killed; None if it is not."""
        if self.random.random() >= self.deadly:
            return None
        self.worker_deaths += 1
        return self.random.choice([1, 20, 300, 5000, 1 << 30])

    @property
    def full(self) -> bool:
        return self._capacity is not None

    @full.setter
    def full(self, full: bool) -> None:
        """Set the capacity to the used space, so that only freed space can be used."""
        if full != self.full:
            self._capacity = self._used_bytes() if full else None

    def add_capacity(self, size_bytes: int) -> None:
        """Free some space of a full disk, as if another program had removed a file."""
        if self._capacity is not None:
            self._capacity += size_bytes

    @property
    def free_bytes(self) -> int:
        return 1 << 40 if self._capacity is None else max(0, self._capacity - self._used_bytes())

    def _used_bytes(self) -> int:
        return sum(node.allocated for node in self.nodes.values())

    def room_for(self, node: Node, position: int, size: int) -> int:
        """How many bytes can be written at a position."""
        return max(0, min(size, node.allocated + self.free_bytes - position))

    def refuse(self, number: int, name: str) -> None:
        self.refusals += 1
        raise OSError(number, os.strerror(number), name)

    def restart(self, *, power_lost: bool) -> None:
        """Restart the machine or the process. After a power loss, a random part of the unsynced data survives. After a
        kill, everything is in the page cache."""
        if power_lost:
            kept = self.random.randint(0, len(self._changes))
            for change in self._changes[:kept]:
                change(self.durable_names)
            self._changes.clear()
            self.nodes = dict(self.durable_names)
            for node in {id(node): node for node in self.nodes.values()}.values():
                node.lose_power(self.random)
        self.crashed = False
        self.no_descriptors = self.failed_syncs = 0
        self.deadly = 0.0
        self.crash_in = self.failing_sync_in = None

    def _need_descriptor(self, name: str) -> None:
        if self.no_descriptors:
            self.refuse(self.no_descriptors, name)

    # Disk

    def names(self) -> list[str]:
        self._need_descriptor(".")
        return sorted(self.nodes)

    def open(self, name: str) -> File:
        self._need_descriptor(name)
        if name not in self.nodes:
            self.step("create", 0)
            node = Node()
            self._change(lambda names: names.__setitem__(name, node))
        return SimFile(self, name, self.nodes[name])

    def read(self, name: str) -> bytes:
        self._need_descriptor(name)
        if name not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return bytes(self.nodes[name].data)

    def is_shared(self, name: str) -> bool:
        return False

    def rename(self, old: str, new: str) -> None:
        self._need_descriptor(old)
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
        self._changes.append(change)

    def sync_names(self) -> None:
        self._need_descriptor(".")
        self.step("sync names", 0)
        for change in self._changes:
            change(self.durable_names)
        self._changes.clear()
