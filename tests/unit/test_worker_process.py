"""The process of a worker beside that of the server."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from headwater.server.compacting.compaction import SubprocessContent
from headwater.server.compacting.snapshot_worker import Begin
from headwater.worker_process import WorkerProcess


def started(worker: WorkerProcess) -> int:
    process = worker._process
    assert process is not None
    return process.pid


@pytest.mark.skipif(sys.platform != "linux", reason="sessions and policies of Linux")
def test_a_snapshot_is_computed_when_nothing_else_runs() -> None:
    """In another session, Linux would give it as much of the processors as the server, whatever its priority."""

    async def main() -> None:
        content = SubprocessContent()
        try:
            await content.begin(Begin(is_table=False, memory_bytes=1 << 20, offset="0"))
            assert (await content.finish()).size_bytes > 0
            pid = started(content._worker)
            assert os.getpgid(pid) == pid
            assert os.getsid(pid) == os.getsid(0)
            assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        finally:
            await content.close()

    asyncio.run(main())
