"""The metrics of running jobs."""

from __future__ import annotations

import httpx
import pytest

from headwater.pipeline.jobs import JobProgress
from headwater.pipeline.metrics import serving_metrics
from tests.edges import free_port


class Running:
    name = "raw"
    is_active = True

    def progress(self) -> JobProgress:
        return JobProgress(batches=2, rows=7, rows_per_s=3.5, lag_bytes={"orders": 12})

    def wait(self, timeout_s: float | None = None) -> bool:
        return False

    def stop(self) -> None: ...


def test_metrics_of_jobs() -> None:
    port = free_port()
    with serving_metrics({"raw": Running()}, port):
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert 'headwater_pipeline_rows_total{job="raw"} 7.0' in text
    assert 'headwater_pipeline_lag_bytes{job="raw",stream="orders"} 12.0' in text
    assert 'headwater_pipeline_active{job="raw"} 1.0' in text
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")
