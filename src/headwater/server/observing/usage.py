"""What prefixes and tokens with quotas use, for the metrics and `headwater usage`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.log.quotas import Quota, TokenQuota
from headwater.server.http import Request, Response
from headwater.server.streams.replies import json_response

if TYPE_CHECKING:
    from headwater.server.service import Service


def usage_of(service: Service) -> Iterator[tuple[Quota, dict[str, int], dict[str, int]]]:
    """The quota of each prefix and token, what they use, and the limits, of which 0 is none."""
    usage = service.engine.usage
    for quota in (*usage.prefixes.by_prefix.values(), *usage.tokens.by_name.values()):
        use = usage.of(quota)
        used = {"streams": use.streams, "bytes": use.bytes, "live_readers": service.places.of(quota)}
        if isinstance(quota, TokenQuota) and not usage.counts_owners:
            used = {"live_readers": used["live_readers"]}
        limits = {"streams": quota.streams_max, "bytes": quota.bytes_max, "live_readers": quota.live_readers_max}
        yield quota, used, {**limits, "appends_per_s": quota.appends_per_s}


async def usage(service: Service, request: Request, _: str) -> Response:
    """The prefixes and tokens with quotas, what each uses, and the limits."""
    usages: dict[str, list[dict[str, object]]] = {"prefixes": [], "tokens": []}
    for quota, used, limits in usage_of(service):
        kind, rows = ("token", "tokens") if isinstance(quota, TokenQuota) else ("prefix", "prefixes")
        limited = {what: most for what, most in limits.items() if most}
        usages[rows].append({kind: quota.name, **used, "quota": limited})
    return json_response(usages)
