"""What every suite shares: servers as processes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from bench.servers import Server, headwater
from hypothesis import settings

settings.register_profile("headwater", deadline=None, derandomize=True, max_examples=200)
settings.load_profile("headwater")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A memory server that waits two seconds in a long-poll and takes bodies of up to 1 MiB."""
    with headwater("--memory", "--limit", "long_poll_s=2", "--limit", f"body_bytes_max={1 << 20}") as running:
        yield running
