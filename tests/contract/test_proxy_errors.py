"""Errors through nginx with the file of `deploy/`: those of the server, and those of nginx itself."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headwater.client import Client, Retry
from headwater.errors import BodyTooLargeError, ServerError
from tests.certificates import Pair, make_pair
from tests.edges import free_port
from tests.proxies import front, proxy_before

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def trust(pair: Pair) -> ssl.SSLContext:
    return pair.trust()


@pytest.fixture(scope="module", params=["caddy", "nginx"])
def away(request: pytest.FixtureRequest, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a proxy in front of a server that does not run."""
    with proxy_before(request.param, free_port(), pair, tmp_path_factory.mktemp("away")) as url:
        yield url


def test_a_body_that_is_too_large_gets_the_problem_of_the_server(
    pair: Pair, trust: ssl.SSLContext, tmp_path: Path
) -> None:
    with front("nginx", pair, tmp_path) as url, httpx.Client(base_url=url, verify=trust, timeout=60) as http:
        content_type = {"content-type": "text/plain"}
        assert http.put("/v1/stream/a", headers=content_type).status_code == 201
        refused = http.post("/v1/stream/a", headers=content_type, content=b"x" * (16 * 1024 * 1024 + 1))
        assert (refused.status_code, refused.headers["content-type"]) == (413, "application/problem+json")
        assert refused.json()["type"] == "urn:headwater:body-too-large"
        assert http.post("/v1/stream/a", headers=content_type, content=b"x" * 16 * 1024 * 1024).status_code == 204


def test_a_server_that_is_away_is_a_problem_document(away: str, trust: ssl.SSLContext) -> None:
    with httpx.Client(base_url=away, verify=trust) as http:
        answer = http.get("/v1/stream/a")
    assert (answer.status_code, answer.headers["content-type"]) == (502, "application/problem+json")
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["retryable"] is True


def test_the_client_names_the_cause(away: str, trust: ssl.SSLContext) -> None:
    with httpx.Client(verify=trust) as http, Client(away, http=http, retry=Retry(attempts=1)) as client:
        with pytest.raises(ServerError, match="the proxy cannot reach the server") as raised:
            client.stream("a").delete()
    assert (raised.value.status, raised.value.retryable, raised.value.nothing_done) == (502, True, False)


@pytest.mark.parametrize(("status", "kind"), [(413, BodyTooLargeError), (502, ServerError)])
def test_a_page_of_another_proxy_is_named_and_not_shown(status: int, kind: type[Exception]) -> None:
    page = b"<html>\r\n<head><title>%d Sorry</title></head>\r\n<body>%b</body></html>" % (status, b"long " * 1_000)

    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=page, headers={"content-type": "text/html", "server": "nginx"})

    with (
        httpx.Client(transport=httpx.MockTransport(respond)) as http,
        Client("http://server", http=http, retry=Retry(attempts=1)) as client,
        pytest.raises(kind, match=f"'{status} Sorry' by 'nginx': a proxy responded instead of the server") as raised,
    ):
        client.stream("a").head()
    assert "long" not in str(raised.value)
