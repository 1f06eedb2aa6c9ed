"""Collects the current values of all metrics, on the event loop."""

from __future__ import annotations

import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from headwater import __version__
from headwater.engine.reporting import EngineReport
from headwater.log.quotas import TokenQuota
from headwater.server.following.follower import FollowerState
from headwater.server.http import NO_ROUTE, waiting
from headwater.server.memory import resident_bytes
from headwater.server.notify.delivery import DeliveryState as DeliveryState
from headwater.server.notify.sending import PostOutcome
from headwater.server.observing.access_log import AccessLog
from headwater.server.observing.metrics import Labels, Value
from headwater.server.observing.observer import Observer
from headwater.server.observing.probes import unready
from headwater.server.observing.tracing import Tracer
from headwater.server.observing.usage import usage_of
from headwater.server.views.view import ViewState
from headwater.store.contract import BackupReport, Space, StoreReport

if TYPE_CHECKING:
    from headwater.server.service import Service

_KINDS = ("sse", "table", "view", "active-view", "notify")  # of followers
LONG_POLL = "long-poll"
_REFUSALS = (401, 403, 429, 503, 507)
_DELIVERING = (DeliveryState.IDLE, DeliveryState.SENDING, DeliveryState.WAITING)
_OTHER = "other"


class Samples(defaultdict[str, list[tuple[Labels, Value]]]):
    def __init__(self) -> None:
        super().__init__(list)

    def add(self, name: str, value: Value, *labels: str) -> None:
        self[name].append((labels, value))


def gather(service: Service) -> tuple[Samples, EngineReport]:
    """All samples except sizes of files, which `add_space` adds outside the event loop."""
    found, report = Samples(), service.engine.report()
    store = "memory" if report.store.syncs is None else "embedded"
    found.add("headwater_info", 1, __version__, store)
    found.add("headwater_ready", float(not unready(service, report)))
    _gather_http(found, service.observer)
    if service.memory is not None:
        found.add("headwater_memory_max_bytes", service.limits.memory_bytes_max)
        found.add("headwater_memory_short", float(service.memory.short))
    if service.fence is not None:
        found.add("headwater_lease_held", float(service.fence.held))
        found.add("headwater_lease_failures_total", service.fence.failures)
    for kind, count in readers(report).items():
        found.add("headwater_live_readers", count, kind)
    _gather_engine(found, report)
    _gather_store(found, report.store)
    _gather_others(found, service)
    _gather_usage(found, service)
    return found, report


def _gather_http(found: Samples, observer: Observer) -> None:
    for route, template, method in _routes():
        counted = observer.statuses(route)
        if route != NO_ROUTE:
            counted += observer.statuses(waiting(route))
        for status, count in sorted(counted.items()):
            found.add("headwater_http_requests_total", count, template, method, status)
        if route in observer.durations:
            found.add("headwater_http_request_duration_seconds", observer.durations[route].copy(), template, method)
    refused = sum(observer.others.values(), Counter())
    for code in _REFUSALS:
        found.add("headwater_http_refusals_total", refused[code], str(code))
    found.add("headwater_http_sent_bytes_total", observer.sent_bytes)
    if observer.connections is not None:
        connections = observer.connections
        found.add("headwater_http_connections", connections.open)
        found.add("headwater_http_accepted_connections_total", connections.accepted)
        found.add("headwater_http_request_bytes", connections.request_bytes)
        found.add("headwater_http_unread_bytes", connections.unread_bytes)
        found.add("headwater_loop_delay_seconds", observer.loop_delays.copy())


def _routes() -> Iterator[tuple[int, str, str]]:
    from headwater.server.routes import ROUTES

    yield NO_ROUTE, "none", _OTHER
    for route in ROUTES:
        yield route.number, route.template, route.method


def readers(report: EngineReport) -> dict[str, int]:
    """Live readers by kind, including kinds with 0 readers."""
    found = dict.fromkeys((*_KINDS, LONG_POLL, _OTHER), 0)
    found[LONG_POLL] = report.waiting
    for kind, count in report.subscribers.items():
        found[kind if kind in _KINDS else _OTHER] += count
    return found


