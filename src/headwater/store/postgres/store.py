"""The store in PostgreSQL: what the contract says, from the parts beside this module."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import msgspec
import psycopg

from headwater import limits
from headwater.errors import UnavailableError
from headwater.log.moments import NEVER, Moment
from headwater.log.state import Document, StreamState
from headwater.measures import Histogram
from headwater.store.contract import (
    Commit,
    DocumentKey,
    Done,
    Due,
    Expects,
    HeldRole,
    Key,
    Moved,
    OutdatedError,
    StatePage,
    StoreReport,
)
from headwater.store.pieces import Piece, RecordEnd
from headwater.store.postgres.appends import encode_appends
from headwater.store.postgres.batches import EncodedBatch, encode_batch
from headwater.store.postgres.clock import DatabaseClock
from headwater.store.postgres.connections import (
    Connection,
    Pool,
    PostgresDatabase,
    discard,
    log,
    refusal,
    replaced,
    text_of,
)
from headwater.store.postgres.identity import Identity
from headwater.store.postgres.reading import COUNT_STREAMS, PostgresReader
from headwater.store.postgres.upkeep import PostgresUpkeep
from headwater.store.postgres.watching import Announcer, Listener, moved_since
from headwater.store.postgres.writing import UNKNOWN, Outcome, PostgresWriter, names_of
from headwater.tasks import Tasks

_HOLD = """
    INSERT INTO headwater.leases (name, server, token, until)
    VALUES (%s, %s, 1, clock_timestamp() + make_interval(secs => %s))
    ON CONFLICT (name) DO UPDATE SET server = excluded.server, until = excluded.until,
        token = headwater.leases.token + (headwater.leases.server <> excluded.server)::int
    WHERE headwater.leases.server = excluded.server OR headwater.leases.until < clock_timestamp()
    RETURNING token
"""
_RELEASE = """
    UPDATE headwater.leases SET until = '-infinity' WHERE name = %s AND server = %s AND token = %s RETURNING token
