"""One POST to a NURL, and what its response means."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from headwater.errors import InvalidNotifyError, OutboundError, TargetRefusedError
from headwater.limits import NOTIFY_ANSWER_BYTES_MAX, NOTIFY_ANSWER_S, NOTIFY_POSTS_PER_HOST_MAX
from headwater.outbound import Answer, CheckedUrl, HostSlots
from headwater.protocol.tables.notify import FORM_TYPE, Notification, format_notification
from headwater.protocol.tables.paths import name_of, surl_path
from headwater.protocol.trace_context import TraceContext
from headwater.server.notify.nurl import NurlRecord
from headwater.server.observing.tracing import next_header

_GONE = 410


class Outbound(Protocol):
    """The interface of the guarded client that is used here."""

    def parse(self, url: str) -> CheckedUrl: ...

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, total_s: float, body_bytes_max: int
    ) -> Answer: ...

    async def aclose(self) -> None: ...


class PostOutcome(enum.Enum):
    DELIVERED = "delivered"
    FAILED = "failed"  # try again later
    GONE = "answered 410"
    REFUSED = "refused: the server does not call this address"


class Sender:
    def __init__(self, outbound: Outbound, posts_max: int, public_url: str | None = None) -> None:
        self.outbound = outbound
        self.public_url = public_url  # None: use the address that each advertiser used
        self._slots = asyncio.Semaphore(posts_max)
        self._hosts = HostSlots(NOTIFY_POSTS_PER_HOST_MAX)
        self.outcomes: Counter[PostOutcome] = Counter()

    def surl(self, path: str, base: str) -> str:
        return f"{self.public_url or base}{surl_path(name_of(path))}"

    async def post(self, nurl: NurlRecord, trace: TraceContext | None = None) -> tuple[PostOutcome, str]:
        """Send a POST. Returns the outcome and a description."""
        outcome, detail = await self._try(nurl, trace)
        self.outcomes[outcome] += 1
        return outcome, detail

    async def _try(self, nurl: NurlRecord, trace: TraceContext | None) -> tuple[PostOutcome, str]:
        try:
            answer = await self._post(nurl, trace)
        except TargetRefusedError as error:
            return PostOutcome.REFUSED, error.detail
        except (OutboundError, InvalidNotifyError) as error:
            return PostOutcome.FAILED, error.detail
        if 200 <= answer.status < 300:
            return PostOutcome.DELIVERED, ""
        return PostOutcome.GONE if answer.status == _GONE else PostOutcome.FAILED, f"answered {answer.status}"

    async def _post(self, nurl: NurlRecord, trace: TraceContext | None) -> Answer:
        body = format_notification(Notification(self.surl(nurl.path, nurl.base)))
        host = self.outbound.parse(nurl.url).host
        async with self._hosts.held(host), self._slots:
            return await self.outbound.request(
                "POST",
                nurl.url,
                headers={"content-type": FORM_TYPE, **next_header(trace)},
                body=body,
                total_s=NOTIFY_ANSWER_S,
                body_bytes_max=NOTIFY_ANSWER_BYTES_MAX,
            )
