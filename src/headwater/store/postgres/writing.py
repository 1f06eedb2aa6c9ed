"""Writing batches, and finding out what became of one whose connection was lost.

Each batch moves the row of this server `(id, epoch, batch)` first. After a lost connection a new one raises the epoch
in that row, which waits for the former transaction, and reads the number of the last batch that was stored. So it is
known then whether the batch in progress was stored, and a former transaction that comes later is refused. Until that
is known, nothing else is written and no outcome is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import psycopg

from headwater import limits
from headwater.backoff import Streak
from headwater.errors import DamagedDataError, OptionError, UnavailableError
from headwater.store.contract import DocumentKey, Key
from headwater.store.postgres.arrays import bigints, byteas, decode_ints, ints
from headwater.store.postgres.batches import EncodedBatch, StoringFunction, encode_name, slot_of
from headwater.store.postgres.connections import (
    RECONNECTING,
    Connection,
    PostgresDatabase,
    can_repeat,
    cut,
    discard,
    is_lost,
    log,
    refusal,
    replaced,
    text_of,
)
from headwater.store.postgres.execution import Statement, execute, prepare
from headwater.store.postgres.identity import Identity, check_settings
from headwater.store.postgres.presence import keep_copies_away

_NAME_LOCKS = 1215459412  # the class of our advisory locks, as in `store_batch`
# Indexes are used however small the tables are now: plans are kept, and tables grow. Rows of streams are updated in the
# order of the arguments, which is the order of locks: a hash join would have another order.
_PLANS = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
_ARGUMENTS = {StoringFunction.BATCH: 60, StoringFunction.APPENDS: 23}
_CALLS = {
    function: Statement(
        function.value.encode(),
        f"SELECT headwater.{function.value}({', '.join([f'${number}' for number in range(1, count + 1)])})",
    )
    for function, count in _ARGUMENTS.items()
}
_NUMBER = struct.Struct(">q").pack
_TAKE_OVER = """
    UPDATE headwater.servers SET epoch = epoch + 1, seen = now() WHERE id = %s RETURNING epoch, batch, outdated
"""
_LOCK_STREAMS = """
    SELECT s.id FROM headwater.streams s WHERE s.id = ANY (ARRAY(
        SELECT unnest(%s) UNION ALL SELECT o.id FROM headwater.streams o WHERE o.path = ANY (%s)
    )) ORDER BY s.id FOR NO KEY UPDATE
"""
# A former connection of this server may still wait for a lock, with the row of the server locked.
_END_FORMER = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE application_name = %s AND pid = ANY (%s) AND pid <> pg_backend_pid() AND usename = current_user
"""

UNKNOWN = "the server stops, and it is unknown whether the last batch was stored"


class Outcome(NamedTuple):
    """What became of a batch that was stored: the groups of it that were outdated."""

    outdated: Sequence[int]


class _Held(NamedTuple):
    """Keys that are locked, by an open transaction."""

    connection: Connection
    keys: frozenset[Key]
    slots: frozenset[int]
    expiry: asyncio.TimerHandle


