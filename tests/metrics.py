"""Metrics of a server as conditions to wait for: live readers, connections, bytes in flight, deliveries to NURLs."""

from __future__ import annotations

import httpx
from bench.servers import Server as ServerProcess
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import Server
from tests.waiting import wait_until

LONG_POLL, SSE, COMBINED, TABLE = "long-poll", "sse", "combined", "table"  # kinds of live readers


def value_in(text: str, name: str, **labels: str) -> float:
    """The value of one sample of a response of /metrics."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise LookupError(f"there is no metric {name} with the labels {labels}")


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    """A metric of the server of a client, whose base URL is that of the server, of its streams or of its tables."""
    root = str(client.base_url).partition("/v1/")[0].rstrip("/")
    return value_in(client.get(f"{root}/metrics").text, name, **labels)


def metric_of(server: Server | ServerProcess, name: str, **labels: str) -> float:
    text = httpx.get(f"{server.scheme}://{server.host}:{server.port}/metrics", verify=False, timeout=60).text
    return value_in(text, name, **labels)


def wait_for_readers(client: httpx.Client, kind: str, count: int = 1) -> None:
    """Wait until so many live readers wait for data that is not there yet."""
    name = "headwater_live_readers"
    wait_until(lambda: metric(client, name, kind=kind) >= count, f"{count} live readers of kind {kind}")


def wait_for_readers_of(server: Server | ServerProcess, kind: str, count: int = 1) -> None:
    name = "headwater_live_readers"
    wait_until(lambda: metric_of(server, name, kind=kind) >= count, f"{count} live readers of kind {kind}")
