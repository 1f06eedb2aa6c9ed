"""Syncing a file: on the event loop while the disk is fast, in the background while it is slow.

Passing a sync to a thread costs more than a sync of 0.1 ms takes, mostly because of the GIL. But a sync of 5 ms on the
loop would delay all readers. So a sync runs on the loop as long as syncs are fast. Otherwise it runs in the kernel
(Linux, `io_submit` with IOCB_CMD_FDSYNC) or in a thread. DESIGN.md has measurements.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import struct
import sys
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from headwater import limits
from headwater.store.embedded.disk import File, RealFile
from headwater.store.embedded.threads import ThreadRunner

Synced: TypeAlias = Callable[[OSError | None], None]

# io_setup, io_destroy, io_getevents, io_submit
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_IOCB = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")
_FDSYNC = 3
_WITH_EVENT_DESCRIPTOR = 1


class Syncer(Protocol):
    def start(self) -> None:
        """Attach to the running event loop."""

    def sync(self, file: File, synced: Synced) -> None:
        """Sync a file, then call `synced` on the loop. One sync at a time."""

    def close(self) -> None: ...


class ThreadSyncer:
    def __init__(self) -> None:
        self._runner = ThreadRunner("headwater-sync")

    def start(self) -> None:
        """There is nothing to attach."""

    def sync(self, file: File, synced: Synced) -> None:
        def done(_: None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, OSError):
                raise error
            synced(error)

        self._runner.submit(file.sync, done)

    def close(self) -> None:
        self._runner.close()


class KernelSyncer:
    """Syncs with asynchronous I/O of the kernel. The constructor raises OSError if it is not available."""

    def __init__(self) -> None:
        numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
        if numbers is None:
            raise OSError("the kernel has no asynchronous I/O")
        self._setup, self._destroy, self._getevents, self._submit = numbers
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        self._call(self._setup, 1, ctypes.byref(self._context))
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._block = ctypes.create_string_buffer(_IOCB.size)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._synced: Synced | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _call(self, number: int, *arguments: object) -> int:
        result = int(self._syscall(number, *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._completed)

    def sync(self, file: File, synced: Synced) -> None:
        if not isinstance(file, RealFile):
            raise TypeError("only a real file can be synced by the kernel")
        self._synced = synced
        _IOCB.pack_into(
            self._block, 0, 0, 0, 0, _FDSYNC, 0, file.descriptor, 0, 0, 0, 0, _WITH_EVENT_DESCRIPTOR, self._descriptor
        )
        try:
            self._call(self._submit, self._context, 1, self._blocks)
        except OSError as error:
            self._synced = None
            if error.errno != errno.EAGAIN:
                synced(error)
                return
            self._sync_here(file, synced)  # the queue of the kernel is full

    def _sync_here(self, file: RealFile, synced: Synced) -> None:
        try:
            file.sync()
        except OSError as error:
            synced(error)
        else:
            synced(None)

    def _completed(self) -> None:
        os.eventfd_read(self._descriptor)
        count = self._call(self._getevents, self._context, 0, 1, self._event, None)
        synced = self._synced
        if count and synced is not None:
            result = _EVENT.unpack_from(self._event)[2]
            self._synced = None
            synced(OSError(-result, os.strerror(-result)) if result < 0 else None)

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._call(self._destroy, self._context)
        os.close(self._descriptor)


class AdaptiveSyncer:
    """Syncs on the loop while syncs are fast. After a slow one, the next few run elsewhere, twice as many each time."""

    def __init__(self, elsewhere: Syncer, clock: Callable[[], float] = time.perf_counter) -> None:
        self._elsewhere = elsewhere
        self._clock = clock
        self._left = 0  # syncs to run elsewhere before the next attempt on the loop
        self._patience = limits.SYNC_ELSEWHERE_MIN

    def start(self) -> None:
        self._elsewhere.start()

    def sync(self, file: File, synced: Synced) -> None:
        if self._left:
            self._left -= 1
            self._elsewhere.sync(file, synced)
            return
        started_s = self._clock()
        try:
            file.sync()
        except OSError as error:
            synced(error)
            return
        if self._clock() - started_s > limits.SYNC_SLOW_S:
            self._left = self._patience
            self._patience = min(self._patience * 2, limits.SYNC_ELSEWHERE_MAX)
        else:
            self._patience = limits.SYNC_ELSEWHERE_MIN
        synced(None)

    def close(self) -> None:
        self._elsewhere.close()


def best_syncer() -> Syncer:
    elsewhere: Syncer
    try:
        elsewhere = KernelSyncer()
    except OSError:
        elsewhere = ThreadSyncer()
    return AdaptiveSyncer(elsewhere)
