"""Connections to PostgreSQL: how they are opened and set up, a pool for reads, and what an error means.

A URL, a password file and environment variables mean what they mean to libpq. No message of this package has a
password: a URL that cannot be parsed is not shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

import psycopg
from psycopg import conninfo, pq
from psycopg.pq.abc import PGresult
from psycopg.rows import TupleRow

from headwater import limits
from headwater.backoff import Backoff
from headwater.errors import OptionError, UnavailableError
from headwater.store.contract import NoMemoryError, RefusedError
from headwater.store.postgres.arrays import register
from headwater.store.postgres.execution import Statement, execute, prepare

log = logging.getLogger("headwater.postgres")

T = TypeVar("T")
Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
Arguments: TypeAlias = tuple[Any, ...] | Mapping[str, Any]

RECONNECTING = Backoff(limits.POSTGRES_RECONNECT_S, limits.POSTGRES_RECONNECT_MAX_S, jitter=0.5)

# What libpq does for a connection unless the URL says something else. A server only writes, and a standby may become
# the primary, so of several hosts the one that accepts writes is used.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": int(limits.POSTGRES_CONNECT_S),
    "keepalives_idle": limits.POSTGRES_KEEPALIVE_S,
    "keepalives_interval": 2,
    "keepalives_count": limits.POSTGRES_KEEPALIVES,
    "tcp_user_timeout": int(1000 * (limits.POSTGRES_KEEPALIVE_S + 2 * limits.POSTGRES_KEEPALIVES)),
    "target_session_attrs": "read-write",
}
_SETTINGS = {
    "client_encoding": "UTF8",
    "jit": "off",
    "timezone": "UTC",
    "lock_timeout": "0",
    "statement_timeout": str(int(1000 * limits.POSTGRES_ANSWER_S)),
    "idle_in_transaction_session_timeout": str(int(1000 * limits.POSTGRES_IDLE_TRANSACTION_S)),
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
}

# For reads. A plan is made once, because it takes longer than most of these statements. Tables grow, so indexes are
# used however small they are now.
_PLANS = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}

_SECRETS = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
# By which SQLSTATE PostgreSQL says that a statement had no effect, because something is full.
_FULL = {"53100", "53400", "54000"}
_NO_MEMORY = {"53200"}
_TEMPORARY = re.compile(
    r"Connection refused|timeout expired|timed out|TimeoutError|starting up|shutting down|recovery|hot standby|"
    r"read.only|too many|resolve host"
)
# What a connection fails for until somebody changes it, as libpq and PostgreSQL say it.
_REMEDIES = tuple(
    (re.compile(cause), remedy)
    for cause, remedy in (
        (r'database ".*" does not exist', "Create it with CREATE DATABASE, or correct its name in the URL"),
        (r'role ".*" does not exist', "Create it with CREATE ROLE ... LOGIN, or correct the user in the URL"),
        (r"not permitted to log in", "Let it with ALTER ROLE ... LOGIN, or correct the user in the URL"),
        (r"permission denied for database", "Let it with GRANT CONNECT ON DATABASE, or correct the URL"),
        (r"authentication failed|no password supplied", "Correct the user, or the password: PGPASSWORD or a passfile"),
        (r"pg_hba\.conf", "Let this machine and user in with a line in pg_hba.conf"),
        (r"does not support SSL|SSL error|certificate|private key", "Correct sslmode and the files with certificates"),
        (r"invalid .* value|bad value for|definition of service", "Correct the URL"),
        (r"unrecognized configuration parameter", "Correct the options in the URL"),
    )
)
_AGAIN = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock timeout
_READ_ONLY = "25006"
_LOST = ("08", "57P", "25P03", "25P04")  # connection exceptions, shutdowns, time-outs of sessions
CANCELLED = "57014"  # a statement that took too long
TOO_LATE = "HW001"  # raised by `store_batch`


class PostgresDatabase:
    """Where the database is."""

    def __init__(self, url: str, name: str) -> None:
        """`name` identifies the server process in pg_stat_activity."""
        try:
            own = conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            raise OptionError(_invalid(url)) from None
        self.conninfo = conninfo.make_conninfo("", **(_DEFAULTS | {"application_name": name} | own))
        self.name = str(own.get("application_name", name))
        self.description = describe(url)
        self._no_connection = f"no connection to {self.description}: "

    async def connect_first(self, **settings: str) -> Connection:
        """`connect`, for a program that starts: OptionError if there is none as long as nobody changes something."""
        try:
            return await self.connect(**settings)
        except UnavailableError as error:
            remedy = _remedy(str(error).removeprefix(self._no_connection))
            if remedy is None:
                raise
            raise OptionError(f"{error}. {remedy}") from None

    async def connect(self, **settings: str) -> Connection:
        """A connection with our settings, and more of them. UnavailableError if there is none."""
        try:
            async with asyncio.timeout(4 * limits.POSTGRES_CONNECT_S):  # several hosts
                connection = await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True, prepare_threshold=1)
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise self._unreachable(error) from None
        try:
            register(connection.adapters)
            names, values = zip(*(_SETTINGS | settings).items(), strict=True)
            await connection.execute(
                "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s(name, value)",
                (list(names), list(values)),
            )
        except BaseException as error:
            await discard(connection)
            if isinstance(error, psycopg.Error):
                raise self._unreachable(error) from None
            raise
        return connection

    def _unreachable(self, error: BaseException) -> UnavailableError:
        return UnavailableError(f"{self._no_connection}{text_of(error)}", retry_after_s=limits.RETRY_AFTER_S)


def _invalid(url: str) -> str:
    query = url.partition("?")[2]
    names = {unquote(part.partition("=")[0]) for part in query.split("&") if part}
    unknown = sorted(names - {option.keyword.decode() for option in pq.Conninfo.get_defaults()})
    if unknown and "@" not in query and not names & _SECRETS:  # otherwise it may be a part of a password
        return f"the URL of the store has parameters that libpq does not know: {', '.join(unknown)}"
    return (
        "the URL of the store is not one that libpq understands; it is not shown here, because it may have a password. "
        "The form is postgresql://USER@HOST:PORT/DATABASE?NAME=VALUE, with special characters as %3D for ="
    )


def _remedy(failure: str) -> str | None:
    """What to do about a connection that failed; None if it may succeed later. libpq reports only a text, which is that
    of all hosts, and may be in the language of PostgreSQL."""
    if _TEMPORARY.search(failure):
        return None
    return next((remedy for cause, remedy in _REMEDIES if cause.search(failure)), None)


def describe(url: str) -> str:
    """Where a URL leads, for messages."""
    own = {name: value for name, value in conninfo.conninfo_to_dict(url).items() if name not in _SECRETS}
    return f"PostgreSQL ({conninfo.make_conninfo('', **own)})" if own else "PostgreSQL"


def text_of(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def is_lost(connection: Connection, error: BaseException) -> bool:
    """Whether a connection cannot be used any more, so that it is unknown what happened to its last statement. Also
    one to a database that became read-only, and one whose epoch has passed: a former connection of this server that had
    been lost while it took over may still have done so."""
    if not isinstance(error, psycopg.Error) or connection.closed or connection.broken:
        return True
    state = error.sqlstate
    return state is None or state in (_READ_ONLY, TOO_LATE) or state.startswith(_LOST)


def refusal(error: psycopg.Error) -> BaseException:
    """What an error means of which it is known that nothing was stored."""
    state = error.sqlstate
    if state in _FULL:
        return RefusedError(f"PostgreSQL has no room: {text_of(error)}")
    if state in _NO_MEMORY:
        return NoMemoryError()
    if state == CANCELLED or state in _AGAIN:
        return UnavailableError(
            f"PostgreSQL did not store a batch: {text_of(error)}", retry_after_s=limits.RETRY_AFTER_S
        )
    return error


def can_repeat(error: psycopg.Error) -> bool:
    return error.sqlstate in _AGAIN


def replaced() -> UnavailableError:
    return UnavailableError(
        "another database took the place of the former one; nothing of this was stored",
        retry_after_s=limits.RETRY_AFTER_S,
    )


async def discard(connection: Connection) -> None:
    """Close a connection that may be lost."""
    with contextlib.suppress(psycopg.Error, OSError):
        await connection.close()


def cut(connection: Connection) -> None:
    """Make a connection lost for whoever waits for an answer on it."""
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as own:
        own.shutdown(socket.SHUT_RDWR)


class Pool:
    """Connections for reads. A statement on a lost connection is repeated once on a new one, because a read changes
    nothing."""

    def __init__(
        self,
        database: PostgresDatabase,
        check: Callable[[Connection], Awaitable[None]],
        statements: Collection[Statement] = (),
        size: int = limits.POSTGRES_READERS,
    ) -> None:
        """`check` is called with each new connection, before it is used. `statements` are prepared on each."""
        self._database = database
        self._check = check
        self._statements = statements
        self._free: list[Connection] = []
        self._places = asyncio.Semaphore(size)
        self._closed = False
        self._used: set[Connection] = set()
        self._given_up = False

    @contextlib.asynccontextmanager
    async def _connection(self, *, fresh: bool) -> AsyncIterator[Connection]:
        try:
            async with asyncio.timeout(limits.POSTGRES_READER_WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise UnavailableError("all connections for reads are in use", retry_after_s=limits.RETRY_AFTER_S) from None
        connection: Connection | None = None
        try:
            if fresh:
                await self._drop()
            if self._given_up:
                raise UnavailableError("PostgreSQL does not answer, and the server stops")
            connection = self._free.pop() if self._free else await self._open()
            self._used.add(connection)
            try:
                yield connection
            finally:
                self._used.discard(connection)
            if not self._closed:
                self._free.append(connection)
                connection = None
        finally:
            self._places.release()
            if connection is not None:
                await discard(connection)

    async def _open(self) -> Connection:
        connection = await self._database.connect(**_PLANS)
        try:
            async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
                await self._check(connection)
                await prepare(connection, self._statements)
        except BaseException as error:
            await discard(connection)
            if isinstance(error, psycopg.Error | OSError | TimeoutError):
                raise UnavailableError(
                    f"no connection to {self._database.description}: {text_of(error)}",
                    retry_after_s=limits.RETRY_AFTER_S,
                ) from None
            raise
        return connection

    async def _drop(self) -> None:
        """Close the connections that are free: if one is lost, all are."""
        connections, self._free = self._free, []
        for connection in connections:
            await discard(connection)

    async def fetch(self, query: str, arguments: Arguments = ()) -> list[TupleRow]:
        """The rows of a statement that changes nothing."""

        async def fetch(connection: Connection) -> list[TupleRow]:
            async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
                cursor = await connection.execute(query, arguments, binary=True)
                return await cursor.fetchall()

        return await self._read(fetch)

    async def execute(self, statement: Statement, arguments: Sequence[bytes]) -> PGresult:
        """The same for one of the statements that are prepared, in the binary format."""
        return await self._read(lambda connection: execute(connection, statement, arguments))

    async def _read(self, read: Callable[[Connection], Awaitable[T]]) -> T:
        for attempt in range(2):
            try:
                return await self._read_once(read, fresh=attempt > 0)
            except _LostError as lost:
                if attempt:
                    raise UnavailableError(
                        f"the connection to {self._database.description} was lost: {lost}",
                        retry_after_s=limits.RETRY_AFTER_S,
                    ) from None
        raise AssertionError("unreachable")

    async def _read_once(self, read: Callable[[Connection], Awaitable[T]], *, fresh: bool) -> T:
        async with self._connection(fresh=fresh) as connection:
            try:
                return await read(connection)
            except (psycopg.Error, OSError, TimeoutError) as error:
                if is_lost(connection, error):
                    raise _LostError(text_of(error)) from error
                if isinstance(error, psycopg.Error) and error.sqlstate in (CANCELLED, *_AGAIN, *_NO_MEMORY):
                    raise UnavailableError(
                        f"PostgreSQL did not answer a read: {text_of(error)}", retry_after_s=limits.RETRY_AFTER_S
                    ) from None
                raise

    def give_up(self) -> None:
        """The server stops, and PostgreSQL does not answer: end all reads, and refuse further ones."""
        self._given_up = True
        for connection in self._used:
            cut(connection)

    async def close(self) -> None:
        self._closed = True
        await self._drop()


class _LostError(Exception):
    """The connection was lost during a read."""
