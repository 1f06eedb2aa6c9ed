"""The client that looks at results, and clients of jobs that load no certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from headwater.client import Client
from headwater.spark.connection import ConnectionOptions
from tests.servers import Server


@pytest.fixture(autouse=True)
def without_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading them for every client would take longer than the tests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(ConnectionOptions, "tls", lambda _: context)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client
