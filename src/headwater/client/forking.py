"""What a client does after `fork()`, as multiprocessing, `gunicorn --preload` and Celery use it.

A child process inherits the sockets of its parent but none of its threads. Two processes on one socket would read each
other's responses, so that a child never touches what its parent opened: not to use it, and not to close it either.
Connections are opened anew, each in its own process. What cannot be continued raises ForkedError.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from headwater.errors import ForkedError
from headwater.limits import POOL_RESPONSES_MAX

P = TypeVar("P")

_forks = 0  # how many forks lie between this process and the one that loaded the module
_inherited: list[object] = []  # referenced for ever, because a destructor could wait for a lock of a lost thread


def process() -> int:
    """A number that differs between this process, its parent and its children. Unlike a pid, it is not used again."""
    return _forks


def leave(*parents: object) -> None:
    """Do not use these objects of the parent, and do not run their destructors."""
    _inherited.append(parents)


def _in_child() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_in_child)


class Owned:
    """Something that only the process that made it can use, such as a producer."""

    _process: int

    def _is_here(self) -> bool:
        return self._process == _forks

    def _check_process(self, advice: str) -> None:
        if self._process != _forks:
            raise ForkedError(f"this {type(self).__name__} belongs to the parent process; {advice}")


class Unpicklable:
    """Something that works in the background, and so cannot be sent to another process."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it holds connections and work in progress; "
            "send the client or the stream, and make a new one in the other process"
        )


class Lent(Generic[P]):
    """A connection pool, and how many responses of it are open."""

    def __init__(self, pool: P) -> None:
        self.pool = pool
        self.open_count = 0


class _ProcessPools(Generic[P]):
    """The pools of one process, with a lock of this process."""

    def __init__(self, first: P) -> None:
        self.lock = threading.Lock()
        self.pools = [Lent(first)]


class Pools(Generic[P]):
    """The connection pools of a client, in each process.

    A pool of httpx looks at all its connections at each request. So that many live reads do not slow each other down,
    a pool has a limited number of open responses, and further ones use another pool.
    """

    def __init__(self, open_pool: Callable[[], P], user_pool: P | None) -> None:
        self._open = open_pool
        self._has_user_pool = user_pool is not None
        self._processes = {_forks: _ProcessPools(open_pool() if user_pool is None else user_pool)}

    def here(self) -> P:
        """The first pool of this process; it is opened if the process was forked."""
        return self._of_process().pools[0].pool

    def lend(self) -> Lent[P]:
        """A pool of this process with room for one more response. Pass it to `give_back` when that is closed."""
        of_process = self._of_process()
        with of_process.lock:
            room = (each for each in of_process.pools if self._has_user_pool or each.open_count < POOL_RESPONSES_MAX)
            lent = next(room, None)
            if lent is None:
                lent = Lent(self._open())
                of_process.pools.append(lent)
            lent.open_count += 1
        return lent

    def give_back(self, lent: Lent[P]) -> None:
        of_process = self._of_process()
        with of_process.lock:
            lent.open_count -= 1

    def to_close(self) -> list[P]:
        """The pools that this process has to close."""
        of_process = self._processes.get(_forks)
        return [] if self._has_user_pool or of_process is None else [each.pool for each in of_process.pools]

    def _of_process(self) -> _ProcessPools[P]:
        of_process = self._processes.get(_forks)
        if of_process is not None:
            return of_process
        if self._has_user_pool:
            raise ForkedError("the httpx client of this client belongs to the parent process; make a client here")
        # Without a lock: a thread of the parent may hold it.
        return self._processes.setdefault(_forks, _ProcessPools(self._open()))