"""


class PostgresParts(msgspec.Struct, frozen=True):
    """What a store consists of."""

    database: PostgresDatabase
    server: int  # the id of this server process in the database
    pool: Pool
    writer: PostgresWriter
    announcer: Announcer
    listener: Listener
    upkeep: Callable[[Callable[[], Moment], Connection | None], PostgresUpkeep]
    identity: Identity
    clock: DatabaseClock
    connection: Connection | None  # keeps copies away until the background work has it


class PostgresStore:
    """A store in PostgreSQL, which several servers share."""

    shared = True
    latest = NEVER

    def __init__(self, parts: PostgresParts, streams: int, next_id: int = 1) -> None:
        """`next_id` is for copies; servers take ids with `reserve_id`."""
        self.streams = streams
        self.next_id = next_id
        self.full: str | None = None
        self._parts = parts
        self._reader = PostgresReader(parts.pool)
        self._tasks = Tasks()
        self._writing: asyncio.Task[None] | None = None
        self._upkeep: PostgresUpkeep | None = None
        self._background: list[asyncio.Task[None]] = []
        self._announcing: asyncio.Task[None] | None = None
        self._failed: Callable[[BaseException], None] = lambda _: None
        self._reserving: list[asyncio.Future[int]] = []
        self._seconds = Histogram()
        self._in_progress: dict[object, Done] = {}  # of the batches that were not reported yet, in their order

    @property
    def timeline(self) -> int:
        return self._parts.identity.timeline

    def wall_s(self) -> float:
        return self._parts.clock.now_s()

    @property
    def server(self) -> int:
        """The id of this server process in the database."""
        return self._parts.server

    async def start(self, failed: Callable[[BaseException], None], moment: Callable[[], Moment]) -> None:
        self._failed = failed
        self._upkeep = self._parts.upkeep(moment, self._parts.connection)
        self._announcing = asyncio.create_task(self._parts.announcer.run())
        self._background = [self._announcing, asyncio.create_task(self._upkeep.run())]
        for task in self._background:
            task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def on_replaced(self, replaced: Callable[[], None]) -> None:
        self._parts.identity.on_replaced(replaced)

    # Writes

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        # Encoded at once, because the engine changes the states after this returns.
        if any(one.record for one in batch):
            encoded = encode_appends(batch) or encode_batch(batch)
            work = self._write(encoded, self._parts.writer.write(encoded, self.timeline))
        else:
            work = self._compare(batch, self.timeline)
        key = object()
        self._in_progress[key] = done
        self._writing = self._tasks.start(self._reporting(work, key))

    async def _reporting(self, work: Coroutine[Any, Any, None], key: object) -> None:
        try:
            await work
        except BaseException as error:  # noqa: BLE001 - whatever it is, the engine has to know it
            if isinstance(error, psycopg.Error):
                error = refusal(error)
            if isinstance(error, asyncio.CancelledError):
                error = ConnectionError("the store was closed during a batch")
            self._report(key, error)
        else:
            self._report(key, None)

    def _report(self, key: object, error: BaseException | None) -> None:
        done = self._in_progress.pop(key, None)
        if done is not None:  # it was not given up
            done(error)

    def give_up(self) -> None:
        self._parts.writer.stop_waiting()
        if self._in_progress:
            self._parts.writer.cut()
            self._parts.pool.give_up()
        for key in list(self._in_progress):
            self._report(key, ConnectionError(UNKNOWN))

    async def _write(self, encoded: EncodedBatch, writing: Coroutine[Any, Any, Outcome]) -> None:
        began_s = time.perf_counter()
        outcome = await writing
        self._seconds.add(time.perf_counter() - began_s)
        self.streams += encoded.created - encoded.deleted
        self._parts.announcer.tell(encoded.moved)
        if self._upkeep is not None:
            self._upkeep.note(encoded.added)
        if outcome.outdated:
            raise OutdatedError(encoded.outdated(outcome.outdated))

    async def _compare(self, batch: Sequence[Commit], timeline: int) -> None:
        """Records without events are only compared."""
        known: dict[Key, int] = {key: -1 for commit in batch for key in commit.expects or ()}
        present = await self._reader.versions(known) if known else {}
        if self.timeline != timeline:
            raise replaced()
        outdated = [
            index
            for index, commit in enumerate(batch)
            if any(present[key] != version for key, version in (commit.expects or {}).items())
        ]
        if outdated:
            raise OutdatedError(outdated)

    async def locked(self, keys: Collection[Key]) -> dict[Key, StreamState | Document | None]:
        await self._parts.writer.lock(keys)
        ids, paths, documents = names_of(keys)
        states: dict[Any, StreamState | Document | None] = dict.fromkeys(keys)
        if ids or paths:
            states.update(await self._reader.load_many([*ids, *paths]))
        if documents:
            some = await self._reader.some_documents([one.key for one in documents])
            states.update({DocumentKey(key): document for key, document in some.items()})
        return states

    async def reserve_id(self) -> int:
        if not self._reserving:
            asyncio.get_running_loop().call_soon(lambda: self._tasks.start(self._reserve()))
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reserving.append(future)
        return await future

    async def _reserve(self) -> None:
        """Take ids for all who wait. None is taken in advance: a later one must be larger, whoever takes it."""
        futures, self._reserving = self._reserving, []
        try:
            rows = await self._parts.pool.fetch(
                "SELECT nextval('headwater.ids') FROM generate_series(1, %s)", (len(futures),)
            )
        except BaseException as error:  # noqa: BLE001 - it is passed on
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        for future, (stream_id,) in zip(futures, rows, strict=True):
            self._parts.identity.note(stream_id)
            if not future.done():
                future.set_result(stream_id)

    # Reads

    async def load(self, path: str) -> StreamState | None:
        return self._noted(await self._reader.load(path))

    async def load_id(self, stream_id: int) -> StreamState | None:
        return self._noted(await self._reader.load(stream_id))

    def _noted(self, state: StreamState | None) -> StreamState | None:
        if state is not None:
            self._parts.identity.note(state.id)
        return state

    async def changed(self, known: Expects) -> dict[Key, int]:
        return await self._reader.changed(known)

    async def read(self, stream_id: int, start: int, end: int, bytes_max: int) -> Piece:
        return await self._reader.read(stream_id, start, end, bytes_max)

    async def records(self, stream_id: int, start: int, end: int, limit: int) -> list[RecordEnd]:
        return await self._reader.records(stream_id, start, end, limit)

    async def boundary(self, stream_id: int, position: int) -> int:
        return await self._reader.boundary(stream_id, position)

    async def position_at(self, stream_id: int, start: int, at_ms: int) -> int | None:
        return await self._reader.position_at(stream_id, start, at_ms)

    async def page(self, prefix: str, after: str, limit: int) -> StatePage:
        return await self._reader.page(prefix, after, limit)

    async def due(self, after: tuple[int, int], now_ms: int, limit: int) -> Due:
        return await self._reader.due(after, now_ms, limit)

    async def document(self, key: str) -> Document | None:
        return await self._reader.document(key)

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        return await self._reader.documents(prefix, after, limit)

    # Other servers

    async def watch(self, moved: Callable[[Sequence[Moved]], None]) -> None:
        await self._parts.listener.watch(moved)

    async def moved_since(self, cursor: str) -> tuple[list[Moved], str]:
        return await moved_since(self._parts.pool, self._parts.server, self.timeline, cursor)

    async def recount(self) -> None:
        ((self.streams,),) = await self._parts.pool.fetch(COUNT_STREAMS, ())

    async def hold(self, name: str, seconds: float) -> HeldRole | None:
        asked_s = time.monotonic()
        rows = await self._parts.pool.fetch(_HOLD, (name, self._parts.server, seconds))
        left_s = seconds - (time.monotonic() - asked_s)  # it began at some time after the question
        return HeldRole(name, rows[0][0], left_s) if rows else None

    async def release(self, role: HeldRole) -> None:
        await self._parts.pool.fetch(_RELEASE, (role.name, self._parts.server, role.token))

    # The rest

    def report(self) -> StoreReport:
        failures = 0 if self._upkeep is None else self._upkeep.failures
        return StoreReport(syncs=self._seconds.copy(), fold_stuck=failures >= limits.FOLD_FAILURES_UNREADY)

    def relieve(self) -> None:
        """There is nothing in memory that could be loaded again."""

    async def pack(self) -> None:
        """Pack all small rows of streams that this server has appended to, and remove what nobody reads."""
        if self._upkeep is not None:
            await self._upkeep.finish()

    async def _end_announcements(self) -> None:
        """Let other servers know of the last batches; they look for changes themselves, but only each second."""
        if self._announcing is not None:
            self._parts.announcer.end()
            await asyncio.wait((self._announcing,), timeout=limits.POSTGRES_NOTIFY_END_S)

    async def close(self) -> None:
        """Wait for the batches in progress, but not for a database that cannot be reached."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait((self._writing,), timeout=limits.POSTGRES_RETRY_S)
        self._parts.writer.stop_waiting()
        await self._tasks.ended()
        await self._end_announcements()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._parts.listener.close()
        if self._upkeep is not None:
            await self._upkeep.close()
        elif self._parts.connection is not None:
            await discard(self._parts.connection)
        await self._parts.writer.close()
        try:
            await self._parts.pool.fetch(
                "DELETE FROM headwater.servers WHERE id = %s RETURNING id", (self._parts.server,)
            )
        except (UnavailableError, psycopg.Error) as error:
            log.warning("the row of this server was not removed: %s", text_of(error))
        await self._parts.pool.close()
