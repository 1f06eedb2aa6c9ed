"""The handshake of a follower: it advertises its own NURL at the NURL that the remote server names in `STP-Notify`.

It is sent after the first response, after the first response that follows a failure, if the remote server names another
NURL, and every FOLLOW_REGISTER_S, because the remote server may have dropped the NURL or been replaced. There are at
least FOLLOW_REGISTER_PAUSE_S between two handshakes, and growing waits after failures. A failure is only shown in
`status`: a follower works without Notify.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from urllib.parse import urljoin

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.errors import HeadwaterError, InvalidNotifyError, TargetRefusedError, is_retryable
from headwater.outbound import CheckedUrl, OutboundClient
from headwater.protocol.tables.headers import NOTIFY
from headwater.protocol.tables.notify import FORM_TYPE, Notification, format_notification

log = logging.getLogger("headwater.following")

EVENT = "rows"  # the event type under which a follower advertises its NURL
REGISTERED = "registered"
NO_PUBLIC_URL = "none: this server has no public URL"
NOT_ASKED = "none: no answer yet"
NOT_OFFERED = "none: the remote server names no NURL"


class Handshake:
    """`registered` is called after each success, because earlier rows were not notified."""

    def __init__(
        self, client: OutboundClient, surl: CheckedUrl, nurl: str | None, registered: Callable[[], None]
    ) -> None:
        self.status = NO_PUBLIC_URL if nurl is None else NOT_ASKED
        self._client = client
        self._surl = surl
        self._nurl = nurl  # the NURL of this server; None: unknown
        self._registered = registered
        self._reference = ""  # the NURL of the remote server; empty: none
        self._due_at = self._earliest_at = 0.0  # by the clock of the loop
        self._streak = Streak(Backoff(limits.FOLLOW_REGISTER_PAUSE_S, limits.FOLLOW_REGISTER_S))
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def answered(self, headers: Mapping[str, str]) -> None:
        """Handle the headers of a response of the remote server."""
        if self._nurl is None:
            return
        reference = headers.get(NOTIFY, "").strip()
        if not reference:
            self.status = NOT_OFFERED
        if reference != self._reference:
            self._due_at = min(self._due_at, self._earliest_at)
            self._reference = reference
            self._plan()

    def lost(self) -> None:
        """The remote server was unreachable, or its table has changed: it may have lost the NURL."""
        self._reference = ""
        self._plan()

    async def close(self) -> None:
        self.lost()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _plan(self) -> None:
        """Set the timer for the next handshake, if one is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reference and self._task is None:
            self._timer = asyncio.get_running_loop().call_at(self._due_at, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._nurl is not None:
            self._task = asyncio.create_task(self._register(self._nurl, self._reference))

    async def _register(self, nurl: str, reference: str) -> None:
        status, again = await self._outcome(nurl, reference)
        if again:
            wait_s = self._streak.fail()
        else:
            self._streak.reset()
            wait_s = limits.FOLLOW_REGISTER_S
        now = asyncio.get_running_loop().time()
        self._earliest_at = now + limits.FOLLOW_REGISTER_PAUSE_S
        self._due_at = now + wait_s if reference == self._reference else self._earliest_at
        if status != self.status:
            log.info("Notify for %s: %s", self._surl.shown, status)
        self.status, self._task = status, None
        self._plan()
        if status == REGISTERED:
            self._registered()

    async def _outcome(self, nurl: str, reference: str) -> tuple[str, bool]:
        """The result, and whether to retry soon."""
        try:
            status = await self._post(nurl, reference)
        except (TargetRefusedError, InvalidNotifyError) as error:
            return f"refused: {error.detail}", False
        except HeadwaterError as error:
            return f"failed: {error.detail}", True
        except Exception as error:
            log.exception("the handshake for %s failed", self._surl.shown)
            return f"failed: {error}", True
        if 200 <= status < 300:
            return REGISTERED, False
        if is_retryable(status):
            return f"failed: answered {status}", True
        return f"refused: answered {status}", False

    async def _post(self, nurl: str, reference: str) -> int:
        answer = await self._client.request(
            "POST",
            str(self._target(reference)),
            headers={"content-type": FORM_TYPE},
            body=format_notification(Notification(nurls=((EVENT, nurl),))),
            total_s=limits.NOTIFY_ANSWER_S,
            body_bytes_max=limits.NOTIFY_ANSWER_BYTES_MAX,
        )
        return answer.status

    def _target(self, reference: str) -> CheckedUrl:
        """The remote NURL. A NURL on another server is refused, so that a server cannot direct requests to third
        parties."""
        try:
            url = urljoin(self._surl.shown, reference[: limits.URL_LENGTH_MAX])
        except ValueError:
            raise TargetRefusedError("STP-Notify is not a URL") from None
        target, surl = self._client.parse(url), self._surl
        if (target.scheme, target.host, target.port) != (surl.scheme, surl.host, surl.port):
            raise TargetRefusedError("STP-Notify names another server than that of the SURL")
        return target
