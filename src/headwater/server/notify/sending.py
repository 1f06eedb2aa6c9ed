"""One POST to a NURL, and what its answer means."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from typing import Protocol

from headwater.errors import OutboundError, TargetRefusedError
from headwater.limits import NOTIFY_ANSWER_BYTES_MAX
from headwater.outbound import Answer, Target
from headwater.protocol.tables.notify import FORM_TYPE, Notification, format_notification
from headwater.protocol.tables.paths import name_of, surl_path
from headwater.server.notify.nurl import Nurl

_GONE = 410


class Outbound(Protocol):
    """The part of the guarded client that is used here."""

    def parse(self, url: str) -> Target: ...

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, body_bytes_max: int
    ) -> Answer: ...

    async def aclose(self) -> None: ...


class Outcome(enum.Enum):
    DELIVERED = "delivered"
    FAILED = "failed"  # try again later
    GONE = "answered 410"
    REFUSED = "refused"  # an address that the server does not call


class Sender:
    def __init__(self, outbound: Outbound, posts_max: int, public_url: str | None = None) -> None:
        self.outbound = outbound
        self.public_url = public_url  # None: the address that each advertiser used
        self._slots = asyncio.Semaphore(posts_max)

    def surl(self, nurl: Nurl) -> str:
        return f"{self.public_url or nurl.base}{surl_path(name_of(nurl.path))}"

    async def post(self, nurl: Nurl) -> tuple[Outcome, str]:
        """What came of a POST, in a word for programs and one for people."""
        body = format_notification(Notification(self.surl(nurl)))
        async with self._slots:
            try:
                answer = await self.outbound.request(
                    "POST",
                    nurl.url,
                    headers={"content-type": FORM_TYPE},
                    body=body,
                    body_bytes_max=NOTIFY_ANSWER_BYTES_MAX,
                )
            except TargetRefusedError as error:
                return Outcome.REFUSED, error.detail
            except OutboundError as error:
                return Outcome.FAILED, error.detail
        if 200 <= answer.status < 300:
            return Outcome.DELIVERED, ""
        return Outcome.GONE if answer.status == _GONE else Outcome.FAILED, f"answered {answer.status}"
