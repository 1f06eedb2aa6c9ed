"""What prefixes with quotas use, for the metrics and `headwater usage`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.server.http import Request, Response
from headwater.server.streams.replies import json_response

if TYPE_CHECKING:
    from headwater.server.service import Service


def usage_of(service: Service) -> Iterator[tuple[str, dict[str, int], dict[str, int]]]:
    """Each prefix, what is below it, and its limits, of which 0 is none."""
    usage = service.engine.usage
    if usage is None:
        return
    for prefix, quota in usage.prefixes.by_prefix.items():
        use = usage[prefix]
        used = {"streams": use.streams, "bytes": use.bytes, "live_readers": service.places.below(prefix)}
        limits = {"streams": quota.streams_max, "bytes": quota.bytes_max, "live_readers": quota.live_readers_max}
        yield prefix, used, {**limits, "appends_per_s": quota.appends_per_s}


async def usage(service: Service, request: Request, _: str) -> Response:
    """The prefixes with quotas, what is below each, and the limits."""
    return json_response(
        {
            "prefixes": [
                {"prefix": prefix, **used, "quota": {what: most for what, most in limits.items() if most}}
                for prefix, used, limits in usage_of(service)
            ]
        }
    )
