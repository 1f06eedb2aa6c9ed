"""The notifications of one NURL: at most one POST at a time, with retries."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from headwater.errors import HeadwaterError
from headwater.limits import Limits
from headwater.protocol.trace_context import TraceContext
from headwater.server.notify.nurl import NurlRecord, failed, is_given_up, succeeded, wait_s
from headwater.server.notify.sending import PostOutcome, Sender

log = logging.getLogger("headwater.notify")


class DeliveryState(enum.Enum):
    """
    IDLE     -> SENDING   rows arrived
    SENDING  -> IDLE      the last row was notified
    SENDING  -> WAITING   a POST failed
    WAITING  -> SENDING   the next attempt is due, or the NURL was advertised again
    any      -> OVER      the NURL was withdrawn or dropped, its table was deleted, or the server stops
    """

    IDLE = "idle"
    SENDING = "sending"
    WAITING = "waiting"
    OVER = "over"


class Surroundings(Protocol):
    """The interface of the notifier that a delivery uses."""

    sender: Sender
    limits: Limits
    entropy: Callable[[], float]

    def now_ms(self) -> int: ...

    async def record(self, nurl: NurlRecord) -> None: ...

    async def drop(self, delivery: NurlDelivery, reason: str) -> None: ...


class NurlDelivery:
    def __init__(
        self,
        nurl: NurlRecord,
        last_seqno: Callable[[], int],
        around: Surroundings,
        trace: Callable[[], TraceContext | None] = lambda: None,
    ) -> None:
        self.nurl = nurl
        self.stored = nurl  # as in the document
        self._last_seqno = last_seqno
        self._trace = trace  # of the last rows
        self._around = around
        self.state = DeliveryState.IDLE
        self.answered_ms = 0  # when the last POST of this process ended; 0: there was none
        self.answer = ""  # what came of it
        self._attempted = 0  # the failures before the current attempt
        self._dropped: str | None = None  # the reason why it is dropped, until that is stored
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lag_rows(self) -> int:
        return max(0, self._last_seqno() - self.nurl.notified_seqno)

    @property
    def is_behind(self) -> bool:
        return self.lag_rows > 0

    def wake(self) -> None:
        """Handle new rows."""
        if self.state is DeliveryState.IDLE and self.is_behind:
            self._begin()

    def resume(self) -> None:
        """Continue where the last process stopped, according to the document."""
        if self.nurl.failures and self.is_behind:
            self._wait()
        else:
            self.wake()

    def advertised_again(self, nurl: NurlRecord) -> None:
        """`nurl` is stored. A POST may have succeeded meanwhile."""
        self.stored = nurl
        self._dropped = None
        self.nurl = msgspec.structs.replace(nurl, notified_seqno=max(nurl.notified_seqno, self.nurl.notified_seqno))
        if self.state is DeliveryState.WAITING:
            self._cancel_timer()
            self._begin()

    def close(self) -> None:
        self.state = DeliveryState.OVER
        self._cancel_timer()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def closed(self) -> None:
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # Sending

    def _begin(self) -> None:
        self.state = DeliveryState.SENDING
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self.state is DeliveryState.SENDING and self.is_behind:
                await self._send()
        except HeadwaterError as error:
            log.warning("the state of NURL %s could not be stored: %s", self.nurl.shown, error)
            self._back_off()
        except Exception:
            log.exception("the notification of NURL %s failed", self.nurl.shown)
            self._back_off()
        else:
            if self.state is DeliveryState.SENDING:
                self.state = DeliveryState.IDLE

    async def _send(self) -> None:
        self._attempted = self.nurl.failures
        if self._dropped is not None:
            await self._around.drop(self, self._dropped)
            return
        seqno = self._last_seqno()
        outcome, detail = await self._around.sender.post(self.nurl, self._trace())
        self.answered_ms = self._around.now_ms()
        self.answer = detail if outcome is PostOutcome.FAILED else outcome.value  # others may hold internal addresses
        if outcome is PostOutcome.DELIVERED:
            self.nurl = succeeded(self.nurl, seqno)
            if self.stored.failures:  # otherwise the schedule is unchanged
                await self._record()
        elif outcome is PostOutcome.FAILED:
            await self._failed(detail)
        else:
            # The detail may contain an internal address, and every reader of the NURL table can see the reason.
            log.info("NURL %s is dropped: %s", self.nurl.shown, detail)
            await self._drop(outcome.value)

    async def _failed(self, detail: str) -> None:
        now_ms, limits = self._around.now_ms(), self._around.limits
        self.nurl = failed(self.nurl, now_ms, limits, self._around.entropy())
        log.info("NURL %s failed %d times: %s", self.nurl.shown, self.nurl.failures, detail)
        if is_given_up(self.nurl, now_ms, limits):
            await self._drop(f"no success for {limits.notify_give_up_s:g} s: {detail}")
        else:
            await self._record()
            self._wait_if_sending()

    async def _drop(self, reason: str) -> None:
        """Drop the NURL. If that cannot be stored, it is tried again later, without another POST."""
        self._dropped = reason
        await self._around.drop(self, reason)

    async def _record(self) -> None:
        nurl = self.nurl
        await self._around.record(nurl)
        self.stored = nurl

    # Waiting

    def _back_off(self) -> None:
        """Wait longer after each failure, also if it is our own and cannot be stored."""
        if self.nurl.failures <= self._attempted:  # this attempt does not count as a failure yet
            self.nurl = failed(self.nurl, self._around.now_ms(), self._around.limits, self._around.entropy())
        self._wait_if_sending()

    def _wait_if_sending(self) -> None:
        if self.state is DeliveryState.SENDING:
            self._wait()

    def _wait(self) -> None:
        self.state = DeliveryState.WAITING
        delay_s = wait_s(self.nurl, self._around.now_ms(), self._around.limits)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._begin()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
