"""Paths and their routes."""

from __future__ import annotations

import gc

import pytest

from headwater.server import routes
from headwater.server.routes import resolve


@pytest.mark.parametrize("path", ["/v1/stream/prices", "/v1/table/apples", "/metrics"])
def test_resolved_paths_are_not_tracked_by_the_garbage_collector(path: str) -> None:
    """Tens of thousands are cached."""
    assert resolve(path) is resolve(path)
    assert not gc.is_tracked(resolve(path))


def test_the_oldest_resolved_path_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "PATHS_CACHED_MAX", 2)
    known = routes._Known()
    for path in ("/v1/stream/a", "/v1/stream/b", "/v1/stream/a", "/v1/stream/c"):
        assert known[path].path == path[-1]
    assert list(known) == ["/v1/stream/b", "/v1/stream/c"]
