"""The folder and its worker: whoever waits for an answer can be cancelled at any moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headwater.store.embedded import folder


def test_a_cancellation_counts_when_the_answer_comes_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the background work of a server goes on after it was told to stop, and the server waits for it for ever."""

    async def run() -> None:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def exchange(*_: Any) -> bytes:
            return await answer

        monkeypatch.setattr(folder, "_exchange", exchange)
        asking = folder.SubprocessFolder(tmp_path)
        asking._process = object()  # type: ignore[assignment]  # never asked
        task = asyncio.create_task(asking.reclaim(1, urgent=False))
        await asyncio.sleep(0.01)
        answer.set_result(b"{}\n")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
