"""A batch that is sent before the answer to the one before it, on whose states it was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from headwater.log.state import StreamState
from headwater.store.contract import Commit, NotStoredError, OutdatedError
from headwater.store.postgres.store import PostgresStore
from headwater.store.postgres.writing import UNKNOWN
from tests.postgres import postgres
from tests.unit.store.postgres.servers import append, commit, creation, loaded, opened, text
from tests.waiting import wait_until_async


def begin(store: PostgresStore, *batch: Commit) -> asyncio.Future[None]:
    """Commit a batch without waiting for its end."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        ended.set_exception(error) if error else ended.set_result(None)

    store.commit(batch, done)
    return ended


async def outcomes(*ended: asyncio.Future[None]) -> list[BaseException | None]:
    return await asyncio.gather(*ended, return_exceptions=True)


def last_batch(url: str, store: PostgresStore) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT batch FROM headwater.servers WHERE id = %s", (store.server,)).fetchone()
    assert row is not None
    return int(row[0])


def test_both_are_stored() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            a = await loaded(store, "a")
            ended = [begin(store, append(a, b"%d;" % number)) for number in range(2)]
            new = begin(store, creation(2, "b"))
            assert await outcomes(*ended, new) == [None, None, None]
            assert await text(store, 1) == b"0;1;"
            assert last_batch(url, store) == 4

    asyncio.run(main())


@pytest.mark.parametrize("only_appends", [True, False])
def test_a_conflict_in_the_first_one_refuses_all_of_the_second_one(*, only_appends: bool) -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (store, other):
            await commit(store, creation(1, "a"), creation(2, "b"))
            a, b = await loaded(store, "a"), await loaded(store, "b")
            await commit(other, append(await loaded(other, "a"), b"other"))
            first = begin(store, append(a, b"x"), append(b, b"y"))
            second = begin(store, append(b, b"z"), *([] if only_appends else [creation(3, "c")]))
            conflict, refused = await outcomes(first, second)
            assert isinstance(conflict, OutdatedError)
            assert conflict.records == [0]
            assert isinstance(refused, NotStoredError)
            assert await text(store, 2) == b"y"
            assert await store.load("c") is None
            await commit(store, append(await loaded(store, "b"), b"z"))
            assert await text(store, 2) == b"yz"

    asyncio.run(main())


def test_a_version_that_another_server_has_made_is_not_taken_for_that_of_the_batch_before() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database(), 2) as (store, other):
            await commit(store, creation(1, "a"))
            a = await loaded(store, "a")
            present = await loaded(other, "a")
            await commit(other, append(present, b"other"))
            first = begin(store, append(a, b"first"))
            assert a.version == present.version
            second = begin(store, append(a, b"x"))
            conflict, refused = await outcomes(first, second)
            assert isinstance(conflict, OutdatedError)
            assert isinstance(refused, NotStoredError)
            assert await text(store, 1) == b"other"

    asyncio.run(main())


