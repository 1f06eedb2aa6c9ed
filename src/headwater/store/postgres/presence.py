"""Who uses the database: servers, or a copy.

Servers share an advisory lock, which the connection of the background work of each has, and a copy needs it alone.
A server that has lost this connection is not seen; so a copy also removes the rows of all servers, without which none
of them can store a batch any more.
"""

from __future__ import annotations

import asyncio
import time

from headwater import limits
from headwater.errors import OptionError
from headwater.store.copying import CopyError
from headwater.store.postgres.connections import Connection, PostgresDatabase

SCHEMA_LOCK = 1215459414  # the class of our advisory locks of the schema
_USE = 2  # which of them says who uses it
_USERS = """
    SELECT coalesce(string_agg(DISTINCT a.application_name, ', '), 'servers')
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_database d ON d.oid = l.database
    WHERE l.locktype = 'advisory' AND l.classid = %s AND l.objid = %s AND l.granted AND d.datname = current_database()
        AND l.pid <> pg_backend_pid()
"""


async def keep_copies_away(connection: Connection) -> None:
    """Keep copies away as long as a connection of a server lives."""
    if not await _took(connection, "SELECT pg_try_advisory_lock_shared(%s, %s)"):
        raise OptionError("headwater copy uses the database; start the server when it has ended")


async def keep_servers_away(database: PostgresDatabase, connection: Connection) -> None:
    """Keep servers and other copies away as long as a connection of a copy lives."""
    until_s = time.monotonic() + limits.POSTGRES_IN_USE_S
    while not await _took(connection, "SELECT pg_try_advisory_lock(%s, %s)"):
        if time.monotonic() > until_s:  # PostgreSQL needs a moment to notice that a process was killed
            cursor = await connection.execute(_USERS, (SCHEMA_LOCK, _USE))
            row = await cursor.fetchone()
            users = "servers" if row is None else row[0]
            raise CopyError(f"{database.description} is in use by {users}; stop what uses it and copy again")
        await asyncio.sleep(limits.POSTGRES_RECONNECT_S)


async def _took(connection: Connection, query: str) -> bool:
    cursor = await connection.execute(query.encode(), (SCHEMA_LOCK, _USE))
    row = await cursor.fetchone()
    return row is not None and bool(row[0])
