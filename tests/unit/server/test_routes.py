"""Paths and their routes."""

from __future__ import annotations

import gc

import pytest

from headwater.server.routes import resolve


@pytest.mark.parametrize("path", ["/v1/stream/prices", "/v1/table/apples", "/metrics"])
def test_resolved_paths_are_not_tracked_by_the_garbage_collector(path: str) -> None:
    """Tens of thousands are cached."""
    assert resolve(path) is resolve(path)
    assert not gc.is_tracked(resolve(path))
