"""Whether a server is ready for requests, or the reasons why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.engine.reporting import EngineReport

if TYPE_CHECKING:
    from headwater.server.service import Service


def unready(service: Service, report: EngineReport) -> list[str]:
    """The reasons why the server is not ready; empty if it is. They are public, so details are only in the log."""
    reasons = []
    if report.full is not None:
        reasons.append("the disk is full")
    elif report.refusing is not None:
        reasons.append("no writes are accepted")
    if report.store.fold_stuck:
        reasons.append("the journal is not folded")
    if service.fence is not None and service.fence.reason is not None:
        reasons.append(service.fence.reason)
    if service.memory is not None and service.memory.short:
        reasons.append("memory is short")
    return reasons
