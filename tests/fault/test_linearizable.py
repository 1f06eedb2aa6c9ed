"""Histories of concurrent clients are linearizable, while servers are killed and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.edges import free_port
from tests.fault.histories import ServerLife, record

SECONDS = float(os.environ.get("LINEARIZABLE_S", "20"))
SEED = int(os.environ.get("LINEARIZABLE_SEED", "1"))


@pytest.mark.slow
def test_one_server_with_a_directory(tmp_path: Path) -> None:
    limits = ("--limit", "long_poll_s=1", "--limit", "segment_bytes=300000", "--limit", "fold_idle_s=0.2")
    server = ServerLife("--data-dir", str(tmp_path / "data"), *limits, port=free_port())
    try:
        counts = asyncio.run(record([server.url], [server.kill, server.pause], SECONDS, SEED))
    finally:
        server.end(signal.SIGTERM)
    print(dict(counts))  # noqa: T201 - with -s
    assert counts["faults"]
    assert counts["unknown"]
    assert counts["histories"]
