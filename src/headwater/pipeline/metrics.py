"""Metrics of jobs for Prometheus."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from headwater.errors import OptionError
from headwater.pipeline.jobs import Job


@contextlib.contextmanager
def serving_metrics(jobs: Mapping[str, Job], port: int | None) -> Iterator[None]:
    """Serve the current metrics of jobs on a port of all addresses."""
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise OptionError("metrics need prometheus-client: pip install '.[spark]' in a checkout of Headwater") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Metrics(jobs))
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise OptionError(f"metrics_port {port} cannot be used: {error.strerror}; choose another port") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Metrics:
    """A Prometheus collector that reads the progress of the jobs."""

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = jobs

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        rows = CounterMetricFamily("headwater_pipeline_rows", "Rows since the start.", labels=["job"])
        batches = CounterMetricFamily("headwater_pipeline_batches", "Batches since the start.", labels=["job"])
        rate = GaugeMetricFamily("headwater_pipeline_rows_per_second", "Rate of the last batch.", labels=["job"])
        active = GaugeMetricFamily("headwater_pipeline_active", "1 while the job runs.", labels=["job"])
        lag = GaugeMetricFamily("headwater_pipeline_lag_bytes", "Unread bytes of a stream.", labels=["job", "stream"])
        for name, job in list(self._jobs.items()):
            progress = job.progress()
            rows.add_metric([name], progress.rows)
            batches.add_metric([name], progress.batches)
            rate.add_metric([name], progress.rows_per_s)
            active.add_metric([name], float(job.is_active))
            for stream, behind in progress.lag_bytes.items():
                lag.add_metric([name, stream], behind)
        yield from (rows, batches, rate, active, lag)
