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
from headwater.server.observing.upkeep import Upkeep
from headwater.server.roles import Role
from headwater.server.service import Service
from headwater.store.contract import StoreReport
from headwater.store.memory import MemoryStore


async def _nothing() -> None: ...


class Among(Role):
    """The role of a server that shares a database with others."""

    is_shared = True


async def asked(
    *,
    full: str | None = None,
    short: bool = False,
    draining: bool = False,
    stuck: bool = False,
    is_shared: bool = False,
) -> int:
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
        service = Service(engine, Limits(), memory=memory, role=Among() if is_shared else Role())
        assert (await probes.healthz(service, Request("GET", "/healthz", "", {}, b""), "")).status == 200
        return (await probes.readyz(service, Request("GET", "/readyz", "", {}, b""), "")).status
    finally:
        store.full = None
        await engine.stop()


def test_a_server_that_can_work_is_ready() -> None:
    assert asyncio.run(asked()) == 200


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"full": "/secret/place/1.journal: No space left on device"}, "the disk is full"),
        ({"short": True}, "memory is short"),
        ({"stuck": True}, "the journal is not folded"),
        ({"stuck": True, "is_shared": True}, "the database is not tidied up"),
        ({"draining": True}, "no writes are accepted"),
        ({"full": "x", "short": True}, "the disk is full; memory is short"),
    ],
)
def test_what_keeps_it_from_working_is_told(how: dict[str, object], message: str) -> None:
    with pytest.raises(NotReadyError) as raised:
        asyncio.run(asked(**how))  # type: ignore[arg-type]
    assert raised.value.detail == message
    assert raised.value.status == 503


class _File:
    what, label, failures = "the auth file", "auth-file", 2

    def __init__(self, fault: str) -> None:
        self.fault = fault


def test_warnings_leave_the_server_ready() -> None:
    async def body(upkeep: Upkeep) -> tuple[str, str]:
        engine = Engine(MemoryStore())
        await engine.start()
        try:
            service = Service(engine, Limits(), upkeep=upkeep)
            answer = await probes.readyz(service, Request("GET", "/readyz", "", {}, b""), "")
            metrics = await probes.metrics(service, Request("GET", "/metrics", "", {}, b""), "")
            assert answer.status == 200
            return b"".join(answer.body).decode(), b"".join(metrics.body).decode()
        finally:
            await engine.stop()

    day_s = 86_400
    upkeep = Upkeep(lambda: [_File("/secret/auth.toml: Permission denied")], clock=lambda: 1_000.0)
    upkeep.certificate_until_s = 1_000.0 + 3 * day_s
    text, metrics = asyncio.run(body(upkeep))
    assert text == (
        "ready\nwarning: the auth file cannot be loaded, and the previous content is in use\n"
        "warning: the certificate expires in 3 days or less\n"
    )
    assert 'headwater_reload_failed{file="auth-file"} 1.0' in metrics
    assert 'headwater_reload_failures_total{file="auth-file"} 2.0' in metrics
    assert "headwater_tls_certificate_expiry_timestamp_seconds 260200.0" in metrics
    upkeep = Upkeep(lambda: [_File("")], clock=lambda: 1_000.0)
    upkeep.certificate_until_s = 999.0
    assert asyncio.run(body(upkeep))[0] == "ready\nwarning: the certificate has expired\n"
    upkeep.certificate_until_s = 1_000.0 + 30 * day_s
    assert asyncio.run(body(upkeep))[0] == "ready\n"
