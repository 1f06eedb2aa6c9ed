"""Statements that are sent without waiting for the answers to those before."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import psycopg
import pytest
import uvloop

from headwater.store.postgres.execution import Statement, prepare
from headwater.store.postgres.pipeline import WARNED, Pipeline
from tests.postgres import postgres
from tests.waiting import LIMIT_S, wait_until_async

SLEEP = Statement(b"sleep", "SELECT pg_sleep(600)")
ECHO = Statement(b"echo", "SELECT $1::bytea")
TABLE = "CREATE TEMPORARY TABLE unique_numbers (number text UNIQUE DEFERRABLE INITIALLY DEFERRED)"
INSERT = Statement(b"insert", "INSERT INTO unique_numbers VALUES ($1) RETURNING number")
WARN = Statement(b"warn", "SELECT pg_temp.warn()")
WARNING = "CREATE FUNCTION pg_temp.warn() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'x'; RETURN 1; END $$"

Run = Callable[[Coroutine[Any, Any, None]], None]


@contextlib.asynccontextmanager
async def pipeline(*statements: Statement, setup: str = "") -> AsyncIterator[tuple[Pipeline, Any]]:
    connection = await psycopg.AsyncConnection.connect(postgres().clean_database(), autocommit=True)
    notices: list[psycopg.errors.Diagnostic] = []
    connection.add_notice_handler(notices.append)
    if setup:
        await connection.execute(setup.encode())
    await prepare(connection, statements)
    line = Pipeline(connection, lambda: len(notices))
    try:
        yield line, connection
    finally:
        line.close(psycopg.OperationalError("the test ends"))
        await connection.close()


async def end(connection: Any) -> None:
    async with await psycopg.AsyncConnection.connect(connection.info.dsn, autocommit=True) as other:
        await other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("size", [1, 5_000_000])
def test_answers_come_in_order(run: Run, size: int) -> None:
    async def main() -> None:
        async with pipeline(ECHO) as (line, _):
            bodies = [bytes([number]) * size for number in range(5)]
            answers = [line.send(ECHO, [body]) for body in bodies]
            assert [(await answer).get_value(0, 0) for answer in answers] == bodies
            assert (await line.send(ECHO, [b"later"])).get_value(0, 0) == b"later"

    run(main())


def test_a_statement_that_fails_also_in_its_commit_leaves_the_others_alone() -> None:
    async def main() -> None:
        async with pipeline(INSERT, setup=TABLE) as (line, _):
            answers = [line.send(INSERT, [number]) for number in (b"1", b"1", b"2", b"\0", b"3")]
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
            assert isinstance(outcomes[1], psycopg.errors.UniqueViolation), "this is found by the commit"
            assert isinstance(outcomes[3], psycopg.errors.CharacterNotInRepertoire)
            assert [one.get_value(0, 0) for one in outcomes if not isinstance(one, BaseException)] == [b"1", b"2", b"3"]

    asyncio.run(main())


def test_a_warning_is_an_error_of_its_statement_only() -> None:
    async def main() -> None:
        async with pipeline(ECHO, WARN, setup=WARNING) as (line, _):
            before, warned, after = line.send(ECHO, [b"x"]), line.send(WARN, []), line.send(ECHO, [b"y"])
            assert (await before).get_value(0, 0) == b"x"
            with pytest.raises(psycopg.OperationalError, match=WARNED):
                await warned
            assert (await after).get_value(0, 0) == b"y"

    asyncio.run(main())


def test_there_is_a_time_limit_for_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with pipeline(ECHO, SLEEP) as (line, _):
            monkeypatch.setattr("headwater.limits.POSTGRES_ANSWER_S", -4.9)
            answers = [line.send(SLEEP, []), line.send(ECHO, [b"x"])]
            outcomes = await asyncio.gather(*answers, return_exceptions=True)
            assert [type(one) for one in outcomes] == [TimeoutError, TimeoutError]
            with pytest.raises(TimeoutError):
                await line.send(ECHO, [b"x"])

    asyncio.run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("size", [100, 10_000_000])
def test_a_connection_that_was_lost_before_is_an_error_of_all(run: Run, size: int) -> None:
    """What PostgreSQL said before it closed the connection arrives first, and then nothing but an error of the socket.
    uvloop tells of that only once."""

    async def main() -> None:
        async with pipeline(ECHO) as (line, connection):
            assert (await line.send(ECHO, [b"x"])).get_value(0, 0) == b"x"
            await end(connection)
            closed = select.poll()
            closed.register(connection.pgconn.socket, select.POLLRDHUP)
            await wait_until_async(lambda: closed.poll(0), "the end of the connection")
            answers = [line.send(ECHO, [b"x" * size]) for _ in range(2)]
            for answer in answers:
                with pytest.raises(psycopg.OperationalError):
                    await answer

    run(main())


def test_a_lost_connection_leaves_the_next_socket_with_its_number_alone() -> None:
    """libpq has closed the socket. The loop would not tell the connection that gets its number of what arrives."""

    async def main() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        async with pipeline(SLEEP) as (line, connection):
            number = connection.pgconn.socket
            answer = line.send(SLEEP, [])
            with contextlib.ExitStack() as sockets:
                peers: list[socket.socket] = []

                def reopened(_: object) -> None:
                    for one in socket.socketpair():
                        sockets.enter_context(one)
                        peers.append(one)
                    loop.add_reader(number, heard.set)

                answer.add_done_callback(reopened)
                await end(connection)
                with pytest.raises(psycopg.OperationalError):
                    await answer
                assert number in [one.fileno() for one in peers]
                own = next(one for one in peers if one.fileno() != number)
                line.close(psycopg.OperationalError("again"))
                own.send(b"x")
                async with asyncio.timeout(LIMIT_S):
                    await heard.wait()
                loop.remove_reader(number)

    asyncio.run(main())
