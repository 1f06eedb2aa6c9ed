"""Forwarding headers behind real proxies, with the files of `deploy/`: a client chooses neither address nor host."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.certificates import Pair, make_pair
from tests.proxies import front
from tests.waiting import wait_until

TEXT = {"content-type": "text/plain"}
FORGED = (
    {"forwarded": "for=6.6.6.6;host=evil.example;proto=http"},
    {"forwarded": 'for="6.6.6.6'},
    {"x-forwarded-for": "6.6.6.6", "x-forwarded-host": "evil.example", "x-forwarded-proto": "http"},
    {"x-forwarded-for": "127.0.0.1, 6.6.6.6", "forwarded": "for=127.0.0.1"},
    {"x-real-ip": "6.6.6.6", "true-client-ip": "6.6.6.6"},
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["caddy", "nginx"])
def proxy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[(), ("--forwarding-headers", "x-forwarded")], ids=["default", "named"])
def behind(
    request: pytest.FixtureRequest, proxy: str, pair: Pair, tmp_path: Path
) -> Iterator[tuple[httpx.Client, Path]]:
    """A client of the proxy, and the access log of the server behind it."""
    access_log = tmp_path / "access.log"
    rate = ("--limit", "requests_per_s_per_address=20")
    options = ("--access-log", str(access_log), "--log-format", "json", *rate, *request.param)
    trust: ssl.SSLContext = pair.trust()
    with front(proxy, pair, tmp_path, *options) as url, httpx.Client(base_url=url, verify=trust) as client:
        yield client, access_log


@pytest.mark.slow
def test_a_client_chooses_neither_its_address_nor_the_host(behind: tuple[httpx.Client, Path]) -> None:
    client, access_log = behind
    for number, headers in enumerate(FORGED):
        created = client.put(f"/v1/stream/s{number}", headers={**TEXT, **headers})
        assert created.status_code == 201
        assert created.headers["location"] == f"{str(client.base_url).rstrip('/')}/v1/stream/s{number}"
    wait_until(lambda: len(access_log.read_text().splitlines()) >= len(FORGED))
    assert {json.loads(line)["peer"] for line in access_log.read_text().splitlines()} == {"127.0.0.1"}


@pytest.mark.slow
def test_a_client_does_not_escape_the_limits_of_its_address(behind: tuple[httpx.Client, Path]) -> None:
    client, _ = behind

    def is_refused() -> bool:
        for number in range(40):
            forged = {"forwarded": f"for=10.9.8.{number}", "x-forwarded-for": f"10.9.8.{number}"}
            if client.get("/v1/stream/none", headers=forged).status_code == 429:
                return True
        return False

    wait_until(is_refused)
