"""A server process, plain and with TLS, whose long-polls last longer than a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.servers import Server

from tests.certificates import make_pair
from tests.edges import memory_server


@pytest.fixture(scope="session", params=["plain", pytest.param("TLS", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options: tuple[str, ...] = ("--limit", "long_poll_s=600")
    if request.param == "TLS":
        pair = make_pair(tmp_path_factory.mktemp("tls"))
        options += ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key))
    with memory_server(*options) as running:
        yield running
