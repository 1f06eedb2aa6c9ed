"""What a server learns of the changes of others, told and asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from headwater import limits
from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.freshness import Freshness
from headwater.engine.live import LiveReaders
from headwater.engine.messages import News
from headwater.engine.watching import Watcher
from headwater.engine.writer import Writer
from headwater.log.state import StreamState
from headwater.store.contract import Moved
from tests import virtual_time
from tests.unit.engine.shared_store import OtherServers, loaded, stream_state, watched

POLL_S = limits.WATCH_POLL_MS / 1000


class Interest:
    """A watch of paths; version 0: nobody is interested."""

    def __init__(self) -> None:
        self.version = 0


class Told:
    """What a writer is told."""

    def __init__(self) -> None:
        self.watch = Interest()
        self.news: list[tuple[str, News]] = []
        self.renewed: list[LoadedStream] = []
        self.states: list[StreamState] = []
        self.compactable: object = None

    def tell_watch(self, path: str, news: News) -> None:
        self.news.append((path, news))

    def renew_if_watched(self, stream: LoadedStream, now_ms: int) -> None:
        self.renewed.append(stream)

    def note_compactable(self, state: StreamState) -> None:
        self.states.append(state)


class Server:
    def __init__(self, others: OtherServers) -> None:
        self.others = others
        self.catalogue = Catalogue()
        self.writer = Told()
        self.live: list[LoadedStream] = []
        freshness = Freshness(others.store, self.catalogue, self._settled, lambda _: None, lambda: 5)
        self.watcher = Watcher(
            others.store, self.catalogue, freshness, cast(LiveReaders, self), cast(Writer, self.writer), lambda: 5
        )

    async def _settled(self) -> None:
        raise AssertionError("nothing is written here")

    def watched(self) -> list[LoadedStream]:
        return self.live


def run(work: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(work)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_only_streams_with_live_readers_are_looked_at_when_something_is_told() -> None:
    async def main() -> None:
        server = Server(OtherServers(*(stream_state(key, f"{key}", b"x") for key in (1, 2, 3))))
        live, other = (loaded(server.catalogue, stream_state(key, f"{key}")) for key in (1, 2))
        reader = watched(live)
        await server.watcher.start()
        request_count = len(server.others.asked)
        server.others.told([Moved(key, f"{key}", 2) for key in (1, 1, 2, 3)])
        await turns()
        assert reader.tails == [1]
        assert other.tail == 0
        assert server.others.asked[request_count:] == [("changed", {1: 1}), ("load_id", 1)]
        await server.watcher.stop()

    run(main())


def test_what_is_told_while_a_query_runs_is_looked_at_again() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"x")))
        reader = watched(loaded(server.catalogue, stream_state(1, "a")))
        await server.watcher.start()
        server.others.answering.clear()
        server.others.told([Moved(1, "a", 2)])
        await turns()
        server.others.put(stream_state(1, "a", b"xyz"))
        server.others.told([Moved(1, "a", 4)])
        await turns()
        server.others.answering.set()
        await turns()
        assert reader.tails[-1] == 3
        await server.watcher.stop()

    run(main())


def test_a_watch_of_paths_is_told_what_others_have_done() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        server.watcher.moved([Moved(1, "a", 2)])
        assert not server.writer.news  # nobody is interested
        server.writer.watch.version = 1
        server.watcher.moved([Moved(1, "a", 2), Moved(2, "b", 0)])
        assert server.writer.news == [("a", News.CREATED), ("a", News.APPENDED), ("b", News.DELETED)]

    run(main())


def test_each_second_the_streams_with_live_readers_are_compared_in_one_query() -> None:
    """An announcement may be lost."""

    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a"), stream_state(2, "b")))
        server.live = [loaded(server.catalogue, stream_state(key, path)) for key, path in ((1, "a"), (2, "b"))]
        readers = [watched(stream) for stream in server.live]
        await server.watcher.start()
        await asyncio.sleep(POLL_S * 1.5)
        assert ("changed", {1: 1, 2: 1}) in server.others.asked
        assert server.writer.renewed == server.live
        server.others.put(stream_state(2, "b", b"lost"))
        await asyncio.sleep(POLL_S)
        assert [reader.tails for reader in readers] == [[], [4]]
        await server.watcher.stop()
        request_count = len(server.others.asked)
        await asyncio.sleep(3 * POLL_S)
        assert len(server.others.asked) == request_count

    run(main())


def test_all_that_has_moved_is_asked_page_by_page_if_somebody_is_interested() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        server.others.moves = [[Moved(1, "a", 0)], [Moved(2, "b", 0)], []]
        await server.watcher.start()
        await asyncio.sleep(POLL_S * 1.5)
        assert not server.writer.news
        assert server.others.asked[-1] == ("moved_since", "")  # nobody is: it only goes on from here
        server.writer.watch.version = 1
        await asyncio.sleep(POLL_S)
        assert server.writer.news == [("a", News.DELETED), ("b", News.DELETED)]
        await server.watcher.stop()

    run(main())


def test_streams_that_may_be_compacted_are_loaded_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCH_LOADS_MAX", 2)

    async def main() -> None:
        server = Server(OtherServers(*(stream_state(key, f"{key}") for key in (1, 2, 3))))
        server.writer.compactable = server
        await server.watcher.start()
        server.watcher.moved([Moved(1, "1", 1), Moved(2, "2", 1), Moved(3, "3", 1), Moved(4, "4", 0)])
        await asyncio.sleep(POLL_S * 1.5)
        assert [state.id for state in server.writer.states] == [1, 2]
        await asyncio.sleep(POLL_S)
        assert [state.id for state in server.writer.states] == [1, 2, 3]
        await server.watcher.stop()

    run(main())


def test_a_database_that_is_away_is_said_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a")))
        server.live = [loaded(server.catalogue, stream_state(1, "a"))]
        reader = watched(server.live[0])
        await server.watcher.start()
        server.others.is_lost = True
        server.others.told([Moved(1, "a", 2)])
        await asyncio.sleep(POLL_S * 4.5)
        server.others.put(stream_state(1, "a", b"x"))
        server.others.is_lost = False
        await asyncio.sleep(POLL_S)
        assert reader.tails == [1]
        await server.watcher.stop()

    with caplog.at_level(logging.WARNING, "headwater.engine"):
        run(main())
    assert [record.message for record in caplog.records if "not available" in record.message] == [
        "the database is not available, changes by other servers are not seen: there is no database"
    ]


def test_another_failure_of_a_poll_is_logged_and_the_next_one_comes(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a")))
        await server.watcher.start()

        def fail() -> list[LoadedStream]:
            raise ValueError("a bug")

        server.watched = fail  # type: ignore[method-assign]
        await asyncio.sleep(POLL_S * 2.5)
        del server.watched
        request_count = len(server.others.asked)
        await asyncio.sleep(POLL_S)
        assert len(server.others.asked) > request_count
        await server.watcher.stop()

    run(main())
    assert sum("failed to look for changes" in record.message for record in caplog.records) == 2
