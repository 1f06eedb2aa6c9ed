"""Who is told of the durable changes of streams."""

from __future__ import annotations

import asyncio

from headwater.engine import Engine
from headwater.engine.messages import News
from headwater.log.commands import Append, Create, Delete
from headwater.store.memory import MemoryStore


class Noting:
    """A watch that notes what it is told, and fails for one path."""

    version = 1

    def __init__(self) -> None:
        self.notes: list[tuple[str, News]] = []

    def note(self, path: str, news: News) -> bool:
        self.notes.append((path, news))
        if path == "bad":
            raise RuntimeError("a fault of the watch")
        return path == "watched"


def test_a_watch_is_told_once_of_streams_without_interest_and_its_faults_stop_nobody() -> None:
    async def test() -> None:
        engine, watch = Engine(MemoryStore()), Noting()
        await engine.start()
        engine.watch(watch)
        for path in ("watched", "bad", "other"):
            await engine.execute(Create(path=path, now_ms=1, content_type="text/plain"))
            for _ in range(2):
                await engine.execute(Append(path, 2, b"x", "text/plain"))
        await engine.execute(Delete("watched", 3))
        appended = [path for path, news in watch.notes if news is News.APPENDED]
        assert appended == ["watched", "watched", "bad", "bad"]  # of "other" only that it was created
        assert watch.notes[-1] == ("watched", News.DELETED)
        watch.version += 1  # there may be an interest in more paths
        await engine.execute(Append("other", 4, b"x", "text/plain"))
        assert watch.notes[-1] == ("other", News.APPENDED)
        await engine.stop()

    asyncio.run(test())
