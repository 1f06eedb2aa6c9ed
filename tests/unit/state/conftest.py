"""A client of either shell, and a new stream of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from headwater.client import Client, Stream
from tests.servers import Server
from tests.shells import SHELLS, client_of


@pytest.fixture(scope="module", params=SHELLS)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    with client_of(request.param, f"http://{server.host}:{server.port}") as client:
        yield client


@pytest.fixture
def stream(client: Client) -> Stream:
    stream = client.stream(f"state/{uuid.uuid4().hex}")
    stream.create()
    return stream
