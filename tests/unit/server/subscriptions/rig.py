"""Subscriptions without a network, in virtual time: an engine in memory, and receivers that answer as a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.outbound import Answer
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.subscriptions.config import Ack, AckBody, ClaimBody, Delivery, SubscriptionConfig
from headwater.server.auth.authority import Authority
from headwater.server.auth.grants import Grant, GrantedCallers
from headwater.server.auth.rules import Rules
from headwater.server.auth.tokens import Token
from headwater.server.subscriptions import Subscriptions
from headwater.server.subscriptions.records import ROOT, SubscriptionRecord, WakeInFlight, WakeStream
from headwater.server.subscriptions.subscription import RunningSubscription
from headwater.store.memory import MemoryStore
from tests.fault.lives import LoopClock

DONE = Answer(200, {}, b'{"done": true}')
FAILED = Answer(500, {}, b"")
JSON = "application/json"
LEASE_MS = 5_000
WAKE_STREAM = "wake"


class Receiver:
    """What a subscription uses of `OutboundClient`. `answers` is called with the body of each webhook."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.answers: Callable[[dict[str, Any]], Awaitable[Answer]] = self._done

    async def _done(self, _: dict[str, Any]) -> Answer:
        return DONE

    def parse(self, url: str) -> SimpleNamespace:
        return SimpleNamespace(host=url)

    async def request(self, method: str, url: str, *, body: bytes, **_: object) -> Answer:
        self.bodies.append(json.loads(body))
        return await self.answers(self.bodies[-1])

    async def aclose(self) -> None:
        """There is nothing to close."""


class Rig:
    def __init__(
        self, engine: Engine | None = None, limits: Limits | None = None, *, checks_access: bool = False
    ) -> None:
        self.authority = Authority(Rules({}, {})) if checks_access else None
        self.engine = engine or Engine(MemoryStore(), limits or Limits(), clock=LoopClock())
        self.receiver = Receiver()
        self.service = self._new_service()

    def _new_service(self) -> Subscriptions:
        callers = GrantedCallers(self.authority)
        return Subscriptions(self.engine, self.receiver, callers, entropy=lambda: 1.0)  # type: ignore[arg-type]

    def allow(self, *scopes: str) -> None:
        """Let the creator, a token of the name `creator`, do this and nothing else."""
        if self.authority is None:
            raise AssertionError("this rig does not check access")
        token = Token("creator", b"digest", list(scopes))
        self.authority.use(Rules({token.digest: token}, {}))

    async def __aenter__(self) -> Rig:
        await self.engine.start()
        await self._start()
        await self.create(WAKE_STREAM)  # or it exists
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.service.stop()
        await self.engine.stop()

    async def _start(self) -> None:
        await self.service.start()
        self.service.begin()

    async def restart(self, wait_s: float = 0.0) -> None:
        """End this service, and begin with what is stored."""
        await self.service.stop()
        await asyncio.sleep(wait_s)
        self.service = self._new_service()
        await self._start()

    # Streams

    def now_ms(self) -> int:
        return self.engine.now_ms()

    async def create(self, path: str, body: bytes = b"", fork: ForkRequest | None = None) -> None:
        command = Create(path=path, now_ms=self.now_ms(), content_type=JSON, body=body, fork=fork)
        await self.engine.execute(command)

    async def append(self, path: str, body: bytes = b"1") -> str:
        """Append to a stream. Returns its tail."""
        reply = await self.engine.execute(Append(path, self.now_ms(), body, JSON))
        if reply.tail is None:
            raise AssertionError("an append has no tail")
        return format_offset(reply.tail)

    async def delete(self, path: str) -> None:
        await self.engine.execute(Delete(path, self.now_ms()))

    async def trim(self, path: str, before: str) -> None:
        await self.engine.trim(path, before=parse_offset(before))

    # Subscriptions

    async def subscribe(
        self, pattern: str | None = "e/*", *members: str, webhook: bool = False, identity: str = "", name: str = "s"
    ) -> RunningSubscription:
        config = SubscriptionConfig(
            Delivery.WEBHOOK if webhook else Delivery.PULL_WAKE,
            pattern,
            members,
            webhook_url="https://receiver.example/" if webhook else None,
            wake_stream=None if webhook else WAKE_STREAM,
            lease_ttl_ms=LEASE_MS,
        )
        record = SubscriptionRecord(name, "", config, self.now_ms(), Grant(identity), "http://server.example")
        return (await self.service.create(record))[0]

    def current(self) -> RunningSubscription:
        return self.service.find("s")

    async def claim(self) -> tuple[WakeInFlight, list[WakeStream], str]:
        """A wake, its streams and its token."""
        wake, streams = await self.current().claim(ClaimBody("worker"))
        return wake, streams, self.current().token(wake)

    async def ack(
        self, wake: WakeInFlight, token: str, acks: dict[str, str] | None = None, *, done: bool = False
    ) -> bool:
        body = AckBody(wake.id, wake.generation, [Ack(at, path) for path, at in (acks or {}).items()], done)
        return await self.current().ack(token, body)

    async def cursors(self) -> dict[str, str]:
        return {link.path: link.acked_offset async for link in self.current().links.after("")}

    async def cursors_at_tail(self) -> dict[str, str]:
        """What the cursors are when everything is acked."""
        links = [link async for link in self.current().links.after("")]
        return {
            link.path: format_offset(link.stream.offset(link.stream.tail)) for link in links if link.stream is not None
        }

    async def keys(self) -> list[str]:
        """The keys of all documents of subscriptions, with `*` for the life."""
        documents = await self.engine.documents(ROOT, "", 1_000)
        lives = {subscription.record.life for subscription in self.service.page("", "")}
        keys = [document.key.removeprefix(ROOT) for document in documents]
        for life in lives:
            keys = [key.replace(life, "*") for key in keys]
        return keys
