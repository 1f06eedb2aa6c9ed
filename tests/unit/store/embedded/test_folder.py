"""The folder and its worker: a task that waits for a response can be cancelled at any time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headwater.store.embedded import folder


def test_a_cancellation_is_not_lost_if_the_response_arrives_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the background work of a stopping server would continue, and the server would wait for it forever."""

    async def run() -> None:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def exchange(*_: Any) -> bytes:
            return await answer

        monkeypatch.setattr(folder, "_exchange", exchange)
        asking = folder.SubprocessFolder(tmp_path)
        asking._process = object()  # type: ignore[assignment]  # never asked
        task = asyncio.create_task(asking.reclaim(urgent=False))
        await asyncio.sleep(0.01)
        answer.set_result(b'{"task":"reclaim"}\n')
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
