"""Access by pages in a browser, over every edge: hosts, origins and stored content."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import httpx
import pytest
from bench.servers import Server, headwater

from headwater.server.access import access_at, parse_origin
from headwater.server.asgi import App
from headwater.server.http import Request
from tests.edges import DURABLE, EDGES_OF_SHARED, NATIVE, edge, root_of
from tests.waiting import LIMIT_S

TEXT = {"content-type": "text/plain"}
FOREIGN = "https://evil.example"
ALLOWED = "https://app.example"


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(name: str) -> Iterator[httpx.Client]:
    with edge(name) as server, httpx.Client(base_url=root_of(name, server), timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
def path() -> str:
    return f"/b/{uuid.uuid4().hex}"


def refused(response: httpx.Response, status: int, code: str, option: str) -> bool:
    assert (response.status_code, response.json()["type"]) == (status, f"urn:headwater:{code}")
    assert option in response.json()["detail"]
    assert "access-control-allow-origin" not in response.headers
    return True


@pytest.mark.parametrize("origin", [FOREIGN, "null", "http://localhost.evil.example", "http://127.evil.example", "x"])
def test_a_foreign_page_changes_nothing(client: httpx.Client, path: str, origin: str) -> None:
    page = {"origin": origin}
    for method, body in (("PUT", b""), ("POST", b"x"), ("DELETE", b"")):
        for there in (path, f"{path}-new"):
            answer = client.request(method, there, headers={**TEXT, **page}, content=body)
            assert refused(answer, 403, "origin-not-allowed", "--allow-origin")
    preflight = {**page, "access-control-request-method": "PUT"}
    answer = client.options(path, headers=preflight)  # the official suite wants to see the headers all the same
    assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (204, False)
    assert client.head(path).status_code == 404
    client.put(path, headers=TEXT, content=b"data")
    client.delete(path, headers=page)
    assert client.get(path).content == b"data"


def test_a_foreign_page_cannot_read(client: httpx.Client, path: str) -> None:
    client.put(path, headers=TEXT, content=b"data")
    for more in ({"origin": FOREIGN}, {}):  # images and scripts come without an origin
        for query in ({}, {"offset": "-1"}, {"offset": "now"}):
            answer = client.get(path, params=query, headers=more)
            assert "access-control-allow-origin" not in answer.headers
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "origin" in answer.headers["vary"]
    with client.stream("GET", path, params={"offset": "-1", "live": "sse"}, headers={"origin": FOREIGN}) as feed:
        assert feed.status_code == 200
        assert "access-control-allow-origin" not in feed.headers


def test_a_page_of_the_same_origin_may_do_everything(client: httpx.Client, path: str) -> None:
    page = {"origin": f"http://{client.base_url.host}:{client.base_url.port}"}
    assert client.put(path, headers={**TEXT, **page}).status_code == 201
    assert client.post(path, headers={**TEXT, **page}, content=b"x").status_code == 204
    assert client.get(path, headers=page).content == b"x"
    assert client.delete(path, headers=page).status_code == 204


def test_stored_pages_cannot_run_scripts(client: httpx.Client, path: str) -> None:
    client.put(path, headers={"content-type": "text/html"}, content=b"<script>alert(1)</script>")
    for query in ({}, {"offset": "now"}):
        answer = client.get(path, params=query)
        assert answer.headers["content-type"] == "text/html"
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "https://localhost", "http://127.0.0.1:8080", "http://[::1]:5"]
)
def test_pages_on_this_machine_may_use_a_local_server(name: str, client: httpx.Client, path: str, origin: str) -> None:
    if name not in (NATIVE, DURABLE):
        pytest.skip("the app does not know where its server listens")
    page = {"origin": origin}
    created = client.put(path, headers={**TEXT, **page}, content=b"x")
    read = client.get(path, headers=page)
    for answer in (created, read, client.get(f"{path}-none", headers=page)):
        assert answer.headers["access-control-allow-origin"] == origin
        assert "stream-next-offset" in answer.headers["access-control-expose-headers"]
        assert "origin" in answer.headers["vary"]
    preflight = client.options(
        path, headers={**page, "access-control-request-method": "PUT", "access-control-request-private-network": "true"}
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == origin
    assert preflight.headers["access-control-allow-private-network"] == "true"
    assert "DELETE" in preflight.headers["access-control-allow-methods"]
    for allowed in ("producer-id", "if-none-match", "last-event-id", "content-type"):
        assert allowed in preflight.headers["access-control-allow-headers"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4437", "localhost.evil.example", "127.evil.example", "a b"]
)
def test_a_local_server_accepts_local_host_names_only(name: str, client: httpx.Client, path: str, host: str) -> None:
    if name not in (NATIVE, DURABLE):
        pytest.skip("the app answers for any host")
    for method in ("PUT", "GET"):
        answer = client.request(method, path, headers={**TEXT, "host": host})
        assert refused(answer, 421, "host-not-allowed", "--allow-host")
    for ours in ("localhost", "LocalHost:1", "127.0.0.1:9", "127.1.2.3", "[::1]:80", "[::1]"):
        assert client.get(path, headers={"host": ours}).status_code == 404


@pytest.fixture(scope="module")
def opened() -> Iterator[Server]:
    options = ("--allow-origin", ALLOWED, "--allow-origin", "null", "--allow-host", "streams.example")
    with headwater("--memory", *options) as server:
        yield server


def test_options_allow_other_hosts_and_origins(opened: Server, path: str) -> None:
    with httpx.Client(base_url=opened.url) as client:
        for origin in (ALLOWED, "null", "http://localhost:1"):
            page = {"origin": origin, "host": "streams.example:8080"}
            there = f"{path}-{uuid.uuid4().hex}"
            assert client.put(there, headers={**TEXT, **page}).headers["access-control-allow-origin"] == origin
            assert client.get(there, headers=page).headers["access-control-allow-origin"] == origin
            assert client.options(there, headers=page).status_code == 204
        for origin in (FOREIGN, f"{ALLOWED}:444", "http://app.example"):
            assert refused(client.put(path, headers={"origin": origin}), 403, "origin-not-allowed", "--allow-origin")
        assert client.get(path, headers={"host": "other.example"}).status_code == 421


def test_a_star_allows_all_hosts_and_origins(path: str) -> None:
    with headwater("--memory", "--allow-origin", "*", "--allow-host", "*") as server:
        with httpx.Client(base_url=server.url, headers={"host": "any.example"}) as client:
            page = {"origin": FOREIGN}
            for answer in (
                client.put(path, headers={**TEXT, **page}, content=b"x"),
                client.get(path, headers=page),
                client.get(path),
                client.options(path, headers=page),
            ):
                assert answer.headers["access-control-allow-origin"] == "*"
            assert client.get(path).headers["cross-origin-resource-policy"] == "cross-origin"
            assert "origin" not in client.get(path).headers["vary"]


def test_the_app_leaves_it_to_the_application_or_checks_itself() -> None:
    async def ask(app: App, method: str, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://host.example") as client:
            return await client.request(method, "/v1/stream/a", headers={**TEXT, **headers})

    async def run() -> None:
        left = App(allow_origins=None)
        answer = await ask(left, "PUT", origin=FOREIGN)
        assert answer.status_code == 201
        assert "access-control-allow-origin" not in answer.headers
        await left.stop()
        checked = App(allow_origins=[ALLOWED], allow_hosts=["host.example"])
        assert (await ask(checked, "PUT", origin=FOREIGN)).status_code == 403
        assert (await ask(checked, "PUT", origin=ALLOWED)).headers["access-control-allow-origin"] == ALLOWED
        assert (await ask(checked, "GET", host="other.example")).status_code == 421
        await checked.stop()

    asyncio.run(run())


def test_a_server_on_another_address_accepts_any_host() -> None:
    def request(method: str, **headers: str) -> Request:
        return Request(method, "/v1/stream/a", "", headers, b"")

    anywhere = access_at("0.0.0.0")
    assert ("cross-origin-resource-policy", "same-origin") in anywhere.check(request("GET", host="any.example"))
    assert anywhere.check(request("POST", host="any.example")) == ()
    with pytest.raises(Exception, match="allow-origin"):
        anywhere.check(request("POST", host="any.example", origin="http://localhost:3000"))
    named = access_at("0.0.0.0", hosts=["streams.example"])
    named.check(request("GET", host="Streams.example:99"))
    with pytest.raises(Exception, match="allow-host"):
        named.check(request("GET", host="any.example"))


@pytest.mark.parametrize(
    "text", ["app.example", "https://app.example/", "https://", "ftp://app.example", "https://a b", ""]
)
def test_invalid_origins(text: str) -> None:
    with pytest.raises(ValueError, match=r"origin|host"):
        parse_origin(text)
