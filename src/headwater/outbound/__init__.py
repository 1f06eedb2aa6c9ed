"""The guarded HTTP client for addresses that others named: Notify, remote tables, webhooks.

Whoever can write a URL into the server decides where it sends a request. Without a guard that reaches what only the
server can reach: services on its own machine, its private network, the metadata service of its cloud.
"""

from __future__ import annotations

from headwater.outbound.client import Answer, OutboundClient, StreamedAnswer, open_outbound
from headwater.outbound.slots import HostSlots
from headwater.outbound.urls import Target, parse_target

__all__ = ["Answer", "HostSlots", "OutboundClient", "StreamedAnswer", "Target", "open_outbound", "parse_target"]
