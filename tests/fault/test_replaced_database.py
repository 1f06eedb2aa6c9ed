"""Another database takes the place of the one that servers use, and lacks the last transactions: an asynchronous
standby was promoted, or a backup restored. A server that goes on has newer states in memory than the database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest

from headwater.engine import Engine
from headwater.engine.follower import Extent, Pulled
from headwater.engine.messages import Read, ReadReply
from headwater.errors import HeadwaterError, OffsetLostError, StreamNotFoundError, UnavailableError
from headwater.limits import LARGE_READ_BYTES
from headwater.log.commands import Append, Command, Create, Reply, WriteDocument, WriteDocuments
from headwater.log.offsets import Offset
from headwater.store.postgres.opening import open_store
from tests.postgres import postgres
from tests.waiting import wait_until, wait_until_async


@dataclass
class Replaced:
    """Two servers over a database. The one that goes on has read what the other has written and is lost."""

    stays: Engine
    loses: Engine
    url: str
    failures: list[BaseException] = field(default_factory=list)

    def copy(self) -> None:
        """Keep the database as it is now."""
        with _alone(self.url) as (execute, name):
            execute(f"CREATE DATABASE {name}_then TEMPLATE {name}")

    def replace(self) -> None:
        """Let the copy take the place of the database."""
        with _alone(self.url) as (execute, name):
            execute(f"ALTER DATABASE {name} RENAME TO {name}_lost")
            execute(f"ALTER DATABASE {name}_then RENAME TO {name}")


@contextlib.contextmanager
def _alone(url: str) -> Iterator[tuple[Callable[[str], bool], str]]:
    """Nobody else uses the database meanwhile. PostgreSQL lists a session only after it has let it in: one that was
    about to connect is not among those that are ended, so the statements are repeated."""
    name = url.rpartition("/")[2]
    with psycopg.connect(postgres().url("postgres"), autocommit=True) as connection:

        def executed(statement: str) -> bool:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
            try:
                connection.execute(statement)
            except psycopg.errors.ObjectInUse:
                return False
            return True

        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        yield lambda statement: wait_until(lambda: executed(statement), statement), name
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@contextlib.asynccontextmanager
async def two_servers() -> AsyncIterator[Replaced]:
    url = postgres().new_database()
    failures: list[BaseException] = []
    stays = Engine(await open_store(url), fatal=failures.append)
    loses = Engine(await open_store(url), fatal=lambda _: None)
    await stays.start()
    await loses.start()
    try:
        yield Replaced(stays, loses, url, failures)
    finally:
        await stays.stop()
        await loses.stop()
    assert not failures


async def repeated(attempt: Callable[[], Awaitable[Reply]]) -> Reply:
    """Repeat what gets 503, as clients do."""
    answers: list[Reply] = []

    async def answered() -> bool:
        with contextlib.suppress(UnavailableError):
            answers.append(await attempt())
        return bool(answers)

    await wait_until_async(answered)
    return answers[0]


async def run(engine: Engine, make: Callable[[], Command]) -> Reply:
    return await repeated(lambda: engine.execute(make()))


def creation(engine: Engine, path: str, body: bytes = b"") -> Create:
    return Create(path=path, now_ms=engine.now_ms(), content_type="text/plain", body=body)


async def append(engine: Engine, path: str, body: bytes) -> Reply:
    return await run(engine, lambda: Append(path, engine.now_ms(), body, "text/plain"))


async def read(engine: Engine, path: str, offset: Offset | None, wait_s: float = 0.0) -> ReadReply:
    replies: list[ReadReply] = []

    async def answered() -> bool:
        with contextlib.suppress(UnavailableError):
            replies.append(await engine.read(Read(path, offset, bytes_max=1 << 20, wait_s=wait_s)))
        return bool(replies)

    await wait_until_async(answered)
    return replies[0]


def end_of(reply: ReadReply) -> Offset:
    return reply.stream.offset(reply.next)


BEGINNING = Offset(0, 0)


def test_a_server_that_goes_on_shows_nothing_that_is_lost() -> None:
    async def main() -> None:
        async with two_servers() as servers:
            stays, loses = servers.stays, servers.loses
            await run(stays, lambda: creation(stays, "a", b"kept;"))
            kept = end_of(await read(stays, "a", BEGINNING))
            await asyncio.to_thread(servers.copy)
            await append(loses, "a", b"lost;")
            await run(loses, lambda: creation(loses, "b", b"lost"))
            lost = end_of(await read(stays, "a", BEGINNING))
            assert (await read(stays, "b", BEGINNING)).data == b"lost"
            assert lost.position == 10
            waiting = asyncio.ensure_future(stays.read(Read("a", lost, wait_s=600)))
            following = Pulled(stays, "test", await stays.info("a"), 10, extent=Extent.STREAM)
            following.follower.open()
            following_next = asyncio.ensure_future(following.next())
            await asyncio.to_thread(servers.replace)

            with pytest.raises(UnavailableError):  # nobody asks anything: the server finds out by itself
                await waiting
            with pytest.raises(UnavailableError):
                await following_next
            with pytest.raises(OffsetLostError):
                await read(stays, "a", lost)
            assert (await read(stays, "a", BEGINNING)).data == b"kept;"
            with pytest.raises(StreamNotFoundError):
                await read(stays, "b", BEGINNING)

            # Other bytes get the positions of those that are lost, and other offsets.
            await append(stays, "a", b"else;")
            with pytest.raises(OffsetLostError):
                await read(stays, "a", lost)
            again = await read(stays, "a", kept)
            assert again.data == b"else;"
            assert end_of(again).position == lost.position
            assert end_of(again).id == stays.timeline > lost.id
            await run(stays, lambda: creation(stays, "b"))
            assert (await stays.info("b")).id > stays.timeline
            assert stays.report().subscribers == {"test": 0}

    asyncio.run(main())


def test_bytes_that_were_read_before_are_not_served_again() -> None:
    """Those of live readers are kept in memory, and large ones while somebody has them."""
    size = 2 * LARGE_READ_BYTES

    async def main() -> None:
        async with two_servers() as servers:
            stays, loses = servers.stays, servers.loses
            for path in ("small", "large"):
                await run(stays, lambda path=path: creation(stays, path))  # type: ignore[misc]
            await asyncio.to_thread(servers.copy)
            await append(loses, "small", b"lost;")
            await append(loses, "large", b"-" * size)
            small = stays.slices.of(await read(stays, "small", BEGINNING))
            large = await stays.read(Read("large", BEGINNING, bytes_max=1))
            assert (small.data, large.data) == (b"lost;", b"-" * size)
            await asyncio.to_thread(servers.replace)
            await append(stays, "small", b"else;")
            await append(stays, "large", b"+" * size)
            assert stays.slices.of(await read(stays, "small", BEGINNING)).data == b"else;"
            assert (await stays.read(Read("large", BEGINNING, bytes_max=1))).data == b"+" * size

    asyncio.run(main())


def test_what_was_decided_before_is_refused_and_then_decided_on_what_is_there() -> None:
    async def main() -> None:
        async with two_servers() as servers:
            stays, loses = servers.stays, servers.loses
            await run(stays, lambda: creation(stays, "a", b"kept;"))
            await asyncio.to_thread(servers.copy)
            await append(loses, "a", b"lost;")
            document = WriteDocument("job", b"lost")
            await run(loses, lambda: WriteDocuments((document,)))
            assert (await stays.document("job")) is not None
            assert (await read(stays, "a", BEGINNING)).data == b"kept;lost;"
            await asyncio.to_thread(servers.replace)

            answers: list[Reply | HeadwaterError] = []
            for number in range(20):  # of one batch, decided on the lost bytes, and behind it
                stays.submit(Append("a", stays.now_ms(), b"%d;" % number, "text/plain"), answers.append)
                await asyncio.sleep(0)
            await wait_until_async(lambda: len(answers) == 20)
            assert all(isinstance(answer, UnavailableError) for answer in answers), answers
            assert (await read(stays, "a", BEGINNING)).data == b"kept;"
            assert await stays.document("job") is None
            await append(stays, "a", b"else;")
            assert (await read(stays, "a", BEGINNING)).data == b"kept;else;"

    asyncio.run(main())
