"""Health checks, and the metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headwater.errors import NotReadyError
from headwater.server import compression
from headwater.server.http import Request, Response
from headwater.server.observing.metrics import render
from headwater.server.observing.readiness import unready

if TYPE_CHECKING:
    from headwater.server.observing.gathering import Gathered
    from headwater.server.service import Service
    from headwater.store.contract import StoreReport

HEALTH = frozenset({"/healthz", "/readyz"})  # never refused: whoever watches the server must get an answer
PROBES = HEALTH | {"/metrics"}  # answered even while clients leave so much unread that other reads are refused
_NO_STORE = ("cache-control", "no-store")
_PLAIN = ("content-type", "text/plain; charset=utf-8")


async def healthz(service: Service, request: Request, _: str) -> Response:
    """The process is there and its loop turns."""
    return Response(200, (_PLAIN, _NO_STORE), (b"ok\n",))


async def readyz(service: Service, request: Request, _: str) -> Response:
    """Requests can be sent here."""
    reasons = unready(service, service.engine.report())
    if reasons:
        raise NotReadyError("; ".join(reasons))
    return Response(200, (_PLAIN, _NO_STORE), (b"ready\n",))


async def metrics(service: Service, request: Request, _: str) -> Response:
    """Numbers are taken here, on the loop, and turned into text elsewhere."""
    from headwater.server.observing.gathering import gather

    found, report = gather(service)
    accept, encoding = request.headers.get("accept", ""), request.headers.get("accept-encoding")
    data, content_type = await asyncio.get_running_loop().run_in_executor(None, _text, found, report.store, accept)
    headers = (("content-type", content_type), _NO_STORE, ("vary", "accept, accept-encoding"))
    chosen = None if encoding is None else compression.choose_encoding(encoding)
    if chosen is None:
        return Response(200, headers, (data,))
    encoded = await compression.encode_body((data,), chosen, service.limits.compress_inline_bytes)
    return Response(200, (*headers, ("content-encoding", chosen)), (encoded,))


def _text(found: Gathered, store: StoreReport, accept: str) -> tuple[bytes, str]:
    from headwater.server.observing.gathering import add_space

    if store.space is not None:
        add_space(found, store.space())
    return render(found, accept)