class PostgresWriter:
    """Writes one batch at a time."""

    def __init__(self, database: PostgresDatabase, server: int, identity: Identity) -> None:
        self._database = database
        self._server = server
        self._epoch = 0
        self._batch = 0  # the last one that is known to be stored
        self._identity = identity
        self._connection: Connection | None = None
        self._pids: set[int] = set()  # of connections that may have an unfinished transaction
        self._held: _Held | None = None
        self._locking = asyncio.Lock()
        self._spare: Connection | None = None  # for the next locks, because a new connection takes milliseconds
        self._warnings = 0
        self._closed = False
        self._finding: asyncio.Task[Outcome | None] | None = None  # of what became of a batch
        self._sent: _Held | None = None  # the locks with which the last batch was sent
        self.reconnects = 0

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def write(self, batch: EncodedBatch, timeline: int) -> Outcome:
        """Write a batch that was decided in a timeline. RefusedError and UnavailableError: it is not stored, nor will
        be."""
        number = self._batch + 1
        give_up_s = time.monotonic() + limits.POSTGRES_RETRY_S
        while True:
            if self._connection is None:  # nothing of this batch was sent
                self._connection = await self._open()
            if self._identity.timeline != timeline:
                raise replaced()
            sent = self._sent = self._held if self._uses_held(batch) else None
            try:
                outdated = await self._send(sent, number, batch)
            except (psycopg.Error, OSError, TimeoutError) as error:
                outcome = await self._after(error, sent, number)
                if outcome is not None:
                    return outcome
                if time.monotonic() > give_up_s:
                    raise UnavailableError(
                        f"a batch was not stored: {text_of(error)}", retry_after_s=limits.RETRY_AFTER_S
                    ) from None
            else:
                self._batch = number
                return Outcome(outdated)

    def _uses_held(self, batch: EncodedBatch) -> bool:
        held = self._held
        return held is not None and not (held.keys.isdisjoint(batch.keys) and held.slots.isdisjoint(batch.slots))

    async def _send(self, held: _Held | None, number: int, batch: EncodedBatch) -> Sequence[int]:
        connection = self._connection if held is None else held.connection
        if connection is None:
            raise psycopg.OperationalError("the connection was lost")
        if held is not None:
            self._held = None
            held.expiry.cancel()
        is_patient = held is None or (batch.keys <= held.keys and batch.slots <= held.slots)
        warnings = self._warnings
        arguments = [_NUMBER(self._server), _NUMBER(self._epoch), _NUMBER(number), b"\1" if is_patient else b"\0"]
        arguments += [one.data for one in batch.arguments]
        groups = (await execute(connection, _CALLS[batch.function], arguments)).get_value(0, 0)
        if held is not None:
            async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
                await connection.execute("COMMIT")
        if warnings != self._warnings:  # for example: stored, but the wait for the standby was cancelled
            raise psycopg.OperationalError("PostgreSQL committed with a warning")
        if held is not None:
            await self._keep(connection)
        return [] if groups is None else decode_ints(groups)

    async def _after(self, error: BaseException, held: _Held | None, number: int) -> Outcome | None:
        """What became of a batch whose statement failed. None: it was not stored, and may be tried again."""
        connection = self._connection if held is None else held.connection
        if held is not None:
            await discard(held.connection)
        if connection is None or is_lost(connection, error):
            return await self._find_out(number, error)
        if not isinstance(error, psycopg.Error):
            raise error
        if not can_repeat(error):
            raise refusal(error)
        return None

    # Unknown outcomes

    async def _find_out(self, number: int, error: BaseException) -> Outcome | None:
        """Whether a batch was stored. This waits until the database can be reached, however long that takes."""
        log.warning("the connection to %s was lost during a batch: %s", self._database.description, text_of(error))
        await self._forget()
        if self._closed:
            raise ConnectionError(UNKNOWN)
        self._finding = asyncio.create_task(self._learn(number))
        try:
            return await self._finding
        except asyncio.CancelledError:
            if self._closed:
                raise ConnectionError(UNKNOWN) from None
            raise
        finally:
            self._finding = None

    async def _learn(self, number: int) -> Outcome | None:
        streak = Streak(RECONNECTING)
        while True:
            try:
                connection = await self._database.connect(**_PLANS)
            except UnavailableError as failure:
                if not streak.failures:
                    log.warning("%s", failure)
                await asyncio.sleep(streak.fail(random.random()))
                continue
            try:
                outcome = await self._take_over(connection, number)
            except (psycopg.Error, OSError, TimeoutError, UnavailableError):
                await discard(connection)
                await asyncio.sleep(streak.fail(random.random()))
                continue
            except BaseException:
                await discard(connection)
                raise
            self._connection = connection
            return outcome

    async def _take_over(self, connection: Connection, number: int) -> Outcome | None:
        """Refuse everything that former connections have sent, and read which batch was the last one."""
        async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
            await connection.execute(_END_FORMER, (self._database.name, list(self._pids)))
            await check_settings(connection)
            await prepare(connection, _CALLS.values())
            await self._identity.check(connection)
            cursor = await connection.execute(_TAKE_OVER, (self._server,), binary=True)
            row = await cursor.fetchone()
            if row is None or not self._batch <= row[1] <= number:
                # For PostgreSQL it is the same one if its files were set back. A copy has removed the rows of servers.
                with contextlib.suppress(OptionError):
                    await keep_copies_away(connection)
                    await self._identity.begin(connection)
        self._epoch, last, outdated = self._check_nothing_is_lost(row, number)
        self._pids = {connection.info.backend_pid}
        connection.add_notice_handler(self._warned)
        self.reconnects += 1
        if last < number:
            return None
        self._batch = number
        return Outcome(outdated or ())

    def _check_nothing_is_lost(self, row: tuple[Any, ...] | None, number: int) -> tuple[Any, ...]:
        """A database without a batch that was acknowledged is an older one: of a restore, or a standby that lagged."""
        if row is None or not self._batch <= row[1] <= number:
            what = "does not know this server" if row is None else f"ends with batch {row[1]} of this server"
            raise DamagedDataError(
                f"{self._database.description} {what}, but batch {self._batch} was acknowledged: it was restored to an "
                "earlier state, a standby without the last transactions was promoted, or headwater copy took it while "
                "this server had no connection. Start the server again to continue with what is there"
            )
        return row

    async def _open(self) -> Connection:
        """A connection when nothing was sent. UnavailableError if there is none."""
        connection = await self._database.connect(**_PLANS)
        try:
            outcome = await self._take_over(connection, self._batch + 1)
        except (psycopg.Error, OSError, TimeoutError) as error:
            await discard(connection)
            raise UnavailableError(
                f"no connection to {self._database.description}: {text_of(error)}", retry_after_s=limits.RETRY_AFTER_S
            ) from None
        except BaseException:
            await discard(connection)
            raise
        if outcome is not None:
            raise DamagedDataError(f"the database has a batch of server {self._server} that was never sent")
        return connection

    def _warned(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            log.warning("PostgreSQL: %s", notice.message_primary)
            self._warnings += 1

    async def _forget(self) -> None:
        """Close all connections: what they do is unknown."""
        connections, self._connection, self._spare = (self._connection, self._spare), None, None
        for connection in connections:
            if connection is not None:
                await discard(connection)
        await self._let_go()

    # Locks

    async def lock(self, keys: Collection[Key]) -> None:
        """Lock keys until the next batch that has one of them, or for a short while."""
        async with self._locking:
            former = self._held.keys if self._held is not None else frozenset()
            await self._let_go()
            every = frozenset(keys) | former
            slots = frozenset(slot_of(key) for key in every if not isinstance(key, int))
            try:
                connection, ids = await self._connection_with_locks(every, sorted(slots))
            except (psycopg.Error, OSError, TimeoutError) as error:
                raise UnavailableError(
                    f"states could not be locked: {text_of(error)}", retry_after_s=limits.RETRY_AFTER_S
                ) from None
            loop = asyncio.get_running_loop()
            expiry = loop.call_later(limits.POSTGRES_LOCKED_S, self._expire, connection)
            self._held = _Held(connection, every | ids, slots, expiry)

    async def _connection_with_locks(
        self, keys: Collection[Key], slots: Sequence[int]
    ) -> tuple[Connection, frozenset[int]]:
        """A connection with a transaction that has the locks, and the ids of the streams that are locked."""
        spare, self._spare = self._spare, None
        if spare is not None:
            try:
                return spare, await _lock(spare, keys, slots)
            except BaseException as error:
                was_lost = isinstance(error, psycopg.Error) and spare.closed
                await discard(spare)
                if not was_lost:
                    raise
        connection = await self._database.connect(**_PLANS)
        try:
            async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
                await prepare(connection, _CALLS.values())
                await self._identity.check(connection)
            ids = await _lock(connection, keys, slots)
        except BaseException:
            await discard(connection)
            raise
        connection.add_notice_handler(self._warned)
        self._pids.add(connection.info.backend_pid)
        return connection, ids

    async def _keep(self, connection: Connection) -> None:
        """Keep a connection without a transaction for the next locks."""
        if self._spare is None and not self._closed:
            self._spare = connection
        else:
            await discard(connection)

    def _expire(self, connection: Connection) -> None:
        held = self._held
        if held is not None and held.connection is connection:
            self._held = None
            connection.pgconn.finish()  # PostgreSQL rolls the transaction back

    async def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.expiry.cancel()
            await discard(held.connection)

    async def close(self) -> None:
        self._closed = True
        await self._forget()

    def stop_waiting(self) -> None:
        """Let a batch whose outcome cannot be found out end."""
        self._closed = True
        if self._finding is not None:
            self._finding.cancel()

    def cut(self) -> None:
        """End a batch that waits for an answer. It may be stored all the same."""
        for connection in (self._connection, None if self._sent is None else self._sent.connection):
            if connection is not None:
                cut(connection)


async def _lock(connection: Connection, keys: Collection[Key], slots: Sequence[int]) -> frozenset[int]:
    """Lock keys, in the order of `store_batch`: slots, then streams by id. Returns the ids of the streams."""
    ids, paths, _ = names_of(keys)
    async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
        await connection.execute("BEGIN")
        await connection.execute(
            "SELECT count(pg_advisory_xact_lock(%s, slot)) FROM unnest(%s) AS slot", (_NAME_LOCKS, ints(slots))
        )
        cursor = await connection.execute(_LOCK_STREAMS, (bigints(ids), byteas([encode_name(path) for path in paths])))
        return frozenset([stream_id for (stream_id,) in await cursor.fetchall()])


def names_of(keys: Collection[Key]) -> tuple[list[int], list[str], list[DocumentKey]]:
    """Keys by what they are: streams, paths, documents."""
    ids = [key for key in keys if isinstance(key, int)]
    paths = [key for key in keys if isinstance(key, str)]
    return ids, paths, [key for key in keys if isinstance(key, DocumentKey)]
