"""Health checks, metrics, request ids and the data of `headwater top`, over every edge; logs of a process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.servers import headwater
from prometheus_client.parser import text_string_to_metric_families

from tests.edges import EDGES, edge, root_of
from tests.nurls import receiver
from tests.waiting import wait_until

JSON = {"content-type": "application/json"}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module", params=EDGES)
def api(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client for the root of the server."""
    with (
        edge(request.param) as server,
        httpx.Client(base_url=root_of(request.param, server).removesuffix("/v1/stream"), timeout=60) as client,
    ):
        yield client


def samples(api: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = api.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_health_checks(api: httpx.Client) -> None:
    assert (api.get("/healthz").status_code, api.get("/healthz").text) == (200, "ok\n")
    assert (api.get("/readyz").status_code, api.get("/readyz").text) == (200, "ready\n")
    assert api.head("/healthz").status_code == api.head("/readyz").status_code == 200
    assert api.get("/readyz").headers["cache-control"] == "no-store"


def test_requests_are_counted(api: httpx.Client) -> None:
    api.put("/v1/stream/counted", headers=JSON)
    before = samples(api)
    for _ in range(3):
        assert api.post("/v1/stream/counted", headers=JSON, content=b'{"a":1}').status_code == 204
    api.get("/v1/stream/nothing-here")
    after = samples(api)

    def grown(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after[key] - before.get(key, 0)

    route = {"route": "/v1/stream/{path}"}
    assert grown("headwater_http_requests_total", **route, method="POST", status="2xx") == 3
    assert grown("headwater_http_requests_total", **route, method="GET", status="4xx") == 1
    assert grown("headwater_http_request_duration_seconds_count", **route, method="POST") == 3
    assert grown("headwater_commit_batch_records_sum") == 3
    assert grown("headwater_commit_accepted_bytes_total") == 21
    assert grown("headwater_http_sent_bytes_total") > 0


def test_labels_do_not_contain_client_text(api: httpx.Client) -> None:
    before = len(samples(api))
    for number in range(20):
        api.request(f"METHOD{number}", f"/path/{number}", headers={"x-request-id": f"id-{number}"})
        api.get(f"/v1/stream/unknown-{number}")
    assert len(samples(api)) - before < 60  # a histogram for a method of a route that was not asked for before
    text = api.get("/metrics").text
    assert "unknown-" not in text
    assert "METHOD" not in text


def test_a_live_reader_is_counted_while_it_reads(api: httpx.Client) -> None:
    api.put("/v1/stream/live", headers=JSON)
    key = ("headwater_live_readers", (("kind", "sse"),))
    with api.stream("GET", "/v1/stream/live?offset=-1&live=sse") as feed:
        events = feed.iter_bytes()
        next(events)
        assert samples(api)[key] == 1
    wait_until(lambda: samples(api)[key] == 0)


def test_an_error_has_the_id_of_its_request(api: httpx.Client) -> None:
    answer = api.get("/v1/stream/missing")
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    named = api.get("/v1/stream/missing", headers={"x-request-id": "my-id"})
    assert named.json()["request_id"] == named.headers["x-request-id"] == "my-id"
    odd = api.get("/v1/stream/missing", headers={"x-request-id": 'a"b<>'})
    assert odd.json()["request_id"] == odd.headers["x-request-id"] != 'a"b<>'


def test_the_busiest_streams_are_listed(api: httpx.Client) -> None:
    api.put("/v1/stream/busy", headers=JSON)
    api.put("/v1/table/rows", headers={"content-type": "text/sequence"})
    url = "/v1/stream/__ds/top?limit=100"

    def busy() -> dict[str, Any]:
        api.post("/v1/stream/busy", headers=JSON, content=b"[1]")
        return next(stream for stream in api.get(url).json()["streams"] if stream["name"] == "busy")

    wait_until(lambda: busy()["appends_per_s"] > 0)  # a rate is that between two looks, which are a second apart
    assert busy()["kind"] == "stream"
    report = api.get(url).json()
    assert report["rates_over_s"] >= 1
    assert {"kind": "table", "name": "rows"}.items() <= next(
        stream for stream in report["streams"] if stream["name"] == "rows"
    ).items()
    assert len(api.get("/v1/stream/__ds/top?by=size&limit=1").json()["streams"]) == 1
    for wrong in ("by=name", "limit=0", "limit=101"):
        assert api.get(f"/v1/stream/__ds/top?{wrong}").status_code == 400


# A process


@pytest.mark.usefixtures("default_signals")
def test_the_access_log_of_a_process_is_rotated(tmp_path: Path) -> None:
    target = tmp_path / "access.log"
    with headwater("--memory", "--access-log", str(target), "--log-format", "json") as server:
        with httpx.Client(base_url=f"http://{server.host}:{server.port}") as client:
            first = client.get("/healthz?token=SECRET", headers={"authorization": "Bearer SECRET"})
            wait_until(target.read_text)
            target.rename(tmp_path / "old.log")
            os.kill(server.pid, signal.SIGHUP)
            wait_until(target.exists)
            client.get("/v1/stream/after")
    old = [json.loads(line) for line in (tmp_path / "old.log").read_text().splitlines()]
    assert [(line["target"], line["status"]) for line in old] == [("/healthz?[hidden]", 200)]
    assert old[0]["request_id"] == first.headers["x-request-id"]
    new = [json.loads(line) for line in target.read_text().splitlines()]
    assert new[-1]["target"] == "/v1/stream/after"
    assert "SECRET" not in (tmp_path / "old.log").read_text()


def test_invalid_requests_are_counted_and_logged(tmp_path: Path) -> None:
    target = tmp_path / "access.log"
    with headwater("--memory", "--access-log", str(target)) as server:
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(b"\x16\x03\x01 no http at all\r\n\r\n")
            answer = sock.recv(65536)
        text = httpx.get(f"http://{server.host}:{server.port}/metrics").text
    assert b" 400 " in answer.splitlines()[0]
    assert b"x-request-id: " in answer
    assert 'headwater_http_requests_total{method="other",route="none",status="4xx"} 1.0' in text
    assert re.fullmatch(r'127\.0\.0\.1 - - \[\S+\] " +HTTP/1\.1" 400 .*', target.read_text().splitlines()[0])


def test_a_notify_belongs_to_the_trace_of_its_append() -> None:
    with receiver() as listener, headwater("--memory") as server:
        root = f"http://{server.host}:{server.port}/v1/table/prices"
        httpx.put(root, headers={"content-type": "text/sequence"}).raise_for_status()
        httpx.post(f"{root}/notify", data={"rows": listener.nurl()}).raise_for_status()
        headers = {"content-type": "text/sequence", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        httpx.post(root, headers=headers, content=b"+\ttea\t2\n").raise_for_status()
        wait_until(lambda: listener.headers)
        _, trace_id, span_id, flags = listener.headers[-1]["traceparent"].split("-")
        assert (trace_id, flags) == (TRACE, "01")
        assert span_id != "b7ad6b7169203331"
        httpx.post(root, headers={"content-type": "text/sequence"}, content=b"+\ttea\t3\n").raise_for_status()
        wait_until(lambda: len(listener.headers) > 1)
        assert "traceparent" not in listener.headers[-1]
