"""The memory mark: reactions to a shortage of memory.

    resident memory     what happens
    below 8/10          nothing
    from 8/10 on        caches are evicted (active views, states, streams that were not used recently), the journal is
                        folded early, and freed memory is returned to the system
    from 9/10 on        writes except deletes are refused until it is below 8/10 again; reads still work
    from the mark on    new connections are refused as well

The memory of requests, responses, commits and views is bounded by other limits. `fit_memory` lowers these so that
memory does not exceed the mark between two checks.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

import msgspec

from headwater.engine import Engine
from headwater.freed_memory import return_freed_memory
from headwater.limits import (
    AHEAD_SHARE,
    MEMORY_BYTES_MIN,
    MEMORY_LOOK_S,
    MEMORY_OWN_BYTES,
    MEMORY_RELIEF_S,
    MEMORY_SHARE,
    Limits,
)
from headwater.server.machine import MemoryLimit
from headwater.server.states import States
from headwater.server.tables.active import ActiveViews

log = logging.getLogger("headwater.server")

_STATM = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_SHORT, _ENOUGH = 0.9, 0.8
# Shares of the memory between the mark and the process itself. Their sum is less than 1.
_SHARES = {
    "request_bytes_in_flight_max": 1 / 8,
    "response_bytes_in_flight_max": 1 / 8,
    "large_read_bytes_max": 1 / 8,
    "commit_backlog_bytes": 1 / 16,
    "active_bytes_max": 1 / 8,
    "state_bytes_max": 1 / 8,
}
_JOURNAL_SHARE = 1 / 4


def resident_bytes() -> int:
    """The resident memory of this process."""
    with open(_STATM, "rb", buffering=0) as file:
        return int(file.read(64).split()[1]) * _PAGE_BYTES


def choose_memory(limits: Limits, limit: MemoryLimit | None) -> Limits:
    """Set the memory mark, unless it is set: a share of the memory that the process may use."""
    if limits.memory_bytes_max or limit is None or not _is_measurable():
        return limits
    mark = max(MEMORY_BYTES_MIN, int(limit.size_bytes * MEMORY_SHARE))
    if mark > limit.size_bytes:
        log.warning(
            "%s allows %d bytes of memory, and the server needs %d (memory_bytes_max)",
            limit.source,
            limit.size_bytes,
            mark,
        )
    log.info("memory_bytes_max is %d, by %s", mark, limit.source)
    return msgspec.structs.replace(limits, memory_bytes_max=mark)


def _is_measurable() -> bool:
    try:
        return resident_bytes() > 0
    except OSError:
        return False


def fit_memory(limits: Limits) -> Limits:
    """Lower the limits to fit the memory mark, if there is one. ValueError if the mark is too small."""
    if not limits.memory_bytes_max:
        return limits
    if limits.memory_bytes_max < MEMORY_BYTES_MIN:
        raise ValueError(f"memory_bytes_max must be at least {MEMORY_BYTES_MIN}, got {limits.memory_bytes_max}")
    try:
        resident_bytes()
    except OSError as error:
        raise ValueError(f"memory_bytes_max needs Linux: {error}") from None
    left = limits.memory_bytes_max - MEMORY_OWN_BYTES
    fitted = {name: min(getattr(limits, name), int(left * share)) for name, share in _SHARES.items()}
    # A body that never fits must get 413, not 503.
    fitting_bytes = int(fitted["request_bytes_in_flight_max"] * (1 - AHEAD_SHARE))
    fitted["body_bytes_max"] = min(limits.body_bytes_max, fitting_bytes)
    segments = limits.unfolded_segments_max + 2  # the segment being written, and the one being folded
    fitted["segment_bytes"] = min(limits.segment_bytes, int(left * _JOURNAL_SHARE / segments))
    return msgspec.structs.replace(limits, **fitted)


def open_memory(limits: Limits, engine: Engine, active: ActiveViews, states: States) -> MemoryMark | None:
    """The mark of a server, if it has one."""
    if not limits.memory_bytes_max:
        return None

    async def relieve() -> None:
        active.drop_idle()
        states.drop_idle()
        await engine.relieve()
        await asyncio.to_thread(return_freed_memory)

    return MemoryMark(limits.memory_bytes_max, relieve)


class MemoryMark:
    """`short` tells whether writes are refused; `relieve` evicts caches."""

    def __init__(
        self, bytes_max: int, relieve: Callable[[], Awaitable[None]], resident: Callable[[], int] = resident_bytes
    ) -> None:
        self.short = False
        self.exhausted = False  # the mark is reached
        self._bytes_max = bytes_max
        self._relieve = relieve
        self._resident = resident
        self._relieved_s = float("-inf")
        self._resident_bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def reason(self) -> str:
        return (
            f"{self._resident_bytes} of {self._bytes_max} bytes of memory are in use (memory_bytes_max); "
            "reads and deletions go on, try again shortly"
        )

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(MEMORY_LOOK_S)
            try:
                await self.look(loop.time())
            except Exception:
                log.exception("the memory check failed, retrying")

    async def look(self, now_s: float) -> None:
        used = self._measure()
        if used >= self._bytes_max * _ENOUGH and now_s - self._relieved_s >= MEMORY_RELIEF_S:
            self._relieved_s = now_s
            await self._relieve()
            self._measure()

    def _measure(self) -> int:
        used = self._resident_bytes = self._resident()
        self.exhausted = used >= self._bytes_max
        if used >= self._bytes_max * _SHORT:
            if not self.short:
                log.warning("writes are refused: %s", self.reason)
            self.short = True
        elif self.short and used < self._bytes_max * _ENOUGH:
            log.warning("there is memory again: writes are accepted")
            self.short = False
        return used
