"""Limits that a deployment sets, over both edges."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import httpx
import pytest
from bench.servers import headwater

from headwater.client import Client
from headwater.errors import StreamFullError, TooManyStreamsError
from headwater.server.auth.editing import add_token
from headwater.server.auth.rules import parse_token_quota
from tests.edges import NATIVE, UVICORN, edge
from tests.waiting import wait_for, wait_until

TEXT = {"content-type": "text/plain"}

both = pytest.mark.parametrize("name", [NATIVE, pytest.param(UVICORN, marks=pytest.mark.slow)])


@both
def test_streams_and_their_bytes(name: str) -> None:
    with edge(name, streams_max=2, stream_bytes_max=10) as server, httpx.Client(base_url=server.url) as client:
        assert client.put("/a", headers=TEXT).status_code == 201
        assert client.put(server.url.replace("/stream", "/table") + "/t").status_code == 201
        refused = client.put("/b", headers=TEXT)
        assert (refused.status_code, refused.json()["type"].rsplit(":", 1)[-1]) == (403, "too-many-streams")
        assert client.put("/a", headers=TEXT).status_code == 200
        assert client.post("/a", content=b"123456", headers=TEXT).status_code == 204
        refused = client.post("/a", content=b"12345", headers=TEXT)
        assert (refused.status_code, refused.json()["type"].rsplit(":", 1)[-1]) == (413, "stream-full")
        assert client.post("/a", content=b"1234", headers=TEXT).status_code == 204
        assert client.get("/a", params={"offset": "-1"}).content == b"1234561234"
        assert client.delete("/a").status_code == 204
        assert client.put("/b", headers=TEXT).status_code == 201


def test_one_tenant_does_not_take_what_belongs_to_others() -> None:
    quotas = ("--quota", "tenants/a streams=2 bytes=10 live_readers=1", "--quota", "tenants/b appends_per_s=1")
    with headwater("--memory", *quotas) as server, httpx.Client(base_url=server.url) as client:

        def refused(answer: httpx.Response) -> tuple[int, str]:
            return answer.status_code, answer.json()["type"].rsplit(":", 1)[-1]

        assert client.put("/tenants/a/1", headers=TEXT, content=b"123456").status_code == 201
        assert client.put(server.url.replace("/stream", "/table") + "/tenants/a/2").status_code == 201
        assert refused(client.put("/tenants/a/3", headers=TEXT)) == (403, "too-many-streams")
        assert refused(client.post("/tenants/a/1", headers=TEXT, content=b"12345")) == (403, "quota-exceeded")
        assert client.put("/tenants/b/1", headers=TEXT, content=b"1" * 100).status_code == 201
        while (answer := client.post("/tenants/b/1", headers=TEXT, content=b"x")).status_code == 204:
            continue
        assert refused(answer) == (429, "too-many-requests")
        assert client.post("/tenants/a/1", headers=TEXT, content=b"1").status_code == 204
        live = {"offset": "-1", "live": "sse"}
        with client.stream("GET", "/tenants/a/1", params=live) as feed:
            pieces = feed.iter_bytes()
            next(pieces)
            assert refused(client.get("/tenants/a/1", params=live)) == (429, "too-many-requests")
            report = client.get("/__ds/usage").json()["prefixes"]
            metrics = client.get(server.url.replace("/v1/stream", "") + "/metrics").text
        assert report[0] == {
            "prefix": "tenants/a",
            "streams": 2,
            "bytes": 7,
            "live_readers": 1,
            "quota": {"streams": 2, "bytes": 10, "live_readers": 1},
        }
        assert 'headwater_prefix_usage{prefix="tenants/a",what="bytes"} 7.0' in metrics
        assert 'headwater_prefix_quota{prefix="tenants/a",what="bytes"} 10.0' in metrics
        assert client.delete("/tenants/a/1").status_code == 204
        assert client.put("/tenants/a/3", headers=TEXT).status_code == 201


@both
def test_a_token_has_a_quota_that_the_auth_file_changes(name: str, tmp_path: Path) -> None:
    file = tmp_path / "auth.toml"
    token, _ = add_token(file, "ci", ["admin:**"], None, parse_token_quota("streams=2 bytes=10 live_readers=1"))
    other, _ = add_token(file, "other", ["admin:**"], None)

    def refused(answer: httpx.Response) -> tuple[int, str]:
        return answer.status_code, answer.json()["type"].rsplit(":", 1)[-1]

    with (
        edge(name, auth=file) as server,
        httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {token}"}) as client,
        httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {other}"}) as others,
    ):
        assert client.put("/1", headers=TEXT, content=b"123456").status_code == 201
        assert client.put(server.url.replace("/stream", "/table") + "/2").status_code == 201
        for _ in range(3):  # what is refused does not count
            assert refused(client.put("/3", headers=TEXT)) == (403, "too-many-streams")
            assert refused(client.post("/1", headers=TEXT, content=b"12345")) == (403, "quota-exceeded")
            assert refused(others.post("/1", headers=TEXT, content=b"12345")) == (403, "quota-exceeded")
        assert others.put("/3", headers=TEXT, content=b"1" * 20).status_code == 201
        producer = {**TEXT, "producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
        for status in (200, 204, 204):  # a retry does not count
            assert client.post("/1", headers=producer, content=b"1").status_code == status
        live = {"offset": "-1", "live": "sse"}
        with client.stream("GET", "/1", params=live) as feed:
            pieces = feed.iter_bytes()
            next(pieces)
            assert refused(client.get("/3", params=live)) == (429, "too-many-requests")
            with others.stream("GET", "/1", params=live) as theirs:
                assert theirs.status_code == 200
            report = others.get("/__ds/usage").json()
        quota = {"streams": 2, "bytes": 10, "live_readers": 1}
        assert report["tokens"] == [{"token": "ci", "streams": 2, "bytes": 7, "live_readers": 1, "quota": quota}]
        file.write_text(file.read_text().replace("streams = 2", "streams = 3"))
        wait_until(lambda: client.put("/4", headers=TEXT).status_code == 201, "the quota is loaded")
        assert refused(client.put("/5", headers=TEXT)) == (403, "too-many-streams")
        assert client.delete("/1").status_code == 204
        assert client.put("/5", headers=TEXT, content=b"1" * 10).status_code == 201


@both
def test_a_client_that_waits_for_retry_after_is_served(name: str) -> None:
    with edge(name, requests_per_s_per_address=5) as server, httpx.Client(base_url=server.url) as client:
        answers = [client.put("/a", headers=TEXT) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200]
        refused = wait_until(lambda: refusal(client.put("/a", headers=TEXT)))
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["retryable"] is True
        time.sleep(int(refused.headers["retry-after"]))  # what the server asks for; longer is as good
        assert client.head("/a").status_code == 200


def refusal(answer: httpx.Response) -> httpx.Response | None:
    return answer if answer.status_code == 429 else None


@both
def test_bytes_of_responses_count(name: str) -> None:
    with edge(name, bytes_per_s_per_identity=1_000) as server, httpx.Client(base_url=server.url) as client:
        assert client.put("/a", content=b"x" * 900, headers=TEXT).status_code == 201
        wait_for(lambda: client.get("/a", params={"offset": "-1"}).status_code, 200)
        wait_for(lambda: client.get("/a", params={"offset": "-1"}).status_code, 429)
        wait_for(lambda: client.post("/a", content=b"x" * 200, headers=TEXT).status_code, 204)


@both
def test_live_readers(name: str) -> None:
    with edge(name, live_readers_max=1) as server, httpx.Client(base_url=server.url) as client:
        client.put("/a", headers=TEXT)
        live = {"offset": "-1", "live": "sse"}
        with client.stream("GET", "/a", params=live) as first:
            assert first.status_code == 200
            for query in (live, {"offset": "-1", "live": "long-poll"}):
                refused = client.get("/a", params=query)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert client.get("/a", params={"offset": "-1"}).status_code == 200

        def status() -> int:
            with client.stream("GET", "/a", params=live) as second:
                return second.status_code

        wait_for(status, 200)  # when the server has noticed that the first one has left


def test_connections_of_an_address() -> None:
    with edge(NATIVE, connections_per_address_max=2) as server:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(httpx.Client(base_url=server.url)) for _ in range(3)]
            statuses = [client.head("/a").status_code for client in clients]
            assert statuses == [404, 404, 429]
            other = httpx.HTTPTransport(local_address="127.0.0.2")
            assert stack.enter_context(httpx.Client(transport=other)).head(f"{server.url}/a").status_code == 404
        wait_for(lambda: httpx.head(f"{server.url}/a").status_code, 404)  # closed connections do not count


def test_the_client_retries_temporary_refusals_only() -> None:
    with edge(NATIVE, requests_per_s_per_address=4, streams_max=1, stream_bytes_max=200) as server:
        with Client(f"http://{server.host}:{server.port}") as client:
            stream = client.stream("a")
            stream.create(content_type="text/plain")
            for _ in range(8):
                stream.append(b"0123456789")
            with pytest.raises(StreamFullError):
                stream.append(b"x" * 200)
            with pytest.raises(TooManyStreamsError):
                client.stream("b").create(content_type="text/plain")


def test_a_producer_stores_everything_once_under_temporary_refusals() -> None:
    with edge(NATIVE, requests_per_s_per_address=5) as server:
        with Client(f"http://{server.host}:{server.port}") as client:
            stream = client.stream("a", content_type="application/json")
            stream.create()
            with stream.producer(batch_bytes=8, linger_s=0) as producer:  # a request for a few messages
                for number in range(30):
                    producer.append(number)
            assert producer.metrics.retries
            assert stream.read().all() == list(range(30))
