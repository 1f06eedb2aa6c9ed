"""Unit tests start no processes: those that need a server share one in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.limits import Limits
from tests.servers import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A memory server with a long-poll timeout of two seconds that accepts bodies of up to 1 MiB."""
    with serving(Limits(long_poll_s=2, body_bytes_max=1 << 20)) as running:
        yield running
