"""The nginx of deploy/compose.postgres.yaml in front of two servers that share a database."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from bench.servers import headwater

from tests.postgres import postgres
from tests.proxies import of_compose
from tests.waiting import LIMIT_S

TEXT = {"content-type": "text/plain"}
LIVE = "__ds/live"


@pytest.mark.slow
def test_the_streams_of_a_subscription_are_followed_at_the_server_with_the_role(tmp_path: Path) -> None:
    store = ("--store", postgres().new_database())
    with (
        headwater(*store) as first,
        headwater(*store) as second,
        of_compose(tmp_path, (first.port, second.port)) as port,
    ):
        root = f"http://127.0.0.1:{port}/v1/stream"
        for name in ("events/a", "wakes"):
            assert httpx.put(f"{root}/{name}", headers=TEXT).status_code == 201
        body = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wakes"}
        assert httpx.put(f"{root}/__ds/subscriptions/s", json=body, timeout=LIMIT_S).status_code == 201
        straight = [httpx.stream("GET", f"{one.url}/{LIVE}?subscription=s", timeout=LIMIT_S) for one in (first, second)]
        statuses = []
        for opened in straight:
            with opened as response:
                statuses.append((response.status_code, response.headers.get("connection")))
        assert sorted(statuses) == [(200, None), (503, "close")]
        for method in ("GET", "POST") * 3:
            query = {"params": {"subscription": "s"}} if method == "GET" else {"data": {"subscription": "s"}}
            with httpx.stream(method, f"{root}/{LIVE}", timeout=LIMIT_S, **query) as response:  # type: ignore[arg-type]
                assert response.status_code == 200
                assert next(response.iter_lines()).startswith("event:")
