"""Which database a server is connected to, and the timeline of the store in it.

If another database takes the place of the former one, by a promotion or a restore, what was acknowledged may be
missing. So a timeline begins: offsets of what may be lost never match what is appended later (`log/offsets.py`). Every
new connection for batches and reads is checked before it is used, so nothing of another database is stored or returned
before the engine knows of it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from headwater.errors import OptionError, UnavailableError
from headwater.limits import RETRY_AFTER_S, TIMELINE_GAP_MAX
from headwater.store.postgres.connections import Connection, log
from headwater.store.postgres.presence import SCHEMA_LOCK

_OLDEST_VERSION = 15
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


class Identity:
    """The database of a store. `timeline` changes only in `check`, which tells the engine at once."""

    def __init__(self, timeline: int = 0) -> None:
        self.timeline = timeline
        self._newest_id = 0
        self._replaced: Callable[[], None] = lambda: None

    def on_replaced(self, replaced: Callable[[], None]) -> None:
        """Call `told` when a timeline has begun, before anything else of the database is seen."""
        self._replaced = replaced

    def note(self, stream_id: int) -> None:
        """An id was used. That of a timeline that begins later is larger, even if the clock was set back."""
        self._newest_id = max(self._newest_id, stream_id)

    async def check(self, connection: Connection) -> None:
        """Check a new connection, before it is used."""
        known, timeline = await row_of(connection, "SELECT identity, timeline FROM headwater.meta")
        (present,) = await row_of(connection, IDENTITY)
        if known != present or (timeline != self.timeline and timeline <= self._newest_id):
            timeline = await self._begin(connection, present, if_not=present)
        if timeline < self.timeline:
            raise UnavailableError(
                "the database that answers is not the one that took the place of it", retry_after_s=RETRY_AFTER_S
            )
        if timeline > self.timeline:
            self.timeline = timeline
            self.note(timeline)
            self._replaced()

    async def begin(self, connection: Connection) -> None:
        """Begin a timeline, because something is lost although the database looks like the same one."""
        (present,) = await row_of(connection, IDENTITY)
        await self._begin(connection, present, if_not=None)

    async def _begin(self, connection: Connection, present: str, if_not: str | None) -> int:
        async with connection.transaction():
            known, timeline = await row_of(connection, "SELECT identity, timeline FROM headwater.meta FOR UPDATE")
            if known == if_not and timeline > self._newest_id:  # another server has done it
                return int(timeline)
            least = max(time.time_ns() // 1000, self._newest_id) + 1 + secrets.randbelow(TIMELINE_GAP_MAX)
            await connection.execute("SELECT pg_advisory_xact_lock(%s, 1)", (SCHEMA_LOCK,))
            await connection.execute(_RAISE_IDS, (_MARGIN, least, 2**62))
            timeline = int((await row_of(connection, "SELECT nextval('headwater.ids')"))[0])
            await connection.execute("UPDATE headwater.meta SET identity = %s, timeline = %s", (present, timeline))
            # Batches of servers that do not know of it are refused.
            await connection.execute("UPDATE headwater.servers SET epoch = epoch + 1")
            return timeline


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


async def raise_ids(connection: Connection) -> None:
    """Let ids continue at the clock, in microseconds, unless they are there already. So ids of streams that a restore
    has lost are not used again."""
    now_us = time.time_ns() // 1000
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s, 1)", (SCHEMA_LOCK,))
        await connection.execute(_RAISE_IDS, (_MARGIN, now_us, now_us))


async def row_of(connection: Connection, query: str) -> tuple[Any, ...]:
    cursor = await connection.execute(query.encode())
    row = await cursor.fetchone()
    if row is None:
        raise OptionError(f"the database does not answer as PostgreSQL does: {query.strip()}")
    return row
