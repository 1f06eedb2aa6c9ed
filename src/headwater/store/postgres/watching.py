"""What servers tell each other: which streams a batch has changed.

A notification is sent after the commit, in a transaction of its own: inside of the batch it would make PostgreSQL
commit one batch at a time. It may be lost; the table `moves`, which the batch writes, has all.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import psycopg

from headwater import limits
from headwater.backoff import Streak
from headwater.errors import UnavailableError
from headwater.store.contract import Moved
from headwater.store.postgres.arrays import byteas
from headwater.store.postgres.batches import decode_name, encode_name
from headwater.store.postgres.connections import RECONNECTING, Connection, Pool, PostgresDatabase, discard, log

CHANNEL = "headwater"
_NOTIFY = "SELECT count(pg_notify('headwater', convert_from(text, 'UTF8'))) FROM unnest(%s) AS text"
# `moves` says what other servers' transactions have changed that the cursor, a snapshot, does not see.
_MOVED = """
    WITH news AS (
        SELECT m.ids, m.gone, m.gone_paths FROM headwater.moves m
        WHERE m.xid >= pg_snapshot_xmin(%(cursor)s::pg_snapshot) AND m.server <> %(server)s
            AND NOT pg_visible_in_snapshot(m.xid, %(cursor)s::pg_snapshot)
    )
    SELECT s.id, s.path, s.version FROM (SELECT DISTINCT unnest(ids) AS id FROM news) AS n
        JOIN headwater.streams s ON s.id = ANY (ARRAY[n.id])
    UNION ALL
    SELECT g.id, g.path, 0 FROM news, unnest(news.gone, news.gone_paths) AS g(id, path)
        WHERE (SELECT s.id FROM headwater.streams s WHERE s.id = g.id) IS NULL
    UNION ALL
    SELECT -1, convert_to(pg_current_snapshot()::text, 'UTF8'),
        (SELECT (pg_snapshot_xmin(%(cursor)s::pg_snapshot) <= horizon)::int FROM headwater.meta)
"""
# For a cursor from before the oldest row of `moves`: all streams are looked at.
_ALL_CHANGED = """
    SELECT s.id, s.path, s.version FROM headwater.streams s
    WHERE NOT pg_visible_in_snapshot(s.changed, %s::pg_snapshot)
"""

_ALL = "SELECT s.id, s.path, s.version FROM headwater.streams s"


class Announcement(msgspec.Struct, array_like=True, frozen=True):
    """What is in one notification."""

    server: int
    streams: tuple[tuple[int, bytes, int], ...]  # id, path, version


_announcements = msgspec.json.Decoder(Announcement)


def encode_announcements(server: int, moved: Sequence[Moved]) -> Iterator[bytes]:
    """As many notifications as are needed for the limit of PostgreSQL."""
    head, tail = f"[{server},[".encode(), b"]]"
    parts: list[bytes] = []
    size = 0
    for one in moved:
        part = msgspec.json.encode((one.id, encode_name(one.path), one.version))
        if parts and size + len(part) > limits.POSTGRES_NOTIFY_BYTES:
            yield head + b",".join(parts) + tail
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield head + b",".join(parts) + tail


def decode_announcement(payload: str) -> Announcement | None:
    """None if another version, or somebody else, has sent it. It is only a hint."""
    try:
        return _announcements.decode(payload)
    except msgspec.MsgspecError:
        return None


class Announcer:
    """Tells other servers what this one has changed. What comes while a notification is sent, and for a few
    milliseconds after that, is in the next one: one for each batch would take about as long as the batch."""

    def __init__(self, database: PostgresDatabase, server: int) -> None:
        self._database = database
        self._server = server
        self._waiting: dict[int, Moved] = {}
        self._news = asyncio.Event()
        self._is_ending = False
        self._connection: Connection | None = None

    def tell(self, moved: Sequence[Moved]) -> None:
        for one in moved:
            self._waiting[one.id] = one
        self._news.set()

    def end(self) -> None:
        """Let `run` end when it has tried to send everything."""
        self._is_ending = True
        self._news.set()

    async def run(self) -> None:
        streak = Streak(RECONNECTING)
        try:
            while self._waiting or not self._is_ending:
                await self._news.wait()
                self._news.clear()
                if not self._waiting:
                    continue
                waiting, self._waiting = list(self._waiting.values()), {}
                try:
                    await self._send(waiting)
                    streak.reset()
                    await asyncio.sleep(limits.POSTGRES_NOTIFY_S)
                except (psycopg.Error, OSError, TimeoutError, UnavailableError):
                    if self._connection is not None:  # what was lost is in `moves`
                        await discard(self._connection)
                        self._connection = None
                    if not self._is_ending:
                        await asyncio.sleep(streak.fail(random.random()))
        finally:
            if self._connection is not None:
                await discard(self._connection)

    async def _send(self, moved: Sequence[Moved]) -> None:
        if self._connection is None:
            # A notification need not be durable.
            self._connection = await self._database.connect(synchronous_commit="off")
        payloads = list(encode_announcements(self._server, moved))
        async with asyncio.timeout(limits.POSTGRES_ANSWER_S):
            await self._connection.execute(_NOTIFY, (byteas(payloads),))


class Listener:
    """Hears what other servers have changed."""

    def __init__(self, database: PostgresDatabase, server: int) -> None:
        self._database = database
        self._server = server
        self._moved: Callable[[Sequence[Moved]], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    async def watch(self, moved: Callable[[Sequence[Moved]], None]) -> None:
        """Call `moved`, from the return of this method on."""
        self._moved = moved
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await self._listening.wait()

    async def _run(self) -> None:
        streak = Streak(RECONNECTING)
        while True:
            try:
                await self._listen(streak)
            except (psycopg.Error, OSError, TimeoutError, UnavailableError) as error:
                if not streak.failures:
                    log.warning("notifications of other servers are not received: %s", error)
                await asyncio.sleep(streak.fail(random.random()))

    async def _listen(self, streak: Streak) -> None:
        connection = await self._database.connect()
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
            streak.reset()
            self._listening.set()
            async for notification in connection.notifies():
                self._hear(notification.payload)
        finally:
            await discard(connection)

    def _hear(self, payload: str) -> None:
        announcement = decode_announcement(payload)
        if announcement is not None and announcement.server != self._server and self._moved is not None:
            self._moved([Moved(one, decode_name(path), version) for one, path, version in announcement.streams])

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def moved_since(pool: Pool, server: int, timeline: int, cursor: str) -> tuple[list[Moved], str]:
    """What other servers have changed since a cursor: a timeline and a snapshot of PostgreSQL in it."""
    former, _, snapshot = cursor.partition("/")
    if not cursor or former != str(timeline):  # transactions of another database have other numbers
        rows = await pool.fetch("SELECT pg_current_snapshot()::text")
        every = await pool.fetch(_ALL) if cursor else []
        return [Moved(row[0], decode_name(row[1]), row[2]) for row in every], f"{timeline}/{rows[0][0]}"
    moved, now = await _moved_since(pool, server, snapshot)
    return moved, f"{timeline}/{now}"


async def _moved_since(pool: Pool, server: int, cursor: str) -> tuple[list[Moved], str]:
    rows = await pool.fetch(_MOVED, {"cursor": cursor, "server": server})
    moved = {row[0]: Moved(row[0], decode_name(row[1]), row[2]) for row in rows}
    now = moved.pop(-1)
    if now.version:  # the cursor is too old
        for row in await pool.fetch(_ALL_CHANGED, (cursor,)):
            moved[row[0]] = Moved(row[0], decode_name(row[1]), row[2])
    return list(moved.values()), now.path
