"""What readers see of a shared store is compared with the store before it is said."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headwater import limits
from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.freshness import Freshness, VersionChecks
from headwater.engine.messages import Ended
from headwater.errors import StreamNotFoundError, UnavailableError
from headwater.log.events import Appended, Deleted, DocumentWritten
from headwater.log.state import Document
from headwater.store.contract import DocumentKey, version_of
from tests import virtual_time
from tests.unit.engine.shared_store import OtherServers, created, loaded, stream_state, watched


class Server:
    """A server over what others have stored."""

    def __init__(self, others: OtherServers) -> None:
        self.others = others
        self.catalogue = Catalogue()
        self.settling: list[asyncio.Future[None]] = []
        self.refreshed: list[LoadedStream] = []
        self.freshness = Freshness(others.store, self.catalogue, self._settled, self.refreshed.append, lambda: 5)

    async def _settled(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.settling.append(future)
        await future

    def settle(self) -> None:
        settling, self.settling = self.settling, []
        for future in settling:
            future.set_result(None)

    def publish(self, stream: LoadedStream) -> None:
        """What this server has stored is durable."""
        state = stream.state
        stream.pending, stream.tail = 0, state.tail
        self.others.put(state.copy())
        self.catalogue.show(stream)


def run(work: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(work)


async def turns(count: int = 20) -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(count):
        await asyncio.sleep(0)


# Version checks


def test_the_checks_of_a_turn_are_one_query_and_none_joins_a_query_that_was_sent() -> None:
    async def main() -> None:
        others = OtherServers(stream_state(1, "a"), stream_state(2, "b", b"x"))
        checks = VersionChecks(others.store)
        others.answering.clear()
        first = [asyncio.create_task(checks.version(key, 1)) for key in (1, 2, 2)]
        await turns()
        others.put(stream_state(1, "a", b"xyz"))
        later = asyncio.create_task(checks.version(1, 1))
        await turns()
        assert others.asked == [("changed", {1: 1, 2: 1}), ("changed", {1: 1})]
        others.answering.set()
        assert await asyncio.gather(*first) == [1, 2, 2]
        assert await later == 4

    run(main())


def test_there_are_few_queries_at_a_time() -> None:
    async def main() -> None:
        others = OtherServers()
        checks = VersionChecks(others.store)
        others.answering.clear()
        waiting = []
        for key in range(limits.VERSION_QUERIES_MAX + 5):
            waiting.append(asyncio.create_task(checks.version(key, 3)))
            await turns()
        assert len(others.asked) == limits.VERSION_QUERIES_MAX
        others.answering.set()
        assert set(await asyncio.gather(*waiting)) == {0}
        assert len(others.asked) == limits.VERSION_QUERIES_MAX + 1  # those that had to wait are one query

    run(main())


def test_everybody_who_waits_for_a_query_gets_its_error_and_the_next_query_is_sent() -> None:
    async def main() -> None:
        others = OtherServers(stream_state(1, "a"))
        checks = VersionChecks(others.store)
        others.is_lost = True
        waiting = [asyncio.create_task(checks.version(key, 1)) for key in (1, 2)]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(answer) for answer in answers] == [UnavailableError] * 2
        others.is_lost = False
        assert await checks.version(1, 1) == 1

    run(main())


def test_a_check_that_is_cancelled_takes_no_other_with_it() -> None:
    async def main() -> None:
        others = OtherServers(stream_state(1, "a"))
        checks = VersionChecks(others.store)
        others.answering.clear()
        cancelled, other = (asyncio.create_task(checks.version(1, 1)) for _ in range(2))
        await turns()
        cancelled.cancel()
        others.answering.set()
        assert await other == 1

    run(main())


# Streams


def test_a_stream_that_others_have_changed_is_read_again_and_its_readers_are_told() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"xy")))
        stream = loaded(server.catalogue, stream_state(1, "a"))
        reader = watched(stream)
        await server.freshness.recheck(stream)
        assert (stream.tail, stream.state.version, reader.tails) == (2, 3, [2])
        assert server.refreshed == [stream]
        await server.freshness.recheck(stream)
        assert server.others.asked[-1] == ("changed", {1: 3})  # nothing is read that has not changed
        assert reader.tails == [2]

    run(main())


def test_a_stream_that_others_have_deleted_is_dropped_and_its_readers_end() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        stream = loaded(server.catalogue, stream_state(1, "a"))
        reader = watched(stream)
        await server.freshness.recheck(stream)
        assert stream.deleted is StreamNotFoundError
        assert reader.reasons == [Ended.DELETED]
        assert server.catalogue.visible("a") is None
        request_count = len(server.others.asked)
        await server.freshness.recheck(stream)
        assert len(server.others.asked) == request_count

    run(main())


def test_a_stream_with_events_that_are_not_durable_is_left_to_their_batch() -> None:
    """The check may see what this server has just stored, and counts nothing twice."""

    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"x")))
        stream = loaded(server.catalogue, stream_state(1, "a"))
        server.catalogue.apply(Appended(1, 0, 2, b"x"))
        checking = asyncio.create_task(server.freshness.recheck(stream))
        await turns()
        assert not checking.done()
        assert (stream.tail, stream.pending) == (0, 1)
        server.publish(stream)
        server.settle()
        await checking
        assert (stream.tail, server.others.asked) == (1, [("changed", {1: 1})])

    run(main())


def test_an_older_state_replaces_nothing() -> None:
    server = Server(OtherServers())
    stream = loaded(server.catalogue, stream_state(1, "a", b"xyz"))
    server.freshness.take(stream, stream_state(1, "a", b"x"))
    assert (stream.tail, server.refreshed) == (3, [])
    server.catalogue.apply(Appended(1, 3, 2, b"!"))
    server.freshness.take(stream, stream_state(1, "a", b"xyz---"))  # its batch brings the present state
    assert (stream.tail, stream.pending) == (3, 1)


# Paths


def test_what_is_not_in_memory_is_loaded() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"x")))
        stream = await server.freshness.at("a")
        assert stream is not None
        assert (stream.id, stream.tail) == (1, 1)
        assert await server.freshness.at("absent") is None
        assert server.others.asked == [("load", "a"), ("load", "absent")]

    run(main())


def test_another_stream_at_the_path_is_found() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(2, "a", b"new")))
        loaded(server.catalogue, stream_state(1, "a"))
        stream = await server.freshness.at("a")
        assert stream is not None
        assert stream.id == 2

    run(main())


def test_a_stream_that_this_server_creates_is_there_when_its_batch_is_stored() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        stream = server.catalogue.apply(created(1, "a"))
        assert isinstance(stream, LoadedStream)
        assert await server.freshness.at("a") is None  # it is not stored yet
        server.others.put(stream_state(1, "a"))  # it is, but this server does not know it
        looking = asyncio.create_task(server.freshness.at("a"))
        await turns()
        assert not looking.done()
        server.publish(stream)
        server.settle()
        assert await looking is stream

    run(main())


def test_what_was_loaded_while_another_database_took_over_is_loaded_again() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"lost")))
        server.others.answering.clear()
        looking = asyncio.create_task(server.freshness.at("a"))
        await turns()
        server.others.put(stream_state(1, "a"))
        server.catalogue.timeline = 9
        server.others.answering.set()
        stream = await looking
        assert stream is not None
        assert stream.tail == 0

    run(main())


# Documents


def test_a_document_that_others_have_written_is_read_again() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        assert await server.freshness.document("d") is None
        server.others.stored_documents["d"] = new = Document("d", b"1")
        assert await server.freshness.document("d") == new
        request_count = len(server.others.asked)
        assert await server.freshness.document("d") == new
        assert server.others.asked[request_count:] == [("changed", {DocumentKey("d"): version_of(new)})]

    run(main())


def test_a_document_of_which_a_write_is_not_durable_is_read_but_not_replaced() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        server.catalogue.add_document("d", None)
        server.catalogue.apply(DocumentWritten("d", b"own"))
        server.others.stored_documents["d"] = Document("d", b"other")
        assert await server.freshness.document("d") == Document("d", b"other")
        document = server.catalogue.loaded_document("d")
        assert document is not None
        assert document.newest == Document("d", b"own")

    run(main())


def test_a_document_of_a_database_that_was_replaced_meanwhile_is_not_said() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        server.others.answering.clear()
        asking = asyncio.create_task(server.freshness.document("d"))
        await turns()
        server.catalogue.timeline = 9
        server.others.answering.set()
        with pytest.raises(UnavailableError, match="another database"):
            await asking

    run(main())


def test_of_many_states_those_in_memory_are_taken() -> None:
    server = Server(OtherServers())
    stream = loaded(server.catalogue, stream_state(1, "a"))
    gone = loaded(server.catalogue, stream_state(2, "gone"))
    leaving = loaded(server.catalogue, stream_state(3, "leaving"))
    server.catalogue.apply(Deleted(3))
    server.catalogue.add_document("d", None)
    written = Document("d", b"1")
    server.freshness.take_all(
        {
            1: stream_state(1, "a", b"x"),
            2: None,
            3: stream_state(3, "leaving", b"x"),
            4: stream_state(4, "unknown"),
            "path": stream_state(5, "path"),
            DocumentKey("d"): written,
            DocumentKey("unknown"): written,
        }
    )
    assert (stream.tail, gone.deleted, leaving.tail) == (1, StreamNotFoundError, 0)
    document = server.catalogue.loaded_document("d")
    assert document is not None
    assert document.durable == document.newest == written
    assert not server.catalogue.has(4)
    assert server.catalogue.loaded_document("unknown") is None
