"""The server that the commands talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.servers import Server

from tests.edges import memory_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with memory_server() as running:
        yield running
