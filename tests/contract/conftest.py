"""A server behind every edge, and a table on it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from tests.contract.tables import SCHEMA
from tests.edges import EDGES_OF_SHARED, TOGETHER, edge, root_of


@pytest.fixture(scope="module", params=EDGES_OF_SHARED)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    with edge(request.param) as server:
        root = root_of(request.param, server).replace("/v1/stream", "/v1/table")
        with httpx.Client(base_url=root, timeout=60) as client:
            yield client


@pytest.fixture
def one_server(request: pytest.FixtureRequest) -> None:
    """For a test of what each of several servers has for itself, or a proxy in front of them changes."""
    if TOGETHER in request.node.callspec.params.values():
        pytest.skip("this is about one server")


@pytest.fixture
def table(client: httpx.Client) -> str:
    name = f"/t/{uuid.uuid4().hex}"
    assert client.put(name, headers=SCHEMA).status_code == 201
    return name
