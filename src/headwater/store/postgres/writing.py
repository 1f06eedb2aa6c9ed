"""Writing batches, and finding out what became of those whose connection was lost.

Each batch moves the row of this server `(id, epoch, batch)` first. After a lost connection a new one raises the epoch
in that row, which waits for the former transaction, and reads the number of the last batch that was stored. So it is
known then whether the batch in progress was stored, and a former transaction that comes later is refused. Until that
is known, nothing else is written and no outcome is reported.

A batch is sent before the answer to the one before it has arrived, on the same connection, so that PostgreSQL need not
wait for this process between them. It was decided on the states after the one before. So it is stored only if that one
was stored completely: the number of the last batch still tells the outcome of both.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from headwater import limits
from headwater.backoff import Streak
from headwater.errors import DamagedDataError, OptionError, UnavailableError
from headwater.store.contract import DocumentKey, Key, NotStoredError, RefusedError
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
from headwater.store.postgres.pipeline import WARNED, Pipeline
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
_ARGUMENTS = {StoringFunction.BATCH: 61, StoringFunction.APPENDS: 24}
_CALLS = {
    function: Statement(
        function.value.encode(),
        f"SELECT headwater.{function.value}({', '.join([f'${number}' for number in range(1, count + 1)])})",
    )
    for function, count in _ARGUMENTS.items()
}
_NUMBER = struct.Struct(">q").pack
_BOOLEANS = (b"\0", b"\1")
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

_NOT_STORED = [-1]  # what the functions return for a batch that is sent after one that was not stored completely

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


class _Turn:
    """A batch in progress, which is sent after another one."""

    __slots__ = ("ended", "epoch", "failure", "former", "is_complete", "number", "pipeline")

    def __init__(self, former: _Turn | None) -> None:
        self.former = former  # None: there was none in progress
        self.ended = asyncio.Event()
        self.is_complete = False  # whether all of it was stored
        self.failure: BaseException | None = None
        self.pipeline: Pipeline | None = None  # with which it was sent; None: it was not, or with locks
        self.number = 0
        self.epoch = 0

    @property
    def is_unknown(self) -> bool:
        """Whether it ended without an outcome."""
        return self.failure is not None and not isinstance(
            self.failure, UnavailableError | RefusedError | NotStoredError
        )


def _after_failed(former: _Turn) -> BaseException:
    """How a batch ends of which it is certain that it was not stored, unless nothing is known of the one before."""
    return former.failure if former.failure is not None and former.is_unknown else NotStoredError()


class PostgresWriter:
    """Writes batches in order."""

    def __init__(self, database: PostgresDatabase, server: int, identity: Identity) -> None:
        self._database = database
        self._server = server
        self._epoch = 0
        self._batch = 0  # the last one that is known to be stored
        self._outdated: Sequence[int] = ()  # of that one, if it was learned from the row of this server
        self._newest_sent = 0
        self._identity = identity
        self._connection: Connection | None = None
        self._pipeline: Pipeline | None = None  # on this connection
        self._newest: _Turn | None = None
        self._pids: set[int] = set()  # of connections that may have an unfinished transaction
        self._held: _Held | None = None
        self._locking = asyncio.Lock()
        self._spare: Connection | None = None  # for the next locks, because a new connection takes milliseconds
        self._warnings = 0
        self._closed = False
        self._finding: asyncio.Task[None] | None = None  # of what became of a batch
        self._sent: _Held | None = None  # the locks with which the last batch was sent
        self.reconnects = 0

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def write(self, batch: EncodedBatch, timeline: int) -> Coroutine[Any, Any, Outcome]:
        """Write a batch that was decided in a timeline, on the states after those in progress. RefusedError,
        UnavailableError and NotStoredError: it is not stored, nor will be."""
        former = self._newest
        turn = self._newest = _Turn(None if former is None or former.ended.is_set() else former)
        return self._write(turn, batch, timeline)

    async def _write(self, turn: _Turn, batch: EncodedBatch, timeline: int) -> Outcome:
        try:
            outcome = None
            if turn.former is not None:
                outcome = await self._write_after(turn, turn.former, batch, timeline)
            if outcome is None:
                outcome = await self._write_first(turn, batch, timeline)
            turn.is_complete = not outcome.outdated
            return outcome
        except BaseException as error:
            turn.failure = error
            raise
        finally:
            turn.former = None
            turn.ended.set()

    async def _write_first(self, turn: _Turn, batch: EncodedBatch, timeline: int) -> Outcome:
        """Write a batch when no other one is in progress before it."""
        give_up_s = time.monotonic() + limits.POSTGRES_RETRY_S
        while True:
            if self._connection is None:  # nothing of this batch was sent
                await self._open()
            if self._identity.timeline != timeline:
                raise replaced()
            turn.number = self._batch + 1
            held = self._sent = self._held if self._uses_held(batch) else None
            try:
                if held is None:
                    outdated = _groups(await self._send(turn, batch))
                else:
                    outdated = await self._send_with_locks(held, turn, batch)
            except (psycopg.Error, OSError, TimeoutError) as error:
                outcome = await self._after(error, held, turn.number)
                if outcome is not None:
                    return outcome
                if time.monotonic() > give_up_s:
                    raise UnavailableError(
                        f"a batch was not stored: {text_of(error)}", retry_after_s=limits.RETRY_AFTER_S
                    ) from None
            else:
                self._batch = turn.number
                return Outcome(outdated)

    async def _write_after(self, turn: _Turn, former: _Turn, batch: EncodedBatch, timeline: int) -> Outcome | None:
        """Write a batch after another one that is in progress. None: that one was stored, this one was not, and it is
        the first one now."""
        can_send = former.pipeline is not None and former.pipeline is self._pipeline and not former.ended.is_set()
        if not can_send or self._identity.timeline != timeline or self._uses_held(batch):
            await former.ended.wait()
            if not former.is_complete:
                raise _after_failed(former)
            return None
        turn.number = former.number + 1
        answer = self._send(turn, batch, is_chained=True)
        await former.ended.wait()
        if turn.epoch != self._epoch:  # the connection was lost, and what became of both was found out
            outcome = None if former.is_unknown else self._learned(turn.number)
            if outcome is None:
                raise _after_failed(former)
            return outcome
        try:
            outdated = _groups(await answer)
        except (psycopg.Error, OSError, TimeoutError) as error:
            if not former.is_complete:
                raise _after_failed(former) from None
            return await self._after(error, None, turn.number)
        if outdated == _NOT_STORED:
            raise NotStoredError
        self._batch = turn.number
        return Outcome(outdated)

    def _uses_held(self, batch: EncodedBatch) -> bool:
        held = self._held
        return held is not None and not (held.keys.isdisjoint(batch.keys) and held.slots.isdisjoint(batch.slots))

    def _send(self, turn: _Turn, batch: EncodedBatch, *, is_chained: bool = False) -> asyncio.Future[PGresult]:
        """Send a batch. `is_chained`: before the one before it has ended."""
        if self._pipeline is None:
            raise psycopg.OperationalError("the connection was lost")
        turn.pipeline, turn.epoch, self._newest_sent = self._pipeline, self._epoch, turn.number
        arguments = self._arguments(turn.number, batch, is_chained=is_chained)
        return self._pipeline.send(_CALLS[batch.function], arguments)

    def _arguments(
        self, number: int, batch: EncodedBatch, *, is_chained: bool = False, is_patient: bool = True
    ) -> list[bytes]:
        numbers = [_NUMBER(self._server), _NUMBER(self._epoch), _NUMBER(number)]
        return [*numbers, _BOOLEANS[is_chained], _BOOLEANS[is_patient], *(one.data for one in batch.arguments)]

    async def _send_with_locks(self, held: _Held, turn: _Turn, batch: EncodedBatch) -> Sequence[int]:
        """Send a batch on the connection that has locks, which end with it. Returns the groups that are outdated."""
        self._held = turn.pipeline = None
        held.expiry.cancel()
        self._newest_sent = turn.number
        is_patient = batch.keys <= held.keys and batch.slots <= held.slots
        warnings = self._warnings
        arguments = self._arguments(turn.number, batch, is_patient=is_patient)
        result = await execute(held.connection, _CALLS[batch.function], arguments)
        async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
            await held.connection.execute("COMMIT")
        if warnings != self._warnings:
            raise psycopg.OperationalError(WARNED)
        await self._keep(held.connection)
        return _groups(result)

    async def _after(self, error: BaseException, held: _Held | None, number: int) -> Outcome | None:
        """What became of a batch whose statement failed. None: it was not stored, and may be tried again."""
        connection = self._connection if held is None else held.connection
        if held is not None:
            await discard(held.connection)
        if connection is None or is_lost(connection, error):
            await self._find_out(error)
            return self._learned(number)
        if not isinstance(error, psycopg.Error):
            raise error
        if not can_repeat(error):
            raise refusal(error)
        return None

    # Unknown outcomes

    def _learned(self, number: int) -> Outcome | None:
        """What became of a batch, by the row of this server. None: it was not stored."""
        if self._batch < number:
            return None
        return Outcome(self._outdated if self._batch == number else ())

    async def _find_out(self, error: BaseException) -> None:
        """Learn which batches were stored. This waits until the database can be reached, however long that takes."""
        log.warning("the connection to %s was lost during a batch: %s", self._database.description, text_of(error))
        await self._forget()
        if self._closed:
            raise ConnectionError(UNKNOWN)
        self._finding = asyncio.create_task(self._learn())
        try:
            await self._finding
        except asyncio.CancelledError:
            if self._closed:
                raise ConnectionError(UNKNOWN) from None
            raise
        finally:
            self._finding = None

    async def _learn(self) -> None:
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
                await self._take_over(connection)
            except (psycopg.Error, OSError, TimeoutError, UnavailableError):
                await discard(connection)
                await asyncio.sleep(streak.fail(random.random()))
            except BaseException:
                await discard(connection)
                raise
            else:
                return

    async def _take_over(self, connection: Connection) -> None:
        """Refuse everything that former connections have sent, and read which batch was the last one."""
        async with asyncio.timeout(limits.POSTGRES_ANSWER_S + 5):
            await connection.execute(_END_FORMER, (self._database.name, list(self._pids)))
            await check_settings(connection)
            await prepare(connection, _CALLS.values())
            await self._identity.check(connection)
            cursor = await connection.execute(_TAKE_OVER, (self._server,), binary=True)
            row = await cursor.fetchone()
            if row is None or not self._batch <= row[1] <= self._newest_sent:
                # For PostgreSQL it is the same one if its files were set back. A copy has removed the rows of servers.
                with contextlib.suppress(OptionError):
                    await keep_copies_away(connection)
                    await self._identity.begin(connection)
        self._epoch, self._batch, outdated = self._check_nothing_is_lost(row)
        self._outdated = outdated or ()
        self._pids = {connection.info.backend_pid}
        connection.add_notice_handler(self._warned)
        self._connection, self._pipeline = connection, Pipeline(connection, lambda: self._warnings)
        self.reconnects += 1

    def _check_nothing_is_lost(self, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
        """A database without a batch that was acknowledged is an older one: of a restore, or a standby that lagged."""
        if row is None or not self._batch <= row[1] <= self._newest_sent:
            what = "does not know this server" if row is None else f"ends with batch {row[1]} of this server"
            raise DamagedDataError(
                f"{self._database.description} {what}, but batch {self._batch} was acknowledged: it was restored to an "
                "earlier state, a standby without the last transactions was promoted, or headwater copy took it while "
                "this server had no connection. Start the server again to continue with what is there"
            )
        return row

    async def _open(self) -> None:
        """Connect when nothing was sent. UnavailableError if there is no connection."""
        connection = await self._database.connect(**_PLANS)
        try:
            await self._take_over(connection)
        except (psycopg.Error, OSError, TimeoutError) as error:
            await discard(connection)
            raise UnavailableError(
                f"no connection to {self._database.description}: {text_of(error)}", retry_after_s=limits.RETRY_AFTER_S
            ) from None
        except BaseException:
            await discard(connection)
            raise

    def _warned(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            log.warning("PostgreSQL: %s", notice.message_primary)
            self._warnings += 1

    async def _forget(self) -> None:
        """Close all connections: what they do is unknown."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close(psycopg.OperationalError("the connection was lost"))
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


def _groups(result: PGresult) -> Sequence[int]:
    """What the functions return."""
    groups = result.get_value(0, 0)
    return [] if groups is None else decode_ints(groups)


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
