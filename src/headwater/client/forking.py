"""What a client does after `fork()`, as multiprocessing, `gunicorn --preload` and Celery use it.

A child process inherits the sockets of its parent but none of its threads. Two processes on one socket would read each
other's responses, so that a child never touches what its parent opened: not to use it, and not to close it either.
Connections are opened anew, each in its own process. What cannot be continued raises ForkedError.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

from headwater.errors import ForkedError

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


class Pools(Generic[P]):
    """The connection pool of a client, one in each process."""

    def __init__(self, open_pool: Callable[[], P], given: P | None) -> None:
        self._open = open_pool
        self._is_given = given is not None
        self._pools = {_forks: open_pool() if given is None else given}

    def here(self) -> P:
        """The pool of this process; it is opened if the process was forked."""
        pool = self._pools.get(_forks)
        if pool is not None:
            return pool
        if self._is_given:
            raise ForkedError("the httpx client of this client belongs to the parent process; make a client here")
        return self._pools.setdefault(_forks, self._open())  # without a lock: a thread of the parent may hold it

    def to_close(self) -> P | None:
        """The pool that this process has to close, if there is one."""
        return None if self._is_given else self._pools.get(_forks)