def _gather_engine(found: Samples, report: EngineReport) -> None:
    found.add("headwater_commit_batch_records", report.commit_sizes)
    found.add("headwater_commit_duration_seconds", report.commit_seconds)
    found.add("headwater_commit_failures_total", report.commit_failures)
    found.add("headwater_commit_accepted_bytes_total", report.committed_bytes)
    found.add("headwater_commit_backlog_records", report.backlog_records)
    found.add("headwater_commit_backlog_bytes", report.backlog_bytes)
    found.add("headwater_streams", report.streams)
    found.add("headwater_streams_loaded", report.streams_loaded)
    found.add("headwater_documents_loaded", report.documents_loaded)
    found.add("headwater_disk_full", float(report.full is not None))


def _gather_store(found: Samples, report: StoreReport) -> None:
    if report.syncs is None or report.folds is None:
        return  # in memory
    found.add("headwater_fsync_duration_seconds", report.syncs)
    found.add("headwater_fold_duration_seconds", report.folds)
    found.add("headwater_fold_failures_total", report.fold_failures)
    found.add("headwater_fold_worker_deaths_total", report.fold_worker_deaths)
    found.add("headwater_damaged_reads_total", report.damaged_reads)
    found.add("headwater_fold_behind", float(report.behind))
    found.add("headwater_journal_unfolded_bytes", report.unfolded_bytes)
    found.add("headwater_journal_unfolded_segments", report.unfolded_segments)


def add_space(found: Samples, space: Space) -> None:
    found.add("headwater_journal_bytes", space.journal_bytes)
    found.add("headwater_index_bytes", space.index_bytes)
    found.add("headwater_disk_free_bytes", space.free_bytes)
    _add_backups(found, space.backups, time.time())


def _add_backups(found: Samples, backups: Sequence[BackupReport], now_s: float) -> None:
    found.add("headwater_backups", len(backups))
    found.add("headwater_backups_failing", sum(backup.failing for backup in backups))
    found.add("headwater_backup_failures_total", sum(backup.failures for backup in backups))
    if backups:
        oldest_s = min(backup.reached_ms for backup in backups) / 1000
        found.add("headwater_backup_age_seconds", max(0.0, now_s - oldest_s))


def _gather_others(found: Samples, service: Service) -> None:
    views = [] if service.views is None else service.views.status()
    _add_states(found, "headwater_views", [state.value for state in ViewState], [view.state.value for view in views])
    found.add("headwater_views_lag_bytes", max([view.lag_bytes or 0 for view in views], default=0))
    followers = [] if service.followers is None else service.followers.status()
    states = [follower.state.value for follower in followers]
    _add_states(found, "headwater_followers", [state.value for state in FollowerState], states)
    found.add("headwater_followers_lag_rows", max([one.lag_rows or 0 for one in followers], default=0))
    if service.notifier is not None:
        states = [state.value for state in service.notifier.states()]
        _add_states(found, "headwater_notify_nurls", [state.value for state in _DELIVERING], states)
        for outcome in PostOutcome:
            count = service.notifier.sender.outcomes[outcome]
            found.add("headwater_notify_posts_total", count, outcome.name.lower())
    for one in service.upkeep.reloaded():
        found.add("headwater_reload_failures_total", one.failures, one.label)
        found.add("headwater_reload_failed", float(bool(one.fault)), one.label)
    if service.upkeep.certificate_until_s is not None:
        found.add("headwater_tls_certificate_expiry_timestamp_seconds", service.upkeep.certificate_until_s)
    if service.observer.audit is not None:
        found.add("headwater_audit_log_dropped_total", service.observer.audit.dropped)
    for watcher in service.observer.watchers:
        if isinstance(watcher, AccessLog):
            found.add("headwater_access_log_dropped_total", watcher.dropped)
        elif isinstance(watcher, Tracer):
            found.add("headwater_spans_total", watcher.spans)


def _gather_usage(found: Samples, service: Service) -> None:
    for quota, used, limits in usage_of(service):
        kind = "token" if isinstance(quota, TokenQuota) else "prefix"
        for what, number in used.items():
            found.add(f"headwater_{kind}_usage", number, quota.name, what)
            if limits[what]:
                found.add(f"headwater_{kind}_quota", limits[what], quota.name, what)


def _add_states(found: Samples, name: str, states: Iterable[str], present: Iterable[str]) -> None:
    counted = Counter(present)
    for state in states:
        found.add(name, counted[state], state)


def used_bytes() -> int:
    """Memory of this process."""
    try:
        return resident_bytes()
    except OSError:  # not on Linux: the peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
