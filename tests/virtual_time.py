"""Run a test on the event loop of the simulation: time passes only when nothing is ready, and then at once.

It is for code without threads, sockets and subprocesses. A sleep takes no time and everything that was due before its
end has happened at its end, so a test can also show that something does not happen. The clocks of the standard library
do not follow this loop; code that has an injected clock gets `asyncio.get_running_loop().time`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.fault.sim import SimLoop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`. An error that nobody awaited fails the test."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        result = runner.run(main)
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        assert not loop.failures, loop.failures
        return result
