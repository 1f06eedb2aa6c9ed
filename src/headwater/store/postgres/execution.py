"""Executions of prepared statements by libpq itself, for what is executed most often: by way of a cursor of psycopg
they take several times as much processor time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import errors
from psycopg.pq import Format
from psycopg.pq.abc import PGresult

from headwater import limits


class Statement(NamedTuple):
    """A statement that returns rows, and its name on each connection."""

    name: bytes
    text: str  # with $1, $2, …


async def prepare(connection: psycopg.AsyncConnection[Any], statements: Iterable[Statement]) -> None:
    for statement in statements:
        await connection.execute(b"PREPARE " + statement.name + b" AS " + statement.text.encode())


async def execute(
    connection: psycopg.AsyncConnection[Any], statement: Statement, arguments: Sequence[bytes]
) -> PGresult:
    """The rows of a prepared statement, on a connection on which nothing else runs. Arguments and rows are in the
    binary format of PostgreSQL."""
    return await _Execution(connection).result(statement, arguments)


class WatchedSocket:
    """The socket of a connection, for whoever lets libpq send and receive on it."""

    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        receive: Callable[[], None],
        fail: Callable[[psycopg.Error], None],
    ) -> None:
        """`receive` is called when there are bytes, after each `watch`, and `fail` if nothing can be sent."""
        self._pgconn = connection.pgconn
        # libpq closes the socket of a connection that is lost, and the next one that is opened gets its number. So the
        # loop watches a duplicate, which is ours until the end.
        self._number = os.dup(connection.pgconn.socket)
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._fail = fail

    def watch(self) -> None:
        """Wait for the next bytes. Each event is asked for by itself, because uvloop ends a watch with the first event
        after an error of the socket, when libpq may have read no more than what arrived before the error."""
        self._loop.remove_reader(self._number)
        self._loop.add_reader(self._number, self._receive)

    def rest(self) -> None:
        """Wait for nothing."""
        self._loop.remove_reader(self._number)

    def flush(self) -> None:
        """Send what the connection takes, and the rest later."""
        try:
            is_sent = not self._pgconn.flush()
        except psycopg.Error as error:
            self._fail(error)
            return
        self._loop.remove_writer(self._number)
        if not is_sent:
            self._loop.add_writer(self._number, self.flush)

    def close(self) -> None:
        self._loop.remove_reader(self._number)
        self._loop.remove_writer(self._number)
        os.close(self._number)


class _Execution:
    """One execution of a statement."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._pgconn = connection.pgconn
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._result: PGresult | None = None
        self._socket = WatchedSocket(connection, self._receive, self._end)

    async def result(self, statement: Statement, arguments: Sequence[bytes]) -> PGresult:
        formats = [Format.BINARY] * len(arguments)
        limit = asyncio.get_running_loop().call_later(
            limits.POSTGRES_ANSWER_S + 5, self._end, TimeoutError("there is no answer")
        )
        try:
            self._pgconn.send_query_prepared(statement.name, arguments, formats, Format.BINARY)
            self._socket.watch()
            self._socket.flush()
            await self._ended
        finally:
            limit.cancel()
            self._socket.close()
        return rows_of(self._result)

    def _receive(self) -> None:
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    self._end(None)
                    return
                self._result = result
            self._socket.watch()
        except psycopg.Error as error:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def rows_of(result: PGresult | None) -> PGresult:
    """A result if it has rows; otherwise the error is raised."""
    if result is None:
        raise psycopg.OperationalError("the connection ended without an answer")
    if result.error_message:
        raise errors.error_from_result(result)
    if not result.nfields:
        raise psycopg.InternalError("a statement that returns rows returned none")
    return result
