"""A server inside the process of the tests that compacts streams and removes what was replaced at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import pytest

from headwater.client import Stream
from headwater.limits import Limits
from tests.servers import Server, serving
from tests.waiting import wait_until


@contextlib.contextmanager
def compacting_server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, serving(Limits(expiry_sweep_s=0.05)) as server:
        patch.setattr("headwater.log.state.COMPACT_GRACE_S", 0)
        yield server


def compact(stream: Stream, server: Server, *, replaced: str | None = None) -> str:
    """Compact a stream. Returns where it begins then. With `replaced`, wait until that offset is gone."""
    response = httpx.post(f"{server.url}/__ds/compact", params={"path": stream.path or ""}, timeout=60)
    assert response.status_code == 200, response.text
    assert response.json()["compacted"], response.text
    if replaced is not None:
        wait_until(lambda: httpx.get(stream.url, params={"offset": replaced}).status_code == 410)
    return str(response.json()["first_offset"])
