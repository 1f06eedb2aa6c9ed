"""Fencing: a server with a lease refuses writes while it does not hold it, so a promoted standby is the only writer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from headwater.errors import LeaseLostError
from headwater.limits import LEASE_RENEWALS, RETRY_AFTER_S
from headwater.server.settings import ACCEPT, Settings
from headwater.store.embedded.backup.leases import LeaseHolder, LeaseState, Renewal, directory_id, holder_id
from headwater.store.embedded.backup.targets import open_target
from headwater.tasks import in_thread

log = logging.getLogger("headwater.server")

# Why writes are refused, for each state; for everyone, so without the target.
_REASONS = {
    LeaseState.WAITING: "the server waits for its lease",
    LeaseState.EXPIRED: "the lease of the server has ended, because its target does not answer",
    LeaseState.LOST: "the lease belongs to another server",
}
_LEVELS = {
    LeaseState.WAITING: logging.WARNING,
    LeaseState.HELD: logging.INFO,
    LeaseState.EXPIRED: logging.ERROR,
    LeaseState.LOST: logging.CRITICAL,
}


class Fence:
    """Whether a server may take writes. `accept` lets it go on after the lease has ended and nobody took it."""

    def __init__(self, lease: LeaseHolder, *, accept: bool) -> None:
        self._lease = lease
        self._accept = accept

    @property
    def held(self) -> bool:
        return self._lease.state is LeaseState.HELD

    @property
    def failures(self) -> int:
        return self._lease.failures

    @property
    def reason(self) -> str | None:
        """Why writes are refused; None if they are not."""
        state = self._lease.state
        if state is LeaseState.HELD or (state is LeaseState.EXPIRED and self._accept):
            return None
        return _REASONS[state]

    def refusal(self) -> LeaseLostError | None:
        reason = self.reason
        return None if reason is None else LeaseLostError(reason, retry_after_s=RETRY_AFTER_S)


def open_fence(where: str, settings: Settings) -> tuple[Fence, Renewal]:
    """The fence of a server with a lease in a target, and the thread that renews the lease."""
    lease_s = settings.limits.lease_s
    target = open_target(where, lease_s / LEASE_RENEWALS)
    directory = settings.data_dir
    lease = LeaseHolder(target, directory_id(directory), holder_id(directory), lease_s)

    def report(problem: str, state: LeaseState) -> None:
        level = max(_LEVELS[state], logging.ERROR if problem else logging.INFO)
        log.log(level, "the lease in %s is %s%s", lease.url, state.value, f": {problem}" if problem else "")

    return Fence(lease, accept=settings.lease_unreachable == ACCEPT), Renewal(lease, lease_s / LEASE_RENEWALS, report)


@contextlib.asynccontextmanager
async def leased(settings: Settings) -> AsyncIterator[Fence | None]:
    """Hold the lease of a server while it runs. It is released after the last write; None if the server has none."""
    if settings.lease is None:
        yield None
        return
    fence, renewal = await asyncio.to_thread(open_fence, settings.lease, settings)
    await in_thread(renewal.start, lambda _: asyncio.to_thread(renewal.stop))
    try:
        yield fence
    finally:
        await asyncio.to_thread(renewal.stop)
