"""The data of `headwater top`: totals since the start, and the busiest streams, views, followers and subscriptions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headwater import __version__, limits
from headwater.engine.reporting import BusyStream
from headwater.errors import InvalidQueryError
from headwater.measures import Histogram
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables import paths as tables
from headwater.server.http import Request, Response
from headwater.server.references import parse_integer
from headwater.server.streams.replies import json_response

if TYPE_CHECKING:
    from headwater.server.service import Service

RATE, SIZE = "rate", "size"


async def top(service: Service, request: Request, _: str) -> Response:
    """Totals since the start, from which the client computes rates. Lists are truncated."""
    from headwater.server.observing.gathering import readers, used_bytes

    query = parse_query(request.query)
    limit = parse_integer(query, "limit", limits.TOP_DEFAULT, limits.TOP_MAX)
    by = query.get("by", RATE)
    if by not in (RATE, SIZE):
        raise InvalidQueryError(f"by is {RATE} or {SIZE}, got {by[:40]!r}")
    busiest = await service.engine.busiest(limit, by_size=by == SIZE)
    report, observer = service.engine.report(), service.observer
    answers: Counter[str] = sum(map(observer.statuses, range(len(observer.successes))), Counter())
    return json_response(
        {
            "version": __version__,
            "instance": service.instance,
            "worker": service.worker,
            "role": service.role.is_held if service.role.is_shared else None,
            "at_ms": service.now_ms,
            "memory_bytes": used_bytes(),
            "requests": answers,
            "sent_bytes": observer.sent_bytes,
            "connections": None if observer.connections is None else observer.connections.open,
            "readers": readers(report),
            "commits": {
                "records": int(report.commit_sizes.total),
                "batches": report.commit_sizes.count,
                "bytes": report.committed_bytes,
                "seconds": _described(report.commit_seconds),
                "fsync_seconds": None if report.store.syncs is None else _described(report.store.syncs),
                "backlog_records": report.backlog_records,
            },
            "unfolded_bytes": report.store.unfolded_bytes,
            "full": report.full,
            "refusing": report.refusing,
            "streams_loaded": busiest.loaded,
            "rates_over_s": round(busiest.over_s, 3),
            "streams": [_stream(stream) for stream in busiest.streams],
            "views": _views(service, limit),
            "followers": _followers(service, limit),
            "subscriptions": await _subscriptions(service, limit),
        }
    )


def _described(histogram: Histogram) -> dict[str, Any]:
    return {"bounds": histogram.bounds, "counts": histogram.counts, "total": histogram.total}


def _stream(stream: BusyStream) -> dict[str, Any]:
    kind, name = "stream", stream.path
    if stream.path.startswith(tables.LOG_PREFIX):
        kind, name = "table", tables.name_of(stream.path)
    elif stream.path <= tables.LOG_OWN_LAST:
        kind = "internal"
    first = {"first_seqno": stream.first_seqno} if kind == "table" else {"first_offset": format_offset(stream.first)}
    return {
        "kind": kind,
        "name": name,
        "bytes": stream.size,
        **first,
        "trimmed_bytes": stream.trimmed_bytes,
        "retention": stream.retention,
        "bytes_per_s": round(stream.bytes_per_s, 1),
        "appends_per_s": round(stream.appends_per_s, 1),
        "readers": stream.readers,
    }


def _views(service: Service, limit: int) -> list[dict[str, Any]]:
    statuses = [] if service.views is None else service.views.status()
    statuses.sort(key=lambda view: view.lag_bytes or 0, reverse=True)
    return [{"name": view.view, "state": view.state.value, "lag_bytes": view.lag_bytes} for view in statuses[:limit]]


def _followers(service: Service, limit: int) -> list[dict[str, Any]]:
    statuses = [] if service.followers is None else service.followers.status()
    statuses.sort(key=lambda one: one.lag_rows or 0, reverse=True)
    return [{"name": one.name, "state": one.state.value, "lag_rows": one.lag_rows} for one in statuses[:limit]]


async def _subscriptions(service: Service, limit: int) -> list[dict[str, Any]]:
    """Those with the most pending streams, who has them, and for how long. The lag of very many streams is left out."""
    subscriptions = [] if service.subscriptions is None else service.subscriptions.busiest(limit)
    budget, shown = limits.SUBSCRIPTION_LAG_STREAMS_MAX, []
    for subscription in subscriptions:
        budget -= len(subscription.pending)
        wake = subscription.wakes.wake
        is_held = wake is not None and wake.is_held(service.now_ms)
        shown.append(
            {
                "name": subscription.record.id,
                "state": subscription.status,
                "pending": len(subscription.pending),
                "lag_bytes": await subscription.lag_bytes() if budget >= 0 else None,
                "holder": wake.holder if wake is not None and is_held else None,
                "lease_ms": wake.lease_until_ms - service.now_ms if wake is not None and is_held else None,
            }
        )
    return shown
