"""Statements that libpq executes itself, on connections that are lost."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest
import uvloop

from headwater.store.postgres.execution import Statement, _Execution, execute, prepare
from tests.postgres import postgres
from tests.waiting import LIMIT_S, wait_until_async

SLEEP = Statement(b"sleep", "SELECT pg_sleep(600)")
ECHO = Statement(b"echo", "SELECT $1::bytea")


def test_a_lost_connection_leaves_the_next_socket_with_its_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq has closed the socket. The loop would not tell the connection that gets its number of what arrives."""

    async def main() -> None:
        url = postgres().clean_database()
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        await prepare(connection, [SLEEP])
        number, end = connection.pgconn.socket, _Execution._end
        with contextlib.ExitStack() as sockets:
            peers: list[socket.socket] = []

            def reopened(execution: _Execution, error: BaseException | None) -> None:
                end(execution, error)
                for one in socket.socketpair():
                    sockets.enter_context(one)
                    peers.append(one)
                assert peers[0].fileno() == number
                loop.add_reader(number, heard.set)

            monkeypatch.setattr(_Execution, "_end", reopened)
            running = asyncio.create_task(execute(connection, SLEEP, []))
            await asyncio.sleep(0)
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
                await other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
            with pytest.raises(psycopg.OperationalError):
                await running
            peers[1].send(b"x")
            async with asyncio.timeout(LIMIT_S):
                await heard.wait()
            loop.remove_reader(number)

    asyncio.run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("size", [100, 10_000_000])
def test_a_connection_that_was_lost_before_is_an_error(
    run: Callable[[Coroutine[Any, Any, None]], None], size: int
) -> None:
    """What PostgreSQL said before it closed the connection arrives first, and then nothing but an error of the socket.
    uvloop tells of that only once."""

    async def main() -> None:
        url = postgres().clean_database()
        connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        await prepare(connection, [ECHO])
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            await other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))

        closed = select.poll()
        closed.register(connection.pgconn.socket, select.POLLRDHUP)
        await wait_until_async(lambda: closed.poll(0), "the end of the connection")
        with pytest.raises(psycopg.OperationalError):
            await execute(connection, ECHO, [b"x" * size])

    run(main())
