"""The guarded HTTP client for URLs that clients supply: Notify and remote tables.

A client that can store a URL in the server can make the server send requests to it. Without checks, these requests
could reach hosts that only the server can reach: services on its own machine, its private network, the metadata service
of its cloud (server-side request forgery).
"""

from __future__ import annotations

from headwater.outbound.client import Answer, HostSlots, OutboundClient, StreamedAnswer, open_outbound
from headwater.outbound.slots import FairSlots
from headwater.outbound.urls import CheckedUrl, parse_target

__all__ = [
    "Answer",
    "CheckedUrl",
    "FairSlots",
    "HostSlots",
    "OutboundClient",
    "StreamedAnswer",
    "open_outbound",
    "parse_target",
]