class LostAnswers:
    """No answer of PostgreSQL is read, and then the connection is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: PostgresStore) -> None:
        self._patch = monkeypatch
        self._store = store
        connection, pipeline = store._parts.writer._connection, store._parts.writer._pipeline
        assert connection is not None
        assert pipeline is not None
        self.pid = connection.info.backend_pid
        monkeypatch.setattr(pipeline._socket, "watch", lambda: None)

    def lose(self) -> None:
        self._patch.undo()
        pipeline = self._store._parts.writer._pipeline
        assert pipeline is not None
        pipeline.close(psycopg.OperationalError("cut"))


Lock = Callable[[psycopg.Connection[Any], PostgresStore], object]


def _lock_server(connection: psycopg.Connection[Any], store: PostgresStore) -> object:
    return connection.execute("SELECT FROM headwater.servers WHERE id = %s FOR UPDATE", (store.server,))


def _lock_stream(connection: psycopg.Connection[Any], _: PostgresStore) -> object:
    return connection.execute("SELECT FROM headwater.streams WHERE id = 2 FOR UPDATE")


@pytest.mark.parametrize(("stored", "lock"), [(0, _lock_server), (1, _lock_stream), (2, None)])
def test_the_connection_is_lost_when_some_of_both_are_stored(
    stored: int, lock: Lock | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"), creation(2, "b"))
            a, b = await loaded(store, "a"), await loaded(store, "b")
            with psycopg.connect(url) as connection:
                if lock is not None:
                    lock(connection, store)
                answers = LostAnswers(monkeypatch, store)
                first, second = begin(store, append(a, b"x")), begin(store, append(b, b"y"))
                await _until_waiting(url, store, 1 + stored, is_locked=lock is not None)
                answers.lose()
                if not stored:  # the new connection waits for this lock too
                    await _until_ended(url, answers.pid)
                    connection.rollback()
                one, other = await outcomes(first, second)
                assert one is None, "it is sent again if it was not stored"
                assert (other is None) == (stored == 2)
                assert other is None or isinstance(other, NotStoredError)
            assert (await text(store, 1), await text(store, 2)) == (b"x", b"y" if stored == 2 else b"")
            await commit(store, append(await loaded(store, "b"), b"z"))
            assert (await text(store, 2))[-1:] == b"z"

    asyncio.run(main())


async def _until_waiting(url: str, store: PostgresStore, last: int, *, is_locked: bool) -> None:
    """Until a batch is the last one that was stored, and the next one waits for a lock."""

    def is_waiting() -> bool:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
        return row is not None and bool(row[0]) == is_locked and last_batch(url, store) == last

    await wait_until_async(is_waiting)


async def _until_ended(url: str, pid: int) -> None:
    def is_ended() -> bool:
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchone() is None

    await wait_until_async(is_ended)


def test_the_second_one_is_outdated_in_part_when_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url, 2) as (store, other):
            await commit(store, creation(1, "a"), creation(2, "b"))
            a, b = await loaded(store, "a"), await loaded(store, "b")
            await commit(other, append(await loaded(other, "b"), b"other"))
            answers = LostAnswers(monkeypatch, store)
            first, second = begin(store, append(a, b"x")), begin(store, append(b, b"y"), append(a, b"z"))
            await _until_waiting(url, store, 3, is_locked=False)
            answers.lose()
            one, conflict = await outcomes(first, second)
            assert one is None
            assert isinstance(conflict, OutdatedError)
            assert conflict.records == [0]
            assert (await text(store, 1), await text(store, 2)) == (b"xz", b"other")

    asyncio.run(main())


def test_a_batch_with_locks_is_alone() -> None:
    async def main() -> None:
        async with opened(postgres().clean_database()) as (store,):
            await commit(store, creation(1, "a"), creation(2, "b"))
            a, b = (await store.locked([1]))[1], await loaded(store, "b")
            assert isinstance(a, StreamState)
            ended = [begin(store, append(b, b"1")), begin(store, append(a, b"2")), begin(store, append(b, b"3"))]
            assert await outcomes(*ended) == [None, None, None]
            assert (await text(store, 1), await text(store, 2)) == (b"2", b"13")

    asyncio.run(main())


def test_both_are_given_up() -> None:
    async def main() -> None:
        url = postgres().clean_database()
        async with opened(url) as (store,):
            await commit(store, creation(1, "a"))
            a = await loaded(store, "a")
            with psycopg.connect(url) as connection:
                _lock_server(connection, store)
                ended = [begin(store, append(a, b"x")), begin(store, append(a, b"y"))]
                await _until_waiting(url, store, 1, is_locked=True)
                store.give_up()
                for outcome in await outcomes(*ended):
                    assert isinstance(outcome, ConnectionError)
                    assert str(outcome) == UNKNOWN

    asyncio.run(main())
