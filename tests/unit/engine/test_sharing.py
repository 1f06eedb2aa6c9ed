"""What was decided on outdated states is taken back and decided again on the present ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headwater import limits
from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.committer import Answer, Answered, Committer, PendingRecord
from headwater.engine.readings import HeldError
from headwater.engine.sharing import Sharing
from headwater.errors import StoppingError, StreamNotFoundError, UnavailableError
from headwater.log.commands import Append, Command, Reply
from headwater.log.events import Appended, Deleted
from headwater.log.state import Document
from headwater.store.contract import DocumentKey, Key
from tests import virtual_time
from tests.unit.engine.shared_store import OtherServers, loaded, stream_state, watched


class Server:
    """The states of a server, and what it decides again."""

    def __init__(self, others: OtherServers) -> None:
        self.others = others
        self.catalogue = Catalogue()
        self.decided: list[Command] = []
        self.renewed: list[LoadedStream] = []
        self.failures: list[BaseException] = []
        self.committer = Committer(
            others.store, backlog_bytes_max=1 << 20, durable=lambda _: None, failed=lambda _, error: None
        )
        self.sharing = Sharing(
            others.store,
            self.catalogue,
            lambda: 5,
            self._decide,
            lambda stream, now_ms: self.renewed.append(stream),
            lambda stream: None,
            self.failures.append,
            self.committer,
        )

    def _decide(self, command: Command, answered: Answered) -> None:
        self.decided.append(command)
        self.add(command, answered)

    def add(self, command: Command, answered: Answered | None = None, stream_id: int = 1) -> PendingRecord:
        """Accept an append to a stream, decided on what is in memory."""
        assert isinstance(command, Append)
        stream = self.catalogue.by_id(stream_id)
        assert stream is not None
        expects: dict[Key, int] = {stream_id: stream.state.version}
        event = Appended(stream_id, stream.state.tail, 3, command.body)
        self.catalogue.apply(event)
        record = PendingRecord((event,), (stream.state,), expects, (stream,), Reply(), answered, command)
        self.committer.add(record)
        return record

    def take_back(self, record: PendingRecord, *, is_locking: bool = True) -> None:
        """Another server was faster."""
        self.committer.withdraw()
        assert record.command is not None
        assert record.answered is not None
        self.sharing.restore([record], [(record.command, record.answered)], [], is_locking=is_locking)


def run(work: Coroutine[Any, Any, None]) -> None:
    virtual_time.run(work)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def command(body: bytes = b"own") -> Append:
    return Append("a", 3, body, "text/plain")


def ignore(answer: Answer) -> None:
    """Nobody waits for it."""


def test_what_was_outdated_is_decided_again_on_the_present_state_with_locks() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"others")))
        stream = loaded(server.catalogue, stream_state(1, "a"))
        reader = watched(stream)
        own = command()
        server.take_back(server.add(own, ignore))
        assert server.sharing.is_held(stream)
        with pytest.raises(HeldError):
            server.sharing.readings().at("a")
        await turns()
        assert server.others.asked == [("locked", {1})]
        assert server.decided == [own]
        assert not server.sharing.is_held(stream)
        assert (stream.tail, stream.state.tail) == (6, 9)  # readers see what others have stored, and only that
        assert reader.tails == [6]
        [[commit]] = server.others.commits
        assert commit.expects == {1: stream.state.version - 1}

    run(main())


def test_nothing_is_committed_while_locks_are_requested_and_then_what_was_outdated_comes_first() -> None:
    """A server that waits for others with locks could wait for ever."""

    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"others"), stream_state(2, "b")))
        for stream_id, path in ((1, "a"), (2, "b")):
            loaded(server.catalogue, stream_state(stream_id, path))
        server.others.answering.clear()
        server.take_back(server.add(command(), ignore))
        server.add(command(b"other stream"), stream_id=2)
        await turns()
        assert not server.others.commits
        server.others.answering.set()
        await turns()
        assert [[list(one.expects or ()) for one in batch] for batch in server.others.commits] == [[[1]], [[2]]]

    run(main())


def test_commands_that_come_meanwhile_are_decided_afterwards_in_their_order() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"others")))
        loaded(server.catalogue, stream_state(1, "a"))
        first, second = command(b"1"), command(b"2")
        server.take_back(server.add(first, ignore))
        with pytest.raises(HeldError) as held:
            server.sharing.readings().at("a")
        held.value.restoration.add(second, ignore)
        await turns()
        assert server.decided == [first, second]

    run(main())


@pytest.mark.parametrize("is_locking", [True, False])
def test_writers_get_the_error_of_a_database_that_is_away_and_the_states_come_back_with_it(is_locking: bool) -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"others"), stream_state(2, "b")))
        stream = loaded(server.catalogue, stream_state(1, "a"))
        loaded(server.catalogue, stream_state(2, "b"))
        server.others.is_lost = True
        answers: list[Answer] = []
        server.take_back(server.add(command(), answers.append), is_locking=is_locking)
        await turns()
        with pytest.raises(HeldError) as held:
            server.sharing.readings().at("a")
        held.value.restoration.add(command(), answers.append)
        assert [type(answer) for answer in answers] == [UnavailableError] * 2
        server.add(command(b"other stream"), stream_id=2)
        await turns()
        assert len(server.others.commits) == 1  # other streams do not wait
        await asyncio.sleep(4.5 * limits.UNAVAILABLE_RETRY_S)
        assert server.sharing.is_held(stream)
        server.others.is_lost = False
        await server.sharing.settled()
        assert not server.sharing.is_held(stream)
        assert (stream.tail, stream.pending, server.decided) == (6, 0, [])

    run(main())


def test_a_stream_that_others_have_deleted_is_gone_afterwards() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        stream = loaded(server.catalogue, stream_state(1, "a"))
        server.add(command())
        server.committer.withdraw()
        record = PendingRecord((Appended(1, 0, 3, b"x"),), (stream.state,), {1: 1}, (stream,), Reply(), None)
        server.sharing.restore([record], [], [])
        await turns()
        assert stream.deleted is StreamNotFoundError
        assert server.catalogue.visible("a") is None

    run(main())


def test_a_deletion_that_others_have_prevented_is_taken_back() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"x")))
        stream = loaded(server.catalogue, stream_state(1, "a"))
        server.catalogue.apply(Deleted(1))
        record = PendingRecord((Deleted(1),), (stream.state,), {1: 1, "a": 1}, (stream,), Reply(), None)
        server.sharing.restore([record], [], [])
        await turns()
        assert server.catalogue.newest("a") is stream
        assert (stream.tail, stream.deleted) == (1, None)

    run(main())


def test_documents_and_other_keys_are_read_again_and_streams_renewed() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a"), stream_state(2, "b", b"x")))
        renewed, other = (loaded(server.catalogue, stream_state(key, path)) for key, path in ((1, "a"), (2, "b")))
        server.catalogue.add_document("d", None)
        server.others.stored_documents["d"] = Document("d", b"1")
        server.sharing.restore([], [], [renewed], [DocumentKey("d"), 2], is_locking=True)
        await turns()
        document = server.catalogue.loaded_document("d")
        assert document is not None
        assert (document.newest, other.tail) == (Document("d", b"1"), 1)
        assert server.renewed == [renewed]

    run(main())


def test_another_failure_stops_the_server_and_refuses_what_waits() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a")))
        loaded(server.catalogue, stream_state(1, "a"))

        async def locked(keys: object) -> Any:
            raise ValueError("a row is damaged")

        server.others.locked = locked  # type: ignore[method-assign]
        answers: list[Answer] = []
        server.take_back(server.add(command(), answers.append))
        await turns()
        assert [str(failure) for failure in server.failures] == ["a row is damaged"]
        assert [type(answer) for answer in answers] == [UnavailableError]
        assert not server.decided

    run(main())


def test_nothing_is_restored_from_a_database_that_was_replaced() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a", b"of another database"), stream_state(2, "b")))
        for stream_id, path in ((1, "a"), (2, "b")):
            loaded(server.catalogue, stream_state(stream_id, path))
        stream = server.catalogue.visible("a")
        assert stream is not None
        server.others.answering.clear()
        answers: list[Answer] = []
        server.take_back(server.add(command(), answers.append))
        await turns()
        error = UnavailableError("replaced")
        server.sharing.give_up(error)
        server.others.answering.set()
        server.add(command(b"other stream"), stream_id=2)
        await turns()
        assert answers == [error]
        assert (server.decided, stream.tail) == ([], 0)
        assert len(server.others.commits) == 1  # the committer goes on

    run(main())


def test_who_waits_for_a_batch_goes_on_with_its_end_or_when_the_server_stops() -> None:
    async def main() -> None:
        server = Server(OtherServers())
        first = asyncio.create_task(server.sharing.settled())
        await turns()
        assert not first.done()
        server.sharing.settle()
        await first
        last = asyncio.create_task(server.sharing.settled())
        await turns()
        await server.sharing.stop()
        await last
        with pytest.raises(StoppingError):
            await server.sharing.settled()

    run(main())


def test_a_stop_does_not_wait_for_a_database_that_is_away() -> None:
    async def main() -> None:
        server = Server(OtherServers(stream_state(1, "a")))
        loaded(server.catalogue, stream_state(1, "a"))
        server.others.is_lost = True
        answers: list[Answer] = []
        server.take_back(server.add(command(), answers.append))
        async with asyncio.timeout(5 * limits.UNAVAILABLE_RETRY_S):
            await server.sharing.stop()
        assert [type(answer) for answer in answers] == [UnavailableError]

    run(main())
