"""Opening the store, and its schema."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from importlib import resources

import msgspec
import psycopg

from headwater.errors import OptionError, UnavailableError
from headwater.store.copying import Source
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import Connection, Pool, PostgresDatabase, discard, text_of
from headwater.store.postgres.identity import IDENTITY, Identity, check_settings, raise_ids, row_of
from headwater.store.postgres.presence import SCHEMA_LOCK, keep_copies_away
from headwater.store.postgres.reading import COUNT_STREAMS, READ_STATEMENTS
from headwater.store.postgres.store import PostgresParts, PostgresStore
from headwater.store.postgres.upkeep import PostgresUpkeep
from headwater.store.postgres.watching import Announcer, Listener
from headwater.store.postgres.writing import PostgresWriter

FORMAT = 4
_PRIVILEGES = (
    "GRANT USAGE ON SCHEMA headwater TO {user}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headwater "
    "TO {user}; GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA headwater TO {user}"
)


async def open_store(url: str, wall: Callable[[], float] = time.time) -> PostgresStore:
    """A store in the database of a URL, whose schema is created if need be. OptionError if it cannot be used;
    UnavailableError if it cannot be reached. `wall` is the clock of this machine."""
    database = PostgresDatabase(url, f"headwater {socket.gethostname()[:24]} {os.getpid()} {secrets.token_hex(4)}")
    connection = await database.connect_first()
    try:
        await check_settings(connection)
        await keep_copies_away(connection)
        await create_schema(connection)
        await _check_finished(connection)
        clock = DatabaseClock(wall)
        await clock.compare(connection)
        identity = Identity()
        await identity.check(connection)
        await raise_ids(connection)
        row = await row_of(
            connection,
            "INSERT INTO headwater.servers VALUES (nextval('headwater.server_ids'), 0, 0, NULL) RETURNING id",
        )
        (streams,) = await row_of(connection, COUNT_STREAMS)
    except psycopg.Error as error:
        failure = opening_failure(database, connection, error)
        await discard(connection)
        raise failure from None
    except BaseException:
        await discard(connection)
        raise
    server = int(row[0])
    parts = PostgresParts(
        database=database,
        server=server,
        pool=Pool(database, identity.check, READ_STATEMENTS),
        writer=PostgresWriter(database, server, identity),
        announcer=Announcer(database, server),
        listener=Listener(database, server),
        upkeep=lambda moment, connection: PostgresUpkeep(database, server, moment, clock, connection),
        clock=clock,
        identity=identity,
        connection=connection,
    )
    return PostgresStore(parts, streams)


async def create_schema(connection: Connection) -> None:
    """Create the schema if it does not exist, and check its format. One server at a time does this."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s, 0)", (SCHEMA_LOCK,))
        if not await check_format(connection):
            await _create(connection)


async def check_format(connection: Connection) -> bool:
    """Check the format of the schema. Returns whether there is one."""
    row = await row_of(connection, "SELECT to_regclass('headwater.meta')::text")
    if row[0] is None:
        return False
    row = await row_of(connection, "SELECT format FROM headwater.meta")
    if row[0] != FORMAT:
        raise OptionError(
            f"the schema headwater of the database has format {row[0]}; this version supports format {FORMAT}. "
            "Use the version of Headwater that has written it, or a newer one"
        )
    return True


async def _create(connection: Connection) -> None:
    schema = resources.files("headwater.store.postgres").joinpath("schema.sql").read_text(encoding="utf-8")
    try:
        await connection.execute("CREATE SCHEMA IF NOT EXISTS headwater")
        await connection.execute(schema.encode())
        row = await row_of(connection, IDENTITY)
        await connection.execute(
            "INSERT INTO headwater.meta (format, timeline, identity, horizon) VALUES (%s, 0, %s, '0')",
            (FORMAT, row[0]),
        )
    except psycopg.errors.InsufficientPrivilege as error:
        raise OptionError(
            f"the schema headwater does not exist and cannot be created: {text_of(error)}. Let a role that may create "
            "schemas start the server once, and then give this one its privileges: "
            f"{_PRIVILEGES.format(user=connection.info.user)}"
        ) from None


async def _check_finished(connection: Connection) -> None:
    source = await copied_from(connection)
    if source is not None:
        raise OptionError(
            f"the database is a copy of {source.name} that was not finished; run headwater copy again, or drop the "
            "schema headwater"
        )


async def copied_from(connection: Connection) -> Source | None:
    """What the database is an unfinished copy of."""
    (marker,) = await row_of(connection, "SELECT copying FROM headwater.meta")
    return None if marker is None else msgspec.json.decode(marker, type=Source)


def opening_failure(database: PostgresDatabase, connection: Connection, error: psycopg.Error) -> Exception:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return OptionError(_privileges_missing(connection, error))
    return UnavailableError(f"{database.description} could not be opened: {text_of(error)}")


def _privileges_missing(connection: Connection, error: BaseException) -> str:
    return f"{text_of(error)}. As the owner of the schema: {_PRIVILEGES.format(user=connection.info.user)}"
