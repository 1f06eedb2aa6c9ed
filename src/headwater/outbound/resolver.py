"""DNS lookups of names that clients supply, in a bounded number of threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from headwater.limits import OUTBOUND_LOOKUPS_MAX
from headwater.outbound.slots import FairSlots

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""Returns all addresses of a name as text. Raises OSError if there are none."""


# On whose behalf the current task sends a request. httpcore passes nothing but the host to the network backend.
user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="")


class SystemResolver:
    """The resolver of the system, with one thread per lookup. Users share the threads.

    If a name server does not answer, a lookup takes half a minute. So lookups do not use the executor of the loop,
    which has other work, and their threads are daemons, so that the process does not wait for them when it exits.
    """

    def __init__(self, lookups_max: int = OUTBOUND_LOOKUPS_MAX) -> None:
        self._slots = FairSlots(lookups_max)

    async def __call__(self, host: str) -> Sequence[str]:
        share = user.get() or host
        await self._slots.acquire(share)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()
        thread = threading.Thread(target=self._look_up, args=(host, share, loop, answer), name="lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._slots.release(share)
            raise OSError("failed to start a thread for the lookup") from error
        return await answer

    def _look_up(
        self, host: str, share: str, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Sequence[str]]
    ) -> None:
        outcome: Sequence[str] | OSError
        try:
            infos = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
            outcome = [str(info[4][0]) for info in infos]
        except (OSError, UnicodeError) as error:
            outcome = error if isinstance(error, OSError) else OSError(str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._finish, share, answer, outcome)

    def _finish(self, share: str, answer: asyncio.Future[Sequence[str]], outcome: Sequence[str] | OSError) -> None:
        # A lookup counts until its thread ends, even if the caller has given up, because the limit is for threads.
        self._slots.release(share)
        if answer.done():
            return
        if isinstance(outcome, OSError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
