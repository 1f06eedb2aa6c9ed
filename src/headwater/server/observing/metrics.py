"""Every metric of the server, and their text format for Prometheus.

Tests check `docs/reference/metrics.md`, the dashboard and the alert rules against the list `METRICS`. Labels have few,
known values: never a path, a name or an address, except the prefixes and the names of tokens that the operator has
given quotas, and never a token.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from headwater.measures import Histogram

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = float | Histogram
Samples: TypeAlias = Mapping[str, Iterable[tuple[Labels, Value]]]  # by the name of the metric

OPENMETRICS = "application/openmetrics-text"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    name: str
    kind: Kind
    help: str
    labels: Labels = ()


METRICS = (
    Metric(
        "headwater_info",
        "gauge",
        "1, with the version, the kind of store, and which of several processes on a port this is.",
        ("version", "store", "worker"),
    ),
    Metric("headwater_ready", "gauge", "1 if the server is ready for requests, as /readyz says."),
    Metric(
        "headwater_http_requests_total",
        "counter",
        "Requests by route, method and class of the status.",
        ("route", "method", "status"),
    ),
    Metric(
        "headwater_http_refusals_total",
        "counter",
        "Responses with status 401, 403, 429, 503 or 507, on any route.",
        ("status",),
    ),
    Metric(
        "headwater_http_request_duration_seconds",
        "histogram",
        "Time from a complete request to the head of its response, without long-polls; sampled if there are many.",
        ("route", "method"),
    ),
    Metric("headwater_http_sent_bytes_total", "counter", "Bytes of response bodies, including live responses."),
    Metric("headwater_http_connections", "gauge", "Open connections."),
    Metric("headwater_http_accepted_connections_total", "counter", "Connections since the start."),
    Metric("headwater_http_request_bytes", "gauge", "Requests in memory that are incomplete or wait."),
    Metric("headwater_http_unread_bytes", "gauge", "Responses in memory that clients have not read yet."),
    Metric("headwater_memory_max_bytes", "gauge", "The memory mark, memory_bytes_max, if there is one."),
    Metric("headwater_memory_short", "gauge", "1 while writes are refused for lack of memory, if there is a mark."),
    Metric("headwater_prefix_usage", "gauge", "What is below a prefix with a quota.", ("prefix", "what")),
    Metric("headwater_prefix_quota", "gauge", "The quota of a prefix, if it limits this.", ("prefix", "what")),
    Metric("headwater_token_usage", "gauge", "What a token with a quota uses.", ("token", "what")),
    Metric("headwater_token_quota", "gauge", "The quota of a token, if it limits this.", ("token", "what")),
    Metric("headwater_combined_connections", "gauge", "Open connections that follow many streams each."),
    Metric("headwater_live_readers", "gauge", "Live readers by kind.", ("kind",)),
    Metric("headwater_loop_delay_seconds", "histogram", "How late the event loop is, measured twice a second."),
    Metric("headwater_commit_batch_records", "histogram", "Records that became durable together (group commit)."),
    Metric("headwater_commit_duration_seconds", "histogram", "Time from the end of a batch until it is durable."),
    Metric("headwater_commit_failures_total", "counter", "Batches that did not become durable."),
    Metric("headwater_commit_accepted_bytes_total", "counter", "Bodies handed to the store."),
    Metric("headwater_commit_backlog_records", "gauge", "Records that were accepted and are not durable yet."),
    Metric("headwater_commit_backlog_bytes", "gauge", "Bodies that wait for the batch before them."),
    Metric("headwater_fsync_duration_seconds", "histogram", "Time of each sync of the journal."),
    Metric("headwater_journal_bytes", "gauge", "Size of the files of the journal, with the spare one."),
    Metric("headwater_journal_unfolded_bytes", "gauge", "Bytes of the journal that are not folded."),
    Metric("headwater_journal_unfolded_segments", "gauge", "Sealed segments that wait for the fold."),
    Metric("headwater_fold_duration_seconds", "histogram", "Time of each fold of a segment into the index."),
    Metric(
        "headwater_fold_failures_total",
        "counter",
        "Tasks of the fold that were interrupted or found no room.",
    ),
    Metric("headwater_fold_worker_deaths_total", "counter", "Fold processes that ended while the server ran."),
    Metric("headwater_damaged_reads_total", "counter", "Reads of damaged rows of the index, answered with 500."),
    Metric("headwater_fold_behind", "gauge", "1 while writers wait for the fold."),
    Metric("headwater_index_bytes", "gauge", "Size of the index and its write-ahead log."),
    Metric("headwater_disk_free_bytes", "gauge", "Free space of the file system of the data directory."),
    Metric("headwater_disk_full", "gauge", "1 while writes are refused for lack of space."),
    Metric("headwater_backups", "gauge", "Targets that the data directory has been backed up to."),
    Metric("headwater_backups_failing", "gauge", "Targets to which the last attempt of a backup failed."),
    Metric("headwater_backup_failures_total", "counter", "Failed attempts of backups, over all targets."),
    Metric(
        "headwater_backup_age_seconds",
        "gauge",
        "Time since the moment up to which a target has everything, of the target that is furthest behind.",
    ),
    Metric(
        "headwater_role_held",
        "gauge",
        "1 while this server does the work in the background; of several that share a store, one does.",
    ),
    Metric("headwater_lease_held", "gauge", "1 while the server holds its lease, if it has --lease."),
    Metric("headwater_lease_failures_total", "counter", "Renewals of the lease that failed, if it has --lease."),
    Metric("headwater_streams", "gauge", "Streams and tables, also deleted ones that forks still read."),
    Metric("headwater_streams_loaded", "gauge", "Streams and tables in memory."),
    Metric("headwater_streams_with_retention", "gauge", "Streams and tables in memory that have a retention."),
    Metric("headwater_trims_total", "counter", "Trims by cause: retention, request or compaction.", ("cause",)),
    Metric("headwater_trimmed_bytes_total", "counter", "Bytes that were trimmed, also inherited ones of forks."),
    Metric("headwater_documents_loaded", "gauge", "Documents in memory."),
    Metric("headwater_compactions_total", "counter", "Compactions, by outcome.", ("outcome",)),
    Metric(
        "headwater_compacted_bytes_total",
        "counter",
        "Bytes that snapshots have replaced, and bytes of these snapshots.",
        ("of",),
    ),
    Metric("headwater_compactions_failing", "gauge", "Streams and tables whose last compaction failed."),
    Metric(
        "headwater_compaction_success_age_seconds",
        "gauge",
        "Time since the last compaction ended that did not fail; since the start of the server if there was none.",
    ),
    Metric("headwater_states", "gauge", "States of streams in memory, now and at offsets."),
    Metric("headwater_states_bytes", "gauge", "Memory of these states."),
    Metric("headwater_state_builds_total", "counter", "States that were built from their streams."),
    Metric("headwater_state_hits_total", "counter", "Requests for entities that a state in memory answered at once."),
    Metric("headwater_state_evictions_total", "counter", "States that were evicted for lack of memory."),
    Metric("headwater_views", "gauge", "Views by state.", ("state",)),
    Metric("headwater_views_lag_bytes", "gauge", "Lag of the view that is furthest behind its source."),
    Metric("headwater_followers", "gauge", "Followers of remote tables by state.", ("state",)),
    Metric("headwater_followers_lag_rows", "gauge", "Lag of the follower that is furthest behind, if known."),
    Metric("headwater_notify_nurls", "gauge", "NURLs by state of their delivery.", ("state",)),
    Metric("headwater_notify_posts_total", "counter", "POSTs to NURLs by outcome.", ("outcome",)),
    Metric("headwater_subscriptions", "gauge", "Subscriptions by type and status.", ("type", "status")),
    Metric("headwater_subscription_leases", "gauge", "Wakes that a worker or receiver holds."),
    Metric("headwater_subscription_pending_streams", "gauge", "Streams that may have data after their acked offset."),
    Metric("headwater_subscription_wakes_total", "counter", "Wakes that began."),
    Metric("headwater_subscription_acks_total", "counter", "Acked offsets."),
    Metric("headwater_subscription_fenced_total", "counter", "Requests about a wake that was over (409 FENCED)."),
    Metric("headwater_subscription_expired_leases_total", "counter", "Leases that ended without an ack or a release."),
    Metric("headwater_webhook_posts_total", "counter", "Webhooks by outcome.", ("outcome",)),
    Metric(
        "headwater_reload_failures_total",
        "counter",
        "Failed attempts to load a changed file, or keys from a URL: auth-file, certificate or keys.",
        ("file",),
    ),
    Metric("headwater_reload_failed", "gauge", "1 while its previous content is in use for that reason.", ("file",)),
    Metric(
        "headwater_tls_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the first certificate of the TLS chain expires, in seconds since 1970, if there is TLS.",
    ),
    Metric("headwater_access_log_dropped_total", "counter", "Lines of the access log that were dropped."),
    Metric("headwater_audit_log_dropped_total", "counter", "Lines of the audit log that were dropped."),
    Metric("headwater_spans_total", "counter", "Spans handed to the OpenTelemetry exporter."),
)


def render(samples: Samples, accept: str) -> tuple[bytes, str]:
    """The samples as text, and the content type. It takes milliseconds: call it outside the event loop."""
    from prometheus_client import GC_COLLECTOR, CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import generate_latest
    from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(samples))
    registry.register(GC_COLLECTOR)
    ProcessCollector(registry=registry)
    if OPENMETRICS in accept:
        return bytes(generate_openmetrics(registry)), OPENMETRICS_TYPE  # type: ignore[no-untyped-call]
    return bytes(generate_latest(registry)), TEXT_TYPE


class _Snapshot:
    """A collector that returns samples."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client import metrics_core

        families = {
            "counter": metrics_core.CounterMetricFamily,
            "gauge": metrics_core.GaugeMetricFamily,
            "histogram": metrics_core.HistogramMetricFamily,
        }
        for metric in METRICS:
            if metric.name in self._samples:
                family = families[metric.kind](metric.name, metric.help, labels=metric.labels)
                for labels, value in self._samples[metric.name]:
                    if isinstance(value, Histogram):
                        family.add_metric(labels, _buckets(value), value.total)
                    else:
                        family.add_metric(labels, value)
                yield family


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(histogram.counts), strict=True))
