"""Opening the store: the schema, what the server must be set to, and the identity of the database."""

from __future__ import annotations

import os
import secrets
import socket
import time
from importlib import resources
from typing import Any

import msgspec
import psycopg

from headwater.errors import OptionError, UnavailableError
from headwater.limits import TIMELINE_GAP_MAX
from headwater.store.copying import Source
from headwater.store.postgres.connections import Connection, Pool, PostgresDatabase, discard, log, text_of
from headwater.store.postgres.presence import SCHEMA_LOCK, keep_copies_away
from headwater.store.postgres.store import PostgresParts, PostgresStore
from headwater.store.postgres.upkeep import PostgresUpkeep
from headwater.store.postgres.watching import Announcer, Listener
from headwater.store.postgres.writing import PostgresWriter

FORMAT = 1
_OLDEST_VERSION = 15
_PRIVILEGES = (
    "GRANT USAGE ON SCHEMA headwater TO {user}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA headwater "
    "TO {user}; GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA headwater TO {user}"
)
# Which cluster, which timeline of it and which database this is. A promotion and a recovery begin a timeline of
# PostgreSQL, and a dump is restored into another database.
IDENTITY = """
    SELECT (SELECT system_identifier FROM pg_control_system()) || '/'
        || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/'
        || (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_RAISE_IDS = """
    SELECT setval('headwater.ids', greatest(last_value + %s, %s)) FROM headwater.ids WHERE last_value < %s
"""
_MARGIN = 1_000_000  # more ids than servers can take while the sequence is set


async def open_store(url: str) -> PostgresStore:
    """A store in the database of a URL, whose schema is created if need be. OptionError if it cannot be used;
    UnavailableError if it cannot be reached."""
    database = PostgresDatabase(url, f"headwater {socket.gethostname()[:24]} {os.getpid()} {secrets.token_hex(4)}")
    connection = await database.connect()
    try:
        await check_settings(connection)
        await keep_copies_away(connection)
        await create_schema(connection)
        await _check_finished(connection)
        identity = Identity()
        await identity.check(connection)
        await raise_ids(connection)
        row = await row_of(
            connection,
            "INSERT INTO headwater.servers VALUES (nextval('headwater.server_ids'), 0, 0, NULL) RETURNING id",
        )
        streams = await count_streams(connection)
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
        pool=Pool(database),
        writer=PostgresWriter(database, server, 0, identity.renew),
        announcer=Announcer(database, server),
        listener=Listener(database, server),
        upkeep=lambda moment, connection: PostgresUpkeep(database, server, moment, connection),
        identity=identity,
        connection=connection,
    )
    return PostgresStore(parts, streams)


async def check_settings(connection: Connection) -> None:
    """Refuse a PostgreSQL that may lose what it has committed."""
    version = connection.info.server_version // 10_000
    if version < _OLDEST_VERSION:
        raise OptionError(f"PostgreSQL {version} is too old; the oldest supported version is {_OLDEST_VERSION}")
    names = ("fsync", "full_page_writes", "synchronous_commit")
    cursor = await connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(names),))
    settings: dict[str, str] = dict(await cursor.fetchall())
    for name in names:
        if settings.get(name) == "off":
            raise OptionError(
                f"PostgreSQL is set to {name} = off, with which it may lose acknowledged writes in a crash. Set it to "
                "on, for synchronous_commit at least for the role of the server (ALTER ROLE ... SET)"
            )
    if settings.get("synchronous_commit") == "local":
        log.warning("PostgreSQL is set to synchronous_commit = local: a standby may lack acknowledged writes")


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


async def raise_ids(connection: Connection) -> None:
    """Let ids continue at the clock, in microseconds, unless they are there already. So ids of streams that a restore
    has lost are not used again."""
    now_us = time.time_ns() // 1000
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s, 1)", (SCHEMA_LOCK,))
        await connection.execute(_RAISE_IDS, (_MARGIN, now_us, now_us))


async def count_streams(connection: Connection) -> int:
    """How many streams there are; about, if there are many."""
    row = await row_of(
        connection,
        "SELECT CASE WHEN reltuples > 1e6 THEN reltuples::bigint ELSE (SELECT count(*) FROM headwater.streams) END "
        "FROM pg_class WHERE oid = 'headwater.streams'::regclass",
    )
    return int(row[0])


class Identity:
    """Which database a server is connected to, and the timeline of the store in it.

    If another one took the place of the former, by a restore or a promotion, what was acknowledged may be missing. So a
    timeline begins: offsets of what may be lost never match what is appended later (`log/offsets.py`)."""

    def __init__(self) -> None:
        self.timeline = 0

    async def check(self, connection: Connection) -> None:
        (known, self.timeline) = await row_of(connection, "SELECT identity, timeline FROM headwater.meta")
        (present,) = await row_of(connection, IDENTITY)
        if known != present:
            self.timeline = await self._begin_timeline(connection, present)

    async def renew(self, connection: Connection) -> bool:
        """Check a new connection. Returns whether a timeline has begun."""
        before = self.timeline
        await check_settings(connection)
        await self.check(connection)
        if before != self.timeline:
            log.warning("another PostgreSQL took the place of the former one, or it was restored: a timeline begins")
        return before != self.timeline

    async def _begin_timeline(self, connection: Connection, present: str) -> int:
        async with connection.transaction():
            row = await row_of(connection, "SELECT identity, timeline FROM headwater.meta FOR UPDATE")
            if row[0] == present:  # another server has done it
                return int(row[1])
            timeline = time.time_ns() // 1000 + 1 + secrets.randbelow(TIMELINE_GAP_MAX)
            await connection.execute("SELECT pg_advisory_xact_lock(%s, 1)", (SCHEMA_LOCK,))
            await connection.execute(_RAISE_IDS, (_MARGIN, timeline, 2**62))
            timeline = int((await row_of(connection, "SELECT nextval('headwater.ids')"))[0])
            await connection.execute("UPDATE headwater.meta SET identity = %s, timeline = %s", (present, timeline))
            return timeline


async def row_of(connection: Connection, query: str) -> tuple[Any, ...]:
    cursor = await connection.execute(query.encode())
    row = await cursor.fetchone()
    if row is None:
        raise OptionError(f"the database does not answer as PostgreSQL does: {query.strip()}")
    return row
