"""DNS lookups of names that clients supply, in a bounded number of threads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from headwater.limits import OUTBOUND_LOOKUPS_MAX

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""Returns all addresses of a name as text. Raises OSError if there are none."""


class SystemResolver:
    """The resolver of the system, with one thread per lookup.

    If a name server does not answer, a lookup takes half a minute. So lookups do not use the executor of the loop,
    which has other work, and their threads are daemons, so that the process does not wait for them when it exits.
    """

    def __init__(self, lookups_max: int = OUTBOUND_LOOKUPS_MAX) -> None:
        self._free = asyncio.Semaphore(lookups_max)

    async def __call__(self, host: str) -> Sequence[str]:
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()
        thread = threading.Thread(target=self._look_up, args=(host, loop, answer), name="lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._free.release()
            raise OSError("failed to start a thread for the lookup") from error
        return await answer

    def _look_up(self, host: str, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Sequence[str]]) -> None:
        found: Sequence[str] | OSError
        try:
            infos = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
            found = [str(info[4][0]) for info in infos]
        except (OSError, UnicodeError) as error:
            found = error if isinstance(error, OSError) else OSError(str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._finish, answer, found)

    def _finish(self, answer: asyncio.Future[Sequence[str]], found: Sequence[str] | OSError) -> None:
        # A lookup counts until its thread ends, even if the caller has given up, because the limit is for threads.
        self._free.release()
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)
