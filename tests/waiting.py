"""Waiting for a condition: the one way in which tests wait.

A test never sleeps for a fixed time and then looks, and never asserts how long something took. It waits until a
condition holds. The limit is only reached by a test that fails, so it is generous: a busy machine must not fail a test.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT_S = 60.0
PROGRAM_LIMIT_S = (
    600.0  # of programs that a test starts and waits for: Java, Node and browsers need minutes on a busy machine
)
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


class NeverTrueError(AssertionError):
    """A condition did not become true within the limit."""


def wait_until(
    condition: Callable[[], T | None], what: str = "", limit_s: float = LIMIT_S, pause_max_s: float = _LONGEST_PAUSE_S
) -> T:
    """Call `condition` until it returns something true, and return that. `what` describes it in the error."""
    deadline_s = time.monotonic() + limit_s
    pause_s = _FIRST_PAUSE_S
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise _never(condition, value, what, limit_s)
        time.sleep(min(pause_s, pause_max_s))
        pause_s = min(pause_s * 1.5, pause_max_s)
    return value


def wait_for(read: Callable[[], T], wanted: T, limit_s: float = LIMIT_S) -> None:
    """Call `read` until it returns `wanted`."""
    value: list[T] = []

    def is_wanted() -> bool:
        value[:] = [read()]
        return value[0] == wanted

    try:
        wait_until(is_wanted, limit_s=limit_s)
    except NeverTrueError:
        raise NeverTrueError(f"after {limit_s:g} s {value[0]!r} is still not {wanted!r}") from None


async def wait_until_async(condition: Callable[[], Any], what: str = "", limit_s: float = LIMIT_S) -> Any:
    """The same as `wait_until` on an event loop; `condition` may be a coroutine function."""
    clock = asyncio.get_running_loop().time  # in virtual time, too
    deadline_s = clock() + limit_s
    pause_s = _FIRST_PAUSE_S
    while True:
        result = condition()
        value = await result if inspect.isawaitable(result) else result
        if value:
            return value
        if clock() > deadline_s:
            raise _never(condition, value, what, limit_s)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


async def wait_for_async(read: Callable[[], Any], wanted: object, limit_s: float = LIMIT_S) -> None:
    """The same as `wait_for` on an event loop; `read` may be a coroutine function."""
    value: list[object] = []

    async def is_wanted() -> bool:
        result = read()
        value[:] = [await result if inspect.isawaitable(result) else result]
        return value[0] == wanted

    try:
        await wait_until_async(is_wanted, limit_s=limit_s)
    except NeverTrueError:
        raise NeverTrueError(f"after {limit_s:g} s {value[0]!r} is still not {wanted!r}") from None


def _never(condition: Callable[[], object], value: object, what: str, limit_s: float) -> NeverTrueError:
    name = what or getattr(condition, "__qualname__", "the condition")
    return NeverTrueError(f"after {limit_s:g} s still not true: {name}; the last value was {value!r}")
