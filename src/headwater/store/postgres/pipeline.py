"""Statements that are sent one after another, without waiting for the answers to those before (libpq's pipeline mode).
PostgreSQL begins with the next one as soon as it has committed the one before."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from headwater import limits
from headwater.store.postgres.execution import Statement, WatchedSocket, rows_of

WARNED = "PostgreSQL committed with a warning"


class Pipeline:
    """A connection for prepared statements that return rows, each in a transaction of its own. They are executed and
    answered in order. With the first error of the connection all of them fail."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], warnings: Callable[[], int]) -> None:
        """Nothing else can be executed on the connection from now on. `warnings` counts those of PostgreSQL: a
        statement with one fails as if the connection was lost."""
        self._pgconn = connection.pgconn
        self._pgconn.enter_pipeline_mode()
        self._socket = WatchedSocket(connection, self._receive, self.close)
        self._loop = asyncio.get_running_loop()
        self._answers: deque[asyncio.Future[PGresult]] = deque()  # of the statements that were sent
        self._result: PGresult | None = None  # of the first of them
        self._is_ended = False  # no more results of the first of them come
        self._limit: asyncio.TimerHandle | None = None  # of the first of them
        self._warnings = warnings
        self._warning_count = 0
        self._error: BaseException | None = None

    def send(self, statement: Statement, arguments: Sequence[bytes]) -> asyncio.Future[PGresult]:
        """Send a statement. Arguments and rows are in the binary format of PostgreSQL."""
        answer: asyncio.Future[PGresult] = self._loop.create_future()
        if self._error is not None:
            answer.set_exception(self._error)
            return answer
        self._answers.append(answer)
        if len(self._answers) == 1:
            self._warning_count = self._warnings()
            self._begin()
            self._socket.watch()
        try:
            formats = [Format.BINARY] * len(arguments)
            self._pgconn.send_query_prepared(statement.name, arguments, formats, Format.BINARY)
            self._pgconn.pipeline_sync()
        except psycopg.Error as error:
            self.close(error)
        else:
            self._socket.flush()
        return answer

    def close(self, error: BaseException) -> None:
        """Answer everything with an error. The connection is closed by its owner."""
        if self._error is not None:
            return
        self._error = error
        if self._limit is not None:
            self._limit.cancel()
        self._socket.close()
        answers, self._answers = self._answers, deque()
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever waits may have been cancelled

    def _begin(self) -> None:
        """Wait for the answer to the first statement."""
        self._result, self._is_ended = None, False
        lost = TimeoutError("there is no answer")
        self._limit = self._loop.call_later(limits.POSTGRES_ANSWER_S + 5, self.close, lost)

    def _receive(self) -> None:
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
            while self._answers and not pgconn.is_busy():
                self._take(pgconn.get_result())
        except psycopg.Error as error:
            self.close(error)
        else:
            if self._answers:
                self._socket.watch()
            else:
                self._socket.rest()

    def _take(self, result: PGresult | None) -> None:
        """Take what libpq returns for a statement: its result, None, the error of the commit with None if there is one,
        and a mark."""
        if result is None:
            if self._is_ended:
                raise psycopg.OperationalError("the connection ended without an answer")
            self._is_ended = True
        elif result.status != ExecStatus.PIPELINE_SYNC:
            self._result, self._is_ended = result, False
        else:
            self._answer()

    def _answer(self) -> None:
        answer, former_count = self._answers.popleft(), self._warning_count
        self._warning_count = self._warnings()
        if self._limit is not None:
            self._limit.cancel()
        if not answer.done():
            try:
                if self._warning_count != former_count:  # for example: stored, but not at the standby
                    raise psycopg.OperationalError(WARNED)
                answer.set_result(rows_of(self._result))
            except psycopg.Error as error:
                answer.set_exception(error)
        if self._answers:
            self._begin()
