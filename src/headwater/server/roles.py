"""Which of the servers that share a store does the work that one at a time does: the background of a store.

A server holds the role for `ROLE_S` and renews it each `ROLE_LOOK_S`; the others ask as often. So it moves within
seconds when its server dies, and at once when that stops. A server that could not renew it stops the work before
another one can begin. One that hung meanwhile finds out as soon as it runs again: nothing it does in the background is
accepted after that (`Engine.fenced`), and what was on its way is decided on states that have changed since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from headwater.errors import HeadwaterError, NotReadyError
from headwater.limits import RETRY_AFTER_S, ROLE_LOOK_S, ROLE_MARGIN_S, ROLE_S
from headwater.store.contract import HeldRole, SharedStore

log = logging.getLogger("headwater.server")

BACKGROUND = "background"


class Role:
    """The role of a server without others: it always has it."""

    def __init__(self) -> None:
        self.token = 0  # 0: this server does not have the role, or there is nobody else who could

    @property
    def is_held(self) -> bool:
        return True

    @property
    def is_shared(self) -> bool:
        return False

    @property
    def is_reachable(self) -> bool:
        """Whether the store has answered lately."""
        return True

    async def start(self, begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        await begin()

    async def stop(self) -> None:
        """There is nothing to stop: whoever began the work ends it."""

    def refusal(self) -> HeadwaterError | None:
        """Why work in the background may change nothing now; None if it may."""
        return None if self.is_held else NotReadyError("another server does this now", retry_after_s=RETRY_AFTER_S)


class SharedRole(Role):
    """The role of one of several servers."""

    def __init__(self, store: SharedStore) -> None:
        super().__init__()
        self._store = store
        self._held: HeldRole | None = None
        self._until_s = 0.0  # by the clock of this process
        self._answered_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self._is_working = False
        self._timeline = store.timeline  # in which the role was asked for

    @property
    def is_held(self) -> bool:
        is_current = self._timeline == self._store.timeline  # otherwise what the work has in memory may be lost
        return self._held is not None and time.monotonic() < self._until_s and is_current

    @property
    def is_shared(self) -> bool:
        return True

    @property
    def is_reachable(self) -> bool:
        return time.monotonic() - self._answered_s < ROLE_S

    async def start(self, begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        """Take the role if nobody has it, and go on trying. `begin` and `end` are called when it comes and goes."""
        await self._look(begin, end)
        self._task = asyncio.create_task(self._look_always(begin, end))

    async def stop(self) -> None:
        """Give the role up. The work has ended before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        held, self._held, self.token = self._held, None, 0
        if held is not None:
            try:
                async with asyncio.timeout(ROLE_LOOK_S):
                    await self._store.release(held)
            except (HeadwaterError, TimeoutError) as error:
                log.warning("the role %r could not be given up, and ends by itself: %s", held.name, error)

    async def _look_always(self, begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(ROLE_LOOK_S)
            try:
                await self._look(begin, end)
            except Exception:
                log.exception("the work in the background could not begin or end")

    async def _look(self, begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        await self._ask()
        if self._is_working and not self.is_held:
            self._is_working = False
            await end()
        if self.is_held and not self._is_working:
            log.info("this server does the work in the background from now on")
            try:
                await begin()
            except BaseException as error:
                await end()
                if not isinstance(error, HeadwaterError):
                    raise
                log.warning("the work in the background could not begin: %s", error)
            else:
                self._is_working = True

    async def _ask(self) -> None:
        asked_s = time.monotonic()
        try:
            async with asyncio.timeout(ROLE_S):
                held = await self._store.hold(BACKGROUND, ROLE_S)
        except (HeadwaterError, TimeoutError) as error:
            log.info("the role %r could not be asked for: %s", BACKGROUND, error)
            return
        self._answered_s = time.monotonic()
        timeline, self._timeline = self._timeline, self._store.timeline
        if held is not None and self._held is not None and (held.token, self._timeline) != (self._held.token, timeline):
            self._until_s = 0.0  # another server, or another database, had it: what this one knows may be old
            self._held, self.token = None, 0
            return
        self._held, self.token = held, 0 if held is None else held.token
        self._until_s = asked_s + ROLE_S - ROLE_MARGIN_S
