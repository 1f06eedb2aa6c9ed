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
from headwater.protocol.subscriptions.config import Delivery
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
from headwater.server.subscriptions.sending import DeliveryOutcome
from headwater.server.subscriptions.subscription import STATUSES
from headwater.server.views.view import ViewState
from headwater.store.contract import BackupReport, Space, StoreReport

if TYPE_CHECKING:
    from headwater.server.compacting.compactor import Compactor
    from headwater.server.service import Service
    from headwater.server.subscriptions import Subscriptions
    from headwater.server.subscriptions.subscriptions import SubscriptionsReport

_KINDS = ("sse", "combined", "table", "view", "active-view", "state", "notify", "relay")  # of followers
LONG_POLL = "long-poll"
_REFUSALS = (401, 403, 429, 503, 507)
_DELIVERING = (DeliveryState.IDLE, DeliveryState.SENDING, DeliveryState.WAITING)
_OTHER = "other"


class Samples(defaultdict[str, list[tuple[Labels, Value]]]):
    def __init__(self) -> None:
        super().__init__(list)

    def add(self, name: str, value: Value, *labels: str) -> None:
        self[name].append((labels, value))


def gather(service: Service, subscribed: SubscriptionsReport | None) -> tuple[Samples, EngineReport]:
    """All samples except sizes of files, which `add_space` adds outside the event loop."""
    samples, report = Samples(), service.engine.report()
    store = "memory" if report.store.syncs is None else "embedded"
    if service.role.is_shared:
        store = "postgres"
    samples.add("headwater_role_held", float(service.role.is_held))
    samples.add("headwater_info", 1, __version__, store, str(service.worker) if service.worker else "")
    samples.add("headwater_ready", float(not unready(service, report)))
    _gather_http(samples, service.observer)
    if service.memory is not None:
        samples.add("headwater_memory_max_bytes", service.limits.memory_bytes_max)
        samples.add("headwater_memory_short", float(service.memory.short))
    if service.fence is not None:
        samples.add("headwater_lease_held", float(service.fence.held))
        samples.add("headwater_lease_failures_total", service.fence.failures)
    for kind, count in readers(report).items():
        samples.add("headwater_live_readers", count, kind)
    samples.add("headwater_combined_connections", len(service.combined))
    _gather_engine(samples, report)
    _gather_store(samples, report.store)
    _gather_others(samples, service, subscribed)
    _gather_usage(samples, service)
    return samples, report


def _gather_http(samples: Samples, observer: Observer) -> None:
    for route, template, method in _routes():
        counted = observer.statuses(route)
        if route != NO_ROUTE:
            counted += observer.statuses(waiting(route))
        for status, count in sorted(counted.items()):
            samples.add("headwater_http_requests_total", count, template, method, status)
        if route in observer.durations:
            samples.add("headwater_http_request_duration_seconds", observer.durations[route].copy(), template, method)
    refused = sum(observer.others.values(), Counter())
    for code in _REFUSALS:
        samples.add("headwater_http_refusals_total", refused[code], str(code))
    samples.add("headwater_http_sent_bytes_total", observer.sent_bytes)
    if observer.connections is not None:
        connections = observer.connections
        samples.add("headwater_http_connections", connections.open)
        samples.add("headwater_http_accepted_connections_total", connections.accepted)
        samples.add("headwater_http_request_bytes", connections.request_bytes)
        samples.add("headwater_http_unread_bytes", connections.unread_bytes)
        samples.add("headwater_loop_delay_seconds", observer.loop_delays.copy())


def _routes() -> Iterator[tuple[int, str, str]]:
    from headwater.server.routes import ROUTES

    yield NO_ROUTE, "none", _OTHER
    for route in ROUTES:
        yield route.number, route.template, route.method


def readers(report: EngineReport) -> dict[str, int]:
    """Live readers by kind, including kinds with 0 readers."""
    counts = dict.fromkeys((*_KINDS, LONG_POLL, _OTHER), 0)
    counts[LONG_POLL] = report.waiting
    for kind, count in report.subscribers.items():
        counts[kind if kind in _KINDS else _OTHER] += count
    return counts


def _gather_engine(samples: Samples, report: EngineReport) -> None:
    samples.add("headwater_commit_batch_records", report.commit_sizes)
    samples.add("headwater_commit_duration_seconds", report.commit_seconds)
    samples.add("headwater_commit_failures_total", report.commit_failures)
    samples.add("headwater_commit_accepted_bytes_total", report.committed_bytes)
    samples.add("headwater_commit_backlog_records", report.backlog_records)
    samples.add("headwater_commit_backlog_bytes", report.backlog_bytes)
    samples.add("headwater_streams", report.streams)
    samples.add("headwater_streams_loaded", report.streams_loaded)
    samples.add("headwater_streams_with_retention", report.streams_retained)
    for cause, count in report.trims.counts.items():
        samples.add("headwater_trims_total", count, cause)
    samples.add("headwater_trimmed_bytes_total", report.trims.bytes)
    samples.add("headwater_documents_loaded", report.documents_loaded)
    samples.add("headwater_disk_full", float(report.full is not None))


def _gather_store(samples: Samples, report: StoreReport) -> None:
    if report.syncs is None or report.folds is None:
        return  # in memory
    samples.add("headwater_fsync_duration_seconds", report.syncs)
    samples.add("headwater_fold_duration_seconds", report.folds)
    samples.add("headwater_fold_failures_total", report.fold_failures)
    samples.add("headwater_fold_worker_deaths_total", report.fold_worker_deaths)
    samples.add("headwater_damaged_reads_total", report.damaged_reads)
    samples.add("headwater_fold_behind", float(report.behind))
    samples.add("headwater_journal_unfolded_bytes", report.unfolded_bytes)
    samples.add("headwater_journal_unfolded_segments", report.unfolded_segments)


