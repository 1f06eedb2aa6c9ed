"""Why a server is not ready: told in words that give nothing away."""

from __future__ import annotations

import asyncio

import pytest

from headwater.engine import Engine
from headwater.errors import NotReadyError
from headwater.limits import Limits
from headwater.server.http import Request
from headwater.server.memory import MemoryMark
from headwater.server.observing import probes
from headwater.server.service import Service
from headwater.store.contract import StoreReport
from headwater.store.memory import MemoryStore


async def _nothing() -> None: ...


async def asked(*, full: str | None = None, short: bool = False, draining: bool = False, stuck: bool = False) -> int:
    store = MemoryStore()
    if stuck:
        store.report = lambda: StoreReport(fold_stuck=True)  # type: ignore[method-assign]
    engine = Engine(store)
    await engine.start()
    memory = MemoryMark(1 << 40, _nothing)
    store.full, memory.short = full, short
    if draining:
        engine.drain()
    try:
        service = Service(engine, Limits(), memory=memory)
        assert (await probes.healthz(service, Request("GET", "/healthz", "", {}, b""), "")).status == 200
        return (await probes.readyz(service, Request("GET", "/readyz", "", {}, b""), "")).status
    finally:
        store.full = None
        await engine.stop()


def test_a_server_that_can_work_is_ready() -> None:
    assert asyncio.run(asked()) == 200


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"full": "/secret/place/1.journal: No space left on device"}, "the disk is full"),
        ({"short": True}, "memory is short"),
        ({"stuck": True}, "the journal is not folded"),
        ({"draining": True}, "no writes are accepted"),
        ({"full": "x", "short": True}, "the disk is full; memory is short"),
    ],
)
def test_what_keeps_it_from_working_is_told(how: dict[str, object], told: str) -> None:
    with pytest.raises(NotReadyError) as raised:
        asyncio.run(asked(**how))  # type: ignore[arg-type]
    assert raised.value.detail == told
    assert raised.value.status == 503
