"""Webhooks to receivers that never answer: they do not delay those to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast
from urllib.parse import urlsplit

from headwater.errors import TargetUnreachableError
from headwater.outbound import Answer, CheckedUrl, OutboundClient, parse_target
from headwater.protocol.subscriptions.config import Delivery, SubscriptionConfig
from headwater.server.auth.grants import Grant
from headwater.server.subscriptions.keys import Keys
from headwater.server.subscriptions.records import SubscriptionRecord, WakeInFlight
from headwater.server.subscriptions.sending import DeliveryOutcome, WebhookSender
from tests.waiting import wait_for_async

POSTS_MAX = 8


class Receivers:
    """The guarded client. Hosts that begin with `silent` never answer; they fail when they are told to."""

    def __init__(self) -> None:
        self.silent = 0
        self.fail = asyncio.Event()

    def parse(self, url: str) -> CheckedUrl:
        return parse_target(url)

    async def request(self, method: str, url: str, **_: Any) -> Answer:
        if (urlsplit(url).hostname or "").startswith("silent"):
            self.silent += 1
            try:
                await self.fail.wait()
            finally:
                self.silent -= 1
            raise TargetUnreachableError("no response in time", how="timeout")
        return Answer(200, {}, b'{"done":true}')


class _Keys:
    async def renew(self) -> None:
        """This key is never old."""

    def sign(self, timestamp_s: int, body: bytes) -> str:
        return "signed"


class Webhooks:
    def __init__(self) -> None:
        self.receivers = Receivers()
        keys, outbound = cast(Keys, _Keys()), cast(OutboundClient, self.receivers)
        self._sender = WebhookSender(outbound, keys, POSTS_MAX, "https://headwater.example")
        self._tasks: list[asyncio.Task[DeliveryOutcome]] = []

    def begin(self, identity: str, host: str) -> None:
        self._tasks.append(asyncio.create_task(self.post(identity, host)))

    async def post(self, identity: str, host: str) -> DeliveryOutcome:
        config = SubscriptionConfig(Delivery.WEBHOOK, "**", webhook_url=f"https://{host}/hook")
        record = SubscriptionRecord("s", "life", config, 0, Grant(identity), "")
        outcome, _ = await self._sender.post(record, WakeInFlight("w", 1), "token")
        return outcome

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def run(work: Callable[[Webhooks], Awaitable[None]]) -> None:
    async def main() -> None:
        webhooks = Webhooks()
        await work(webhooks)
        await webhooks.end()
        assert webhooks.receivers.silent == 0

    asyncio.run(main())


def test_the_receivers_of_one_creator_leave_room_for_those_of_others() -> None:
    async def work(webhooks: Webhooks) -> None:
        for number in range(300):
            webhooks.begin("attacker", f"silent{number}.example")
        await wait_for_async(lambda: webhooks.receivers.silent, POSTS_MAX // 4)
        for number in range(50):
            assert await webhooks.post("other", f"healthy{number}.example") is DeliveryOutcome.DONE
        assert webhooks.receivers.silent == POSTS_MAX // 4

    run(work)


def test_the_receivers_of_one_creator_leave_room_for_others_at_the_same_host() -> None:
    async def work(webhooks: Webhooks) -> None:
        for _ in range(300):
            webhooks.begin("attacker", "silent.example")
        await wait_for_async(lambda: webhooks.receivers.silent, POSTS_MAX // 4)
        webhooks.begin("other", "silent.example")
        await wait_for_async(lambda: webhooks.receivers.silent, POSTS_MAX // 4 + 1)

    run(work)


def test_where_access_is_not_checked_hosts_that_do_not_answer_leave_room_for_those_that_do() -> None:
    async def work(webhooks: Webhooks) -> None:
        for number in range(50):
            assert await webhooks.post("", f"healthy{number}.example") is DeliveryOutcome.DONE
        for number in range(300):
            webhooks.begin("", f"silent{number}.example")
        await wait_for_async(lambda: webhooks.receivers.silent, POSTS_MAX // 2)
        for number in [*range(50)] * 2:
            assert await webhooks.post("", f"healthy{number}.example") is DeliveryOutcome.DONE
        assert webhooks.receivers.silent == POSTS_MAX // 2
        webhooks.receivers.fail.set()
        assert await webhooks.post("", "new.example") is DeliveryOutcome.DONE

    run(work)
