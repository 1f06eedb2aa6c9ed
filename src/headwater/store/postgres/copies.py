"""A database that is copied, and one that is being made as a copy of another store.

One connection keeps servers away (`presence.py`) and writes everything, so a copy that has lost it can write nothing
more. `meta.copying` says what the database is a copy of, and no server starts while it is there. Streams are written
after their bytes, so a stream that is there is complete.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg

from headwater.errors import UnavailableError
from headwater.log.producers import hash_of
from headwater.log.state import Document, StreamState
from headwater.store.contract import Store, version_of
from headwater.store.copying import CopiedRun, CopyError, Portion, Source, check_same, describe
from headwater.store.postgres.arrays import bigints, byteas
from headwater.store.postgres.batches import due_column, encode_name
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import Connection, Pool, PostgresDatabase, discard, text_of
from headwater.store.postgres.identity import IDENTITY, Identity, check_settings, row_of
from headwater.store.postgres.opening import check_format, copied_from, create_schema, opening_failure
from headwater.store.postgres.presence import keep_servers_away
from headwater.store.postgres.reading import READ_STATEMENTS
from headwater.store.postgres.rows import COLUMNS, cut, encode_state
from headwater.store.postgres.store import PostgresParts, PostgresStore
from headwater.store.postgres.upkeep import PostgresUpkeep
from headwater.store.postgres.watching import Announcer, Listener
from headwater.store.postgres.writing import PostgresWriter

T = TypeVar("T")

_NO_SERVER = 0
_NAME = """
    SELECT 'database ' || current_database() || ' of the PostgreSQL cluster ' || system_identifier
    FROM pg_control_system()
"""
# Each batch changes at least one of these.
_MARK = """
    SELECT concat_ws(' ',
        (SELECT concat_ws(' ', count(*), sum(version), max(changed)) FROM headwater.streams),
        (SELECT concat_ws(' ', count(*), sum(token::numeric)) FROM headwater.documents))
"""
_NEXT_ID = "SELECT last_value + is_called::int FROM headwater.ids"
_HAS_ROWS = " UNION ALL ".join(
    f"SELECT '{table}' WHERE EXISTS (SELECT FROM headwater.{table})"  # noqa: S608
    for table in ("streams", "documents", "fresh", "chunks", "producers", "expired_producers", "garbage")
)
_BYTES = f"INSERT INTO headwater.chunks ({COLUMNS}) SELECT * FROM unnest(%s, %s, %s, %s, %s, %s)"  # noqa: S608
_STREAMS = """
    INSERT INTO headwater.streams (id, path, version, due_ms, changed, state)
    SELECT s.id, s.path, s.version, nullif(s.due, -1), pg_current_xact_id(), s.state
    FROM unnest(%s, %s, %s, %s, %s) AS s(id, path, version, due, state)
"""
_PRODUCERS = """
    INSERT INTO headwater.producers (stream_id, producer, epoch, seq, at_ms, turn, hash)
    SELECT * FROM unnest(%s, %s, %s, %s, %s, %s, %s)
"""
_EXPIRED = "INSERT INTO headwater.expired_producers (stream_id, hash, epoch) SELECT * FROM unnest(%s, %s, %s)"
_DOCUMENTS = """
    INSERT INTO headwater.documents (key, version, token, data) SELECT * FROM unnest(%s, %s, %s, %s)
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, token = excluded.token, data = excluded.data
"""
_END = "SELECT max(start + size) FROM headwater.chunks WHERE stream_id = %s"
_SET_POSITION = f"""
    WITH ids AS (
        SELECT setval('headwater.ids', greatest(%s, last_value + is_called::int), false) AS next FROM headwater.ids
    )
    UPDATE headwater.meta SET timeline = %s, identity = ({IDENTITY}) FROM ids WHERE ids.next > 0
