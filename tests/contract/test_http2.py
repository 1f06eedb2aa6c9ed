"""HTTP/2 through an ASGI server, Caddy and nginx: the same responses, and live reads without buffering."""

from __future__ import annotations

import asyncio
import re
import ssl
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from bench.servers import headwater

from tests.certificates import Pair, make_pair
from tests.metrics import LONG_POLL, wait_for_readers
from tests.programs import program
from tests.proxies import FRONTS, caddy, front
from tests.waiting import LIMIT_S, wait_for, wait_until

TEXT = {"content-type": "text/plain"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def trust(pair: Pair) -> ssl.SSLContext:
    return pair.trust()


@pytest.fixture(scope="module", params=FRONTS)
def http(
    request: pytest.FixtureRequest, pair: Pair, trust: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    with front(request.param, pair, tmp_path_factory.mktemp(request.param)) as url:
        with httpx.Client(base_url=url, verify=trust, http1=False, http2=True, timeout=LIMIT_S) as client:
            yield client


@pytest.fixture
def stream(http: httpx.Client) -> str:
    path = f"/v1/stream/{uuid.uuid4()}"
    created = http.put(path, headers=TEXT, content=b"one")
    assert (created.status_code, created.http_version) == (201, "HTTP/2")
    assert created.headers["location"] == f"{str(http.base_url).rstrip('/')}{path}"
    return path


def test_appends_and_reads(http: httpx.Client, stream: str) -> None:
    assert http.post(stream, headers=TEXT, content=b"two").status_code == 204
    assert http.get(stream).content == b"onetwo"
    assert http.head(stream).headers["stream-next-offset"]
    missing = http.get(f"{stream}-none")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")


def test_an_event_arrives_before_the_next_append(http: httpx.Client, stream: str) -> None:
    """A front that buffers would keep it until more data or the end of the response."""
    with http.stream("GET", stream, params={"offset": "-1", "live": "sse"}) as feed:
        lines = feed.iter_lines()
        while next(lines) != "data:one":
            pass
        for number in range(3):
            http.post(stream, headers=TEXT, content=f"number {number}".encode())
            while next(lines) != f"data:number {number}":
                pass


def test_a_row_arrives_before_the_next_append(http: httpx.Client) -> None:
    """nginx buffers the headers until there is a row, so the table has one at the beginning."""
    table, lines = f"/v1/table/{uuid.uuid4()}", {"content-type": "text/tab-separated-values"}
    assert http.put(table, headers={"content-type": "text/sequence; schema=test; version=1"}).status_code == 201
    http.post(table, headers=lines, content=b"+\tfirst\tvalue\n")
    with http.stream("GET", table, params={"since_id": "0", "timeout": "300", "idle": "300"}) as rows:
        pieces = rows.iter_bytes()
        assert b"first\tvalue" in next(pieces)
        http.post(table, headers=lines, content=b"+\tsecond\tvalue\n")
        assert b"second\tvalue" in next(pieces)


def test_an_append_ends_a_long_poll(http: httpx.Client, trust: ssl.SSLContext, stream: str) -> None:
    """With a client of its own, because a thread of httpx that reads a connection can keep the others from it."""
    offset = http.head(stream).headers["stream-next-offset"]
    other = httpx.Client(base_url=http.base_url, verify=trust, http1=False, http2=True, timeout=60)
    with other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.get, stream, params={"offset": offset, "live": "long-poll"})
        wait_for_readers(http, LONG_POLL)
        http.post(stream, headers=TEXT, content=b"two")
        answer = waiting.result()
    assert (answer.status_code, answer.content) == (200, b"two")


@pytest.mark.parametrize("name", ["caddy", "nginx"])
def test_readers_that_have_gone_are_not_kept(name: str, pair: Pair, trust: ssl.SSLContext, tmp_path: Path) -> None:
    """The server's own limits would end these reads after an hour and after five minutes. The client closes its
    connection: httpx does not reset a stream of HTTP/2."""
    with front(name, pair, tmp_path) as url:
        options = {"base_url": url, "verify": trust, "http1": False, "http2": True, "timeout": 20}
        with httpx.Client(**options) as http, httpx.Client(**options) as own:  # type: ignore[arg-type]
            http.put("/v1/stream/a", headers=TEXT, content=b"one")
            http.put("/v1/table/t", headers={"content-type": "text/sequence; schema=test; version=1"})
            http.post("/v1/table/t", headers={"content-type": "text/tab-separated-values"}, content=b"+\tkey\tvalue\n")
            with own.stream("GET", "/v1/stream/a?offset=-1&live=sse") as feed:
                with own.stream("GET", "/v1/table/t?since_id=0&timeout=300") as rows:
                    assert b"one" in next(feed.iter_bytes())
                    assert b"value" in next(rows.iter_bytes())
                    wait_for(lambda: _live_readers(http), {"sse": 1, "table": 1})
            own.close()
            wait_until(lambda: not _live_readers(http))


def _live_readers(http: httpx.Client) -> dict[str, int]:
    """The live readers at the server, by kind."""
    lines = re.findall(r'^headwater_live_readers{kind="(.+?)"} (\S+)$', http.get("/metrics").text, re.MULTILINE)
    return {kind: int(float(count)) for kind, count in lines if float(count)}


def test_caddy_starts_without_the_optional_variables(tmp_path: Path) -> None:
    """It makes the certificate, and clients that trust its authority read and append."""
    path = program("caddy")
    with (
        headwater("--memory", "--trusted-proxy", "127.0.0.1") as server,
        caddy(path, None, tmp_path, server.port) as port,
    ):
        authority = tmp_path / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        trust = ssl.create_default_context(cafile=str(authority))
        with httpx.Client(base_url=f"https://localhost:{port}", verify=trust, http2=True, timeout=LIMIT_S) as client:
            assert client.put("/v1/stream/a", headers=TEXT, content=b"one").status_code == 201
            answer = client.get("/v1/stream/a")
            assert (answer.content, answer.http_version) == (b"one", "HTTP/2")


def test_many_requests_share_a_connection(http: httpx.Client, trust: ssl.SSLContext, stream: str) -> None:
    """On one event loop, because with threads httpx can start the requests of a connection in the wrong order."""

    async def main() -> list[httpx.Response]:
        options = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(base_url=http.base_url, verify=trust, http2=True, limits=options) as client:
            await client.get(stream)
            return await asyncio.gather(*[client.get(stream) for _ in range(100)])

    assert {(answer.content, answer.http_version) for answer in asyncio.run(main())} == {(b"one", "HTTP/2")}


def test_large_bodies_both_ways(http: httpx.Client) -> None:
    path, data = f"/v1/stream/{uuid.uuid4()}", bytes(range(256)) * 4_000
    created = http.put(path, headers={"content-type": "application/octet-stream"}, content=data)
    assert created.status_code == 201
    assert http.get(path).content == data


def test_a_url_that_is_too_long_is_refused(http: httpx.Client, stream: str) -> None:
    """With HTTP/1.1 the response closes the connection. HTTP/2 has no header for this."""
    assert http.get(stream, params={"x": "x" * 8_400}).status_code == 414
    assert http.get(stream).status_code == 200
