"""A server behind every edge, and a table on it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.tables import SCHEMA
from tests.edges import EDGES, edge, root_of


@pytest.fixture(scope="module", params=EDGES)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with edge(request.param) as server:
        root = root_of(request.param, server).replace("/v1/stream", "/v1/table")
        with httpx.Client(base_url=root, timeout=60) as client:
            yield client


@pytest.fixture
def table(client: httpx.Client) -> str:
    name = f"/t/{uuid.uuid4().hex}"
    assert client.put(name, headers=SCHEMA).status_code == 201
    return name
