"""One webhook: the request to a receiver, and what its response means."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections import Counter, OrderedDict

import msgspec

from headwater import limits
from headwater.errors import OutboundError
from headwater.outbound import Answer, FairSlots, HostSlots, OutboundClient
from headwater.positions import BEGINNING
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.subscriptions.config import ROOT, WebhookAnswer, quote_id
from headwater.protocol.subscriptions.signatures import WEBHOOK_SIGNATURE
from headwater.server.subscriptions.keys import Keys
from headwater.server.subscriptions.records import SubscriptionRecord, WakeInFlight, WakeStream


class DeliveryOutcome(enum.Enum):
    DONE = "done"  # all streams of the wake are acked
    ACCEPTED = "accepted"  # the receiver calls back
    FAILED = "failed"


class WebhookSender:
    """Sends webhooks. `public_url` None: callbacks go to the address that the creator of a subscription used.

    The creators of subscriptions share the webhooks that are sent at the same time, so that the receivers of one, if
    they never answer, do not delay those of others. Where access is not checked, hosts share them. Hosts that have not
    answered their last webhook, or never had one, get half of the slots, so that they do not delay those that answer.
    """

    def __init__(self, outbound: OutboundClient, keys: Keys, posts_max: int, public_url: str | None) -> None:
        self.outbound = outbound
        self.public_url = public_url
        self.outcomes: Counter[DeliveryOutcome] = Counter()
        self._keys = keys
        self._slots = FairSlots(posts_max)
        self._untried = FairSlots(max(1, posts_max // 2))
        self._answered: OrderedDict[str, None] = OrderedDict()  # hosts that have, by creator
        self._beginning = asyncio.Lock()
        self._hosts = HostSlots(limits.WEBHOOK_POSTS_PER_HOST_MAX)

    def url_of(self, base: str, path: str) -> str:
        return f"{self.public_url or base}{path}"

    async def post(self, record: SubscriptionRecord, wake: WakeInFlight, token: str) -> tuple[DeliveryOutcome, str]:
        """Send a wake. Returns the outcome, and why if it failed."""
        outcome, reason = await self._try(record, wake, token)
        self.outcomes[outcome] += 1
        return outcome, " ".join(reason.split())[: limits.WEBHOOK_REASON_LENGTH_MAX]

    async def _try(self, record: SubscriptionRecord, wake: WakeInFlight, token: str) -> tuple[DeliveryOutcome, str]:
        try:
            host, identity = self.outbound.parse(record.config.webhook_url or "").host, record.grant.identity
            receiver, user = f"{host} {identity}", identity or host
            async with contextlib.AsyncExitStack() as held:
                await held.enter_async_context(self._hosts.held(receiver))
                if self._answered.pop(receiver, receiver) is not None:
                    await held.enter_async_context(self._untried.held(user))
                await held.enter_async_context(self._slots.held(user))
                async with self._beginning:  # one in a turn of the loop: to sign and connect takes half a millisecond
                    await asyncio.sleep(0)
                await self._keys.renew()
                answer = await self._send(record, wake, token)
            self._answered[receiver] = None
            if len(self._answered) > limits.WEBHOOK_HOSTS_KNOWN_MAX:
                self._answered.popitem(last=False)
        except OutboundError as error:
            return DeliveryOutcome.FAILED, error.detail
        if not 200 <= answer.status < 300:
            return DeliveryOutcome.FAILED, f"the receiver answered {answer.status}"
        return (DeliveryOutcome.DONE if _is_done(answer.body) else DeliveryOutcome.ACCEPTED), ""

    async def _send(self, record: SubscriptionRecord, wake: WakeInFlight, token: str) -> Answer:
        callback_url = self.url_of(record.base, f"{ROOT}/{quote_id(record.id)}/callback")
        body = msgspec.json.encode(
            {
                "subscription_id": record.id,
                "wake_id": wake.id,
                "generation": wake.generation,
                "streams": [shown_stream(stream) for stream in wake.streams],
                "callback_url": callback_url,
                "callback_token": token,
            }
        )
        return await self.outbound.request(
            "POST",
            record.config.webhook_url or "",
            headers={"content-type": "application/json", WEBHOOK_SIGNATURE: self._keys.sign(int(time.time()), body)},
            body=body,
            total_s=min(limits.WEBHOOK_ANSWER_S, record.config.lease_ttl_ms / 1000),
            body_bytes_max=limits.WEBHOOK_ANSWER_BYTES_MAX,
            user=record.grant.identity,
        )


def shown_stream(stream: WakeStream) -> dict[str, object]:
    """A stream of a wake, in the body of a webhook or of the response to a claim."""
    return {
        "path": stream.path,
        "link_type": "explicit" if stream.is_member else "glob",
        "acked_offset": BEGINNING if stream.acked is None else format_offset(stream.acked),
        "tail_offset": format_offset(stream.tail),
        "has_pending": True,
    }


def _is_done(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=WebhookAnswer).done
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
