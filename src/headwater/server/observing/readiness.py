"""Whether a server can do its work, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.engine.reporting import EngineReport

if TYPE_CHECKING:
    from headwater.server.service import Service


def unready(service: Service, report: EngineReport) -> list[str]:
    """Why requests should go elsewhere; nothing if the server is ready. Anyone may ask, so details are in the log."""
    reasons = []
    if report.full is not None:
        reasons.append("the disk is full")
    elif report.refusing is not None:
        reasons.append("no writes are accepted")
    if service.memory is not None and service.memory.short:
        reasons.append("memory is short")
    return reasons