def add_space(samples: Samples, space: Space) -> None:
    samples.add("headwater_journal_bytes", space.journal_bytes)
    samples.add("headwater_index_bytes", space.index_bytes)
    samples.add("headwater_disk_free_bytes", space.free_bytes)
    _add_backups(samples, space.backups, time.time())


def _add_backups(samples: Samples, backups: Sequence[BackupReport], now_s: float) -> None:
    samples.add("headwater_backups", len(backups))
    samples.add("headwater_backups_failing", sum(backup.failing for backup in backups))
    samples.add("headwater_backup_failures_total", sum(backup.failures for backup in backups))
    if backups:
        oldest_s = min(backup.reached_ms for backup in backups) / 1000
        samples.add("headwater_backup_age_seconds", max(0.0, now_s - oldest_s))


def _gather_subscriptions(samples: Samples, subscriptions: Subscriptions, report: SubscriptionsReport) -> None:
    for kind in Delivery:
        for status in STATUSES:
            samples.add("headwater_subscriptions", report.statuses[kind, status], kind.value, status)
    samples.add("headwater_subscription_leases", report.leases)
    samples.add("headwater_subscription_pending_streams", report.pending)
    counts = subscriptions.counts
    samples.add("headwater_subscription_wakes_total", counts.wakes)
    samples.add("headwater_subscription_acks_total", counts.acks)
    samples.add("headwater_subscription_fenced_total", counts.fenced)
    samples.add("headwater_subscription_expired_leases_total", counts.expired)
    for outcome in DeliveryOutcome:
        samples.add("headwater_webhook_posts_total", subscriptions.sender.outcomes[outcome], outcome.value)


def _gather_compactions(samples: Samples, compactor: Compactor) -> None:
    counts = compactor.counts
    for outcome, count in (("replaced", counts.runs), ("skipped", counts.skipped), ("failed", counts.failures)):
        samples.add("headwater_compactions_total", count, outcome)
    samples.add("headwater_compacted_bytes_total", counts.before_bytes, "before")
    samples.add("headwater_compacted_bytes_total", counts.after_bytes, "after")
    samples.add("headwater_compactions_failing", counts.failing)
    samples.add("headwater_compaction_success_age_seconds", compactor.age_s)


def _gather_others(samples: Samples, service: Service, subscribed: SubscriptionsReport | None) -> None:
    if service.compactor is not None:
        _gather_compactions(samples, service.compactor)
    views = [] if service.views is None else service.views.status()
    _add_states(samples, "headwater_views", [state.value for state in ViewState], [view.state.value for view in views])
    samples.add("headwater_views_lag_bytes", max([view.lag_bytes or 0 for view in views], default=0))
    samples.add("headwater_states", len(service.states))
    samples.add("headwater_states_bytes", service.states.size_bytes)
    samples.add("headwater_state_builds_total", service.states.builds)
    samples.add("headwater_state_hits_total", service.states.hits)
    samples.add("headwater_state_evictions_total", service.states.evictions)
    followers = [] if service.followers is None else service.followers.status()
    states = [follower.state.value for follower in followers]
    _add_states(samples, "headwater_followers", [state.value for state in FollowerState], states)
    samples.add("headwater_followers_lag_rows", max([one.lag_rows or 0 for one in followers], default=0))
    if service.notifier is not None:
        states = [state.value for state in service.notifier.states()]
        _add_states(samples, "headwater_notify_nurls", [state.value for state in _DELIVERING], states)
        for outcome in PostOutcome:
            count = service.notifier.sender.outcomes[outcome]
            samples.add("headwater_notify_posts_total", count, outcome.name.lower())
    if service.subscriptions is not None and subscribed is not None:
        _gather_subscriptions(samples, service.subscriptions, subscribed)
    for one in service.upkeep.reloaded():
        samples.add("headwater_reload_failures_total", one.failures, one.label)
        samples.add("headwater_reload_failed", float(bool(one.fault)), one.label)
    if service.upkeep.certificate_until_s is not None:
        samples.add("headwater_tls_certificate_expiry_timestamp_seconds", service.upkeep.certificate_until_s)
    if service.observer.audit is not None:
        samples.add("headwater_audit_log_dropped_total", service.observer.audit.dropped)
    for watcher in service.observer.watchers:
        if isinstance(watcher, AccessLog):
            samples.add("headwater_access_log_dropped_total", watcher.dropped)
        elif isinstance(watcher, Tracer):
            samples.add("headwater_spans_total", watcher.spans)


def _gather_usage(samples: Samples, service: Service) -> None:
    for quota, used, limits in usage_of(service):
        kind = "token" if isinstance(quota, TokenQuota) else "prefix"
        for what, number in used.items():
            samples.add(f"headwater_{kind}_usage", number, quota.name, what)
            if limits[what]:
                samples.add(f"headwater_{kind}_quota", limits[what], quota.name, what)


def _add_states(samples: Samples, name: str, states: Iterable[str], present: Iterable[str]) -> None:
    counted = Counter(present)
    for state in states:
        samples.add(name, counted[state], state)


def used_bytes() -> int:
    """Memory of this process."""
    try:
        return resident_bytes()
    except OSError:  # not on Linux: the peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
