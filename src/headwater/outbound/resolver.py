"""DNS lookups of names that others chose: off the loop, and bounded in number."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from headwater.limits import OUTBOUND_LOOKUPS_MAX

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""All addresses of a name, as text; OSError if there are none."""


class SystemResolver:
    """The system's resolver on threads of its own, one for each lookup under way.

    A name server that never answers holds a lookup for half a minute. The executor of the loop is used for other work,
    so lookups do not use it; and its threads are waited for when the process exits, so these are daemons.
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
            raise OSError("no thread could be started for the lookup") from error
        return await answer

    def _look_up(self, host: str, loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Sequence[str]]) -> None:
        found: Sequence[str] | OSError
        try:
            infos = socket.getaddrinfo(host.encode("ascii"), None, type=socket.SOCK_STREAM)
            found = [str(info[4][0]) for info in infos]
        except (OSError, UnicodeError) as error:
            found = error if isinstance(error, OSError) else OSError(str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(self._finish, answer, found)

    def _finish(self, answer: asyncio.Future[Sequence[str]], found: Sequence[str] | OSError) -> None:
        # A lookup counts until its thread ends, not until its caller gives up: threads are what is bounded.
        self._free.release()
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)
