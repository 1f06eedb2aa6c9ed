"""Writes that wait for their outcome, on a server that shares a database with others.

An outcome is unknown as long as the database cannot be asked: a batch whose connection was lost may be stored or not.
The engine waits for that, however long it takes. Clients wait for `OUTCOME_S`, then they get 503 with Retry-After and
an error that says that the outcome is not known yet. Until the engine knows all these outcomes, further writes are
refused at once, and nothing of them is stored.
"""

from __future__ import annotations

import asyncio

from headwater.errors import OutcomePendingError, UnavailableError
from headwater.limits import OUTCOME_S, RETRY_AFTER_S
from headwater.server.http import Respond, Response
from headwater.server.problems import problem


class PendingWrites:
    """Responds to each write once: with its outcome, or after `OUTCOME_S` without."""

    def __init__(self) -> None:
        self._waiting: dict[_PendingWrite, None] = {}  # oldest first
        self._unknown = 0  # writes that were responded to without their outcome, which is still unknown
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, respond: Respond) -> Respond:
        """What is to be called with the outcome of a write, which begins now. UnavailableError if the outcome of an
        earlier one is unknown."""
        if self._unknown:
            raise UnavailableError(
                "the database does not answer, and it is not known yet whether earlier writes were stored",
                retry_after_s=RETRY_AFTER_S,
            )
        loop = asyncio.get_running_loop()
        write = _PendingWrite(self, respond, loop.time() + OUTCOME_S)
        self._waiting[write] = None
        if self._timer is None:
            self._timer = loop.call_later(OUTCOME_S, self._look)
        return write.end

    def end(self, write: _PendingWrite, response: Response) -> None:
        if write in self._waiting:
            del self._waiting[write]
            write.respond(response)
        else:
            self._unknown -= 1

    def _look(self) -> None:
        """Respond to the writes that have waited for long enough."""
        loop = asyncio.get_running_loop()
        while (oldest := next(iter(self._waiting), None)) is not None and oldest.until_s <= loop.time():
            del self._waiting[oldest]
            self._unknown += 1
            error = OutcomePendingError(
                "the database does not answer; the write may be stored", retry_after_s=RETRY_AFTER_S
            )
            oldest.respond(problem(error))
        self._timer = None if oldest is None else loop.call_at(oldest.until_s, self._look)


class _PendingWrite:
    """A write without an outcome."""

    __slots__ = ("_writes", "respond", "until_s")

    def __init__(self, writes: PendingWrites, respond: Respond, until_s: float) -> None:
        self._writes = writes
        self.respond = respond
        self.until_s = until_s

    def end(self, response: Response) -> None:
        self._writes.end(self, response)
