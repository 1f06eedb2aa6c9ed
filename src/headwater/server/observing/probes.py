"""Health checks: whether a server is ready for requests, or the reasons why not; and the metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headwater.engine.reporting import EngineReport
from headwater.errors import NotReadyError
from headwater.server import compression
from headwater.server.http import Request, Response
from headwater.server.observing.metrics import render

if TYPE_CHECKING:
    from headwater.server.observing.gathering import Samples
    from headwater.server.service import Service
    from headwater.store.contract import StoreReport

HEALTH = frozenset({"/healthz", "/readyz"})  # never refused
PROBES = HEALTH | {"/metrics"}  # served even if other reads are refused because of unread responses
_NO_STORE = ("cache-control", "no-store")
_PLAIN = ("content-type", "text/plain; charset=utf-8")


def unready(service: Service, report: EngineReport) -> list[str]:
    """The reasons why the server is not ready; empty if it is. They are public, so details are only in the log."""
    reasons = []
    if report.full is not None:
        reasons.append("the disk is full")
    elif report.refusing is not None:
        reasons.append("no writes are accepted")
    if not service.role.is_reachable:
        reasons.append("the database does not answer")
    if report.store.fold_stuck:
        # Servers that share a database have no journal. What they do in the background is tried again too.
        is_shared = service.role.is_shared
        reasons.append("the database is not tidied up" if is_shared else "the journal is not folded")
    if service.fence is not None and service.fence.reason is not None:
        reasons.append(service.fence.reason)
    if service.memory is not None and service.memory.short:
        reasons.append("memory is short")
    return reasons


async def healthz(service: Service, request: Request, _: str) -> Response:
    """200 while the event loop runs."""
    return Response(200, (_PLAIN, _NO_STORE), (b"ok\n",))


async def readyz(service: Service, request: Request, _: str) -> Response:
    """200 while the server is ready for requests, with warnings for the operator."""
    reasons = unready(service, service.engine.report())
    if reasons:
        raise NotReadyError("; ".join(reasons))
    lines = ["ready", *(f"warning: {warning}" for warning in service.upkeep.warnings())]
    return Response(200, (_PLAIN, _NO_STORE), ("".join(f"{line}\n" for line in lines).encode(),))


async def metrics(service: Service, request: Request, _: str) -> Response:
    """Collects the metrics on the event loop, and formats them in a thread."""
    from headwater.server.observing.gathering import gather

    subscribed = None if service.subscriptions is None else await service.subscriptions.report()
    samples, report = gather(service, subscribed)
    accept, encoding = request.headers.get("accept", ""), request.headers.get("accept-encoding")
    data, content_type = await asyncio.get_running_loop().run_in_executor(None, _text, samples, report.store, accept)
    headers = (("content-type", content_type), _NO_STORE, ("vary", "accept, accept-encoding"))
    chosen = None if encoding is None else compression.choose_encoding(encoding)
    if chosen is None:
        return Response(200, headers, (data,))
    encoded = await compression.encode_body((data,), chosen, service.limits.compress_inline_bytes)
    return Response(200, (*headers, ("content-encoding", chosen)), (encoded,))


def _text(samples: Samples, store: StoreReport, accept: str) -> tuple[bytes, str]:
    from headwater.server.observing.gathering import add_space

    if store.space is not None:
        add_space(samples, store.space())
    return render(samples, accept)
