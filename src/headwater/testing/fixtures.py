"""pytest fixtures: a server for each test. Name this module in the `conftest.py` of your tests:

pytest_plugins = ["headwater.testing.fixtures"]
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.client import Client
from headwater.testing.serving import MemoryServer, memory_server


@pytest.fixture
def headwater_server() -> Iterator[MemoryServer]:
    """An empty server in memory on a free port, for one test."""
    with memory_server() as server:
        yield server


@pytest.fixture
def headwater_client(headwater_server: MemoryServer) -> Iterator[Client]:
    """A client of `headwater_server`. In an asyncio test, use `headwater_server.async_client()` instead."""
    with headwater_server.client() as client:
        yield client
