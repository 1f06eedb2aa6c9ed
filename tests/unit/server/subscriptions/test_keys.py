from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headwater.engine import Engine
from headwater.limits import WEBHOOK_KEY_KEPT_S, Limits
from headwater.protocol.subscriptions.signatures import parse_jwks, verify_webhook
from headwater.server.subscriptions.keys import Keys
from headwater.store.memory import MemoryStore
from tests import virtual_time
from tests.fault.lives import LoopClock

LIMITS = Limits(webhook_key_s=1_000_000)


def run(test: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(test)


class SetClock(LoopClock):
    """A clock that a test sets forward."""

    ahead_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.ahead_s * 1000)


async def opened(clock: LoopClock | None = None) -> tuple[Engine, Keys]:
    engine = Engine(MemoryStore(), LIMITS, clock=clock or LoopClock())
    await engine.start()
    keys = Keys(engine)
    await keys.load()
    return engine, keys


def test_keys_survive_a_restart() -> None:
    async def test() -> None:
        engine, keys = await opened()
        assert parse_jwks(keys.jwks()) == {}
        await keys.ensure()
        again = Keys(engine)
        await again.load()
        assert (again.key_id, again.secret, again.jwks()) == (keys.key_id, keys.secret, keys.jwks())
        verify_webhook(keys.sign(100, b"body"), b"body", parse_jwks(again.jwks()), 100)
        await again.ensure()
        assert again.key_id == keys.key_id
        await engine.stop()

    run(test())


def test_a_key_is_replaced_when_it_is_old_and_stays_published_for_a_while() -> None:
    async def test() -> None:
        clock = SetClock()
        engine, keys = await opened(clock)
        await keys.ensure()
        first, secret = keys.key_id, keys.secret
        clock.ahead_s += LIMITS.webhook_key_s + 1
        await asyncio.gather(keys.ensure(), keys.ensure(), keys.ensure())
        second = keys.key_id
        assert list(parse_jwks(keys.jwks())) == [second, first]
        assert keys.secret == secret  # tokens stay valid
        clock.ahead_s += WEBHOOK_KEY_KEPT_S - 10
        assert first in parse_jwks(keys.jwks())
        clock.ahead_s += 20
        assert list(parse_jwks(keys.jwks())) == [second]
        await keys.rotate()
        stored = Keys(engine)
        await stored.load()
        assert list(parse_jwks(stored.jwks())) == [keys.key_id, second]
        await engine.stop()

    run(test())


def test_rotations_at_the_same_time_do_not_lose_a_key() -> None:
    async def test() -> None:
        engine, keys = await opened()
        await asyncio.gather(*[keys.rotate() for _ in range(5)])
        assert len(parse_jwks(keys.jwks())) == 5
        await engine.stop()

    run(test())