"""  # noqa: S608


class PostgresSource:
    """A database that is copied."""

    def __init__(self, database: PostgresDatabase, connection: Connection, store: Store, what: Source) -> None:
        self.store = store
        self.what = what
        self._database = database
        self._connection = connection

    async def check(self) -> None:
        """The lock lives as long as the connection."""
        try:
            await self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            raise CopyError(
                f"the connection that kept servers away from {self._database.description} was lost, so it may have "
                f"been changed; copy again: {text_of(error)}"
            ) from None

    async def close(self) -> None:
        await self.store.close()
        await discard(self._connection)


class PostgresCopy:
    """A database to which a store is copied."""

    def __init__(self, database: PostgresDatabase, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    async def finished(self, stream_ids: Sequence[int]) -> set[int]:
        query = "SELECT id FROM headwater.streams WHERE id = ANY (%s)"
        return {stream_id for (stream_id,) in await self._fetch(query, bigints(stream_ids))}

    async def end_of(self, stream_id: int) -> int | None:
        rows = await self._fetch(_END, stream_id)
        return None if rows[0][0] is None else int(rows[0][0])

    async def _fetch(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        try:
            cursor = await self._connection.execute(query.encode(), arguments, binary=True)
            return await cursor.fetchall()
        except psycopg.Error as error:
            raise self._failure(error) from None

    async def put(self, portion: Portion) -> None:
        await self._write(
            *_byte_rows([run for run, _ in portion.runs]), *_state_rows(portion.states), *_documents(portion.documents)
        )

    async def put_position(self, source: Source) -> None:
        await self._write((_SET_POSITION, (source.next_id, source.timeline)))

    async def _write(self, *statements: tuple[str, tuple[Any, ...]]) -> None:
        """Execute statements in one transaction."""
        try:
            async with self._connection.transaction():
                for query, arguments in statements:
                    await self._connection.execute(query.encode(), arguments)
        except psycopg.Error as error:
            raise self._failure(error) from None

    def _failure(self, error: psycopg.Error) -> UnavailableError:
        return UnavailableError(f"the copy to {self._database.description} was interrupted: {text_of(error)}")

    async def opened(self) -> Store:
        return await _store_of(self._database, self._connection)

    async def complete(self) -> None:
        await self._write(("UPDATE headwater.meta SET copying = NULL", ()))

    async def close(self) -> None:
        await discard(self._connection)


async def open_postgres_source(url: str) -> PostgresSource:
    """A database to copy. It must have a schema, and no server may use it."""

    async def begin(database: PostgresDatabase, connection: Connection) -> PostgresSource:
        if not await check_format(connection):
            raise CopyError(f"{database.description} has no schema headwater, so there is nothing to copy")
        before = await copied_from(connection)
        if before is not None:
            raise CopyError(f"{database.description} is a copy of {before.name} that was not finished")
        await Identity().check(connection)
        await connection.execute("DELETE FROM headwater.servers")
        (name,) = await row_of(connection, _NAME)
        (mark,) = await row_of(connection, _MARK)
        store = await _store_of(database, connection)
        return PostgresSource(database, connection, store, describe(store, name, mark))

    return await _begun(url, begin)


async def open_postgres_copy(url: str, source: Source) -> PostgresCopy:
    """Begin a copy of a source, or continue one. A database with anything else in it is refused."""

    async def begin(database: PostgresDatabase, connection: Connection) -> PostgresCopy:
        (name,) = await row_of(connection, _NAME)
        if name == source.name:
            raise CopyError(f"{name} cannot be copied to itself")
        await keep_servers_away(database, connection)
        await create_schema(connection)
        before = await copied_from(connection)
        if before is not None:
            check_same(database.description, before, source)
        else:
            await _mark(database, connection, source)
        return PostgresCopy(database, connection)

    return await _begun(url, begin, exclusive=False)


async def _begun(
    url: str, begin: Callable[[PostgresDatabase, Connection], Awaitable[T]], *, exclusive: bool = True
) -> T:
    database = PostgresDatabase(url, f"headwater copy {os.getpid()}")
    connection = await database.connect_first(statement_timeout="0")
    try:
        await check_settings(connection)
        if exclusive:
            await keep_servers_away(database, connection)
        return await begin(database, connection)
    except psycopg.Error as error:
        failure = opening_failure(database, connection, error)
        await discard(connection)
        raise failure from None
    except BaseException:
        await discard(connection)
        raise


async def _mark(database: PostgresDatabase, connection: Connection, source: Source) -> None:
    async with connection.transaction():
        cursor = await connection.execute(_HAS_ROWS.encode())
        tables = [table for (table,) in await cursor.fetchall()]
        if tables:
            raise CopyError(
                f"{database.description} is not empty, and no unfinished copy: there are {', '.join(tables)}; give a "
                "database without the schema headwater"
            )
        await connection.execute("DELETE FROM headwater.servers")
        await connection.execute("UPDATE headwater.meta SET copying = %s", (msgspec.json.encode(source),))


async def _store_of(database: PostgresDatabase, connection: Connection) -> PostgresStore:
    """A store for reads. It is not started, and no server of the database."""
    (timeline,) = await row_of(connection, "SELECT timeline FROM headwater.meta")
    (streams,) = await row_of(connection, "SELECT count(*) FROM headwater.streams")
    (next_id,) = await row_of(connection, _NEXT_ID)

    async def unchecked(_: Connection) -> None:
        """Nobody else uses the database."""

    identity, clock = Identity(timeline), DatabaseClock()
    parts = PostgresParts(
        database=database,
        server=_NO_SERVER,
        pool=Pool(database, unchecked, READ_STATEMENTS),
        writer=PostgresWriter(database, _NO_SERVER, identity),
        announcer=Announcer(database, _NO_SERVER),
        listener=Listener(database, _NO_SERVER),
        upkeep=lambda moment, connection: PostgresUpkeep(database, _NO_SERVER, moment, clock, connection),
        clock=clock,
        identity=identity,
        connection=None,
    )
    return PostgresStore(parts, streams, next_id)


# Rows


def _byte_rows(runs: Sequence[CopiedRun]) -> list[tuple[str, tuple[Any, ...]]]:
    rows = [row for run in runs for row in cut(run.stream_id, run.start, run.ends, run.times, run.data)]
    if not rows:
        return []
    ids, starts, sizes, times, outlines, data = zip(*rows, strict=True)
    return [(_BYTES, (bigints(ids), bigints(starts), bigints(sizes), bigints(times), byteas(outlines), byteas(data)))]


def _state_rows(states: Sequence[StreamState]) -> list[tuple[str, tuple[Any, ...]]]:
    if not states:
        return []
    streams = (
        bigints([one.id for one in states]),
        byteas([encode_name(one.path) for one in states]),
        bigints([one.version for one in states]),
        bigints([due_column(one) for one in states]),
        byteas([encode_state(one) for one in states]),
    )
    producers = [row for state in states for row in _producers(state)]
    expired = [(state.id, *item) for state in states for item in state.expired_producers.items()]
    statements: list[tuple[str, tuple[Any, ...]]] = [(_STREAMS, streams)]
    if producers:
        ids, names, *numbers = zip(*producers, strict=True)
        statements.append((_PRODUCERS, (bigints(ids), byteas(names), *map(bigints, numbers))))
    if expired:
        statements.append((_EXPIRED, tuple(map(bigints, zip(*expired, strict=True)))))
    return statements


def _producers(state: StreamState) -> list[tuple[int, bytes, int, int, int, int, int]]:
    """The rows of producers. Their turns are in order, and before that of the next request."""
    first = state.version - len(state.producers) + 1
    return [
        (state.id, encode_name(key), one.epoch, one.seq, one.at_ms, first + index, hash_of(key))
        for index, (key, one) in enumerate(state.producers.items())
    ]


def _documents(documents: Sequence[Document]) -> list[tuple[str, tuple[Any, ...]]]:
    if not documents:
        return []
    arguments = (
        byteas([encode_name(one.key) for one in documents]),
        bigints([one.version for one in documents]),
        bigints([version_of(one) for one in documents]),
        byteas([one.data for one in documents]),
    )
    return [(_DOCUMENTS, arguments)]
