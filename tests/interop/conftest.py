"""The server that other clients talk to, and our client of either shell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.servers import Server

from headwater.client import Client
from tests.edges import memory_server
from tests.shells import SHELLS, client_of


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with memory_server() as running:
        yield running


@pytest.fixture(params=SHELLS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    with client_of(request.param, f"http://{server.host}:{server.port}") as client:
        yield client
