"""The notifier: the tables with NURLs, and a delivery for each NURL, which is woken when its table gets rows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import groupby

from headwater.engine import Engine
from headwater.engine.follower import Extent, StreamFollower
from headwater.engine.messages import Ended, Reason, Slice, VisibleStream
from headwater.errors import (
    HeadwaterError,
    InvalidNotifyError,
    OverloadedError,
    StreamGoneError,
    StreamNotFoundError,
    TooManyNurlsError,
)
from headwater.limits import NOTIFY_REASON_LENGTH_MAX, RETRY_AFTER_S, Limits
from headwater.protocol.tables.paths import name_of, url_fault
from headwater.protocol.trace_context import TraceContext
from headwater.server.notify.delivery import DeliveryState, NurlDelivery
from headwater.server.notify.nurl import NurlRecord, seen_again
from headwater.server.notify.registry import Registry
from headwater.server.notify.sending import Outbound, Sender
from headwater.tasks import Tasks

log = logging.getLogger("headwater.notify")


class WatchedTable:
    """A table with NURLs, and the consumer of its news: only the SeqNo of the last row counts."""

    ready = True

    def __init__(self, engine: Engine, table: VisibleStream, deleted: Callable[[WatchedTable], None]) -> None:
        self.path = table.path
        self.id = table.id
        self.follower = StreamFollower(engine, self, "notify", table, table.tail, extent=Extent.NEWS)
        self.last_seqno = table.last_seqno
        self.deliveries: dict[str, NurlDelivery] = {}  # by the name of the NURL
        self.trace: TraceContext | None = None  # of the append of the last rows
        self.next_trace: TraceContext | None = None  # of an append that is not durable yet
        self.lock = asyncio.Lock()  # held while the NURLs change
        self._deleted = deleted
        self._failure: HeadwaterError | None = None

    def open(self) -> None:
        """Follow the table, which was read just before."""
        self.follower.open()
        if self._failure is not None:
            raise self._failure
        self.last_seqno = self.follower.stream.last_seqno

    def take(self, piece: Slice) -> bool:
        if piece.last_seqno > self.last_seqno:
            self.last_seqno = piece.last_seqno
            self.trace, self.next_trace = self.next_trace, None
            for delivery in self.deliveries.values():
                delivery.wake()
        return True

    def ended(self, reason: Reason) -> None:
        if reason is Ended.DELETED:
            self._deleted(self)
        elif isinstance(reason, HeadwaterError):
            self._failure = reason


class Notifier:
    """The NURLs of all tables, and the deliveries to them. Requests change them, new rows wake them."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        outbound: Outbound,
        *,
        public_url: str | None = None,
        entropy: Callable[[], float] = random.random,
    ) -> None:
        self.limits = limits
        self.entropy = entropy
        self.now_ms = engine.now_ms
        self.sender = Sender(outbound, limits.notify_posts_max, public_url)
        self._engine = engine
        self._registry = Registry(engine)
        self._tables: dict[int, WatchedTable] = {}
        self._tasks = Tasks()
        self._running = False

    # Life

    async def start(self) -> None:
        """Watch the tables with NURLs, and send the notifications that the last process did not."""
        records = await self._registry.load()
        for table_id, group in groupby(records, key=lambda nurl: nurl.table_id):
            nurls = list(group)
            try:
                await self._resume(table_id, nurls)
            except HeadwaterError as error:
                log.error("the NURLs of a table are not notified: %s", error)
        self._running = True

    async def _resume(self, table_id: int, nurls: list[NurlRecord]) -> None:
        path = nurls[0].path
        try:
            table = await self._engine.info(path)
        except (StreamNotFoundError, StreamGoneError):
            table = None
        if table is None or table.id != table_id:
            await self._registry.forget(path, nurls)
            return
        watched = self._watch(table)
        for nurl in nurls:
            self._deliver_to(watched, nurl).resume()

    async def stop(self) -> None:
        """Cancel deliveries and record the last notified rows. Later rows are notified after a restart."""
        self._running = False
        behind: list[NurlRecord] = []
        deliveries = [delivery for watched in self._tables.values() for delivery in watched.deliveries.values()]
        for watched in self._tables.values():
            watched.follower.close()
        self._tables.clear()
        for delivery in deliveries:
            delivery.close()
        for delivery in deliveries:
            await delivery.closed()
            if delivery.nurl != delivery.stored:
                behind.append(delivery.nurl)
        await self._tasks.ended()
        if behind:
            try:
                await self._registry.update(behind)
            except HeadwaterError as error:
                log.warning("NURLs may be notified twice: %s", error)
        await self.sender.outbound.aclose()

    # Requests

    def check(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Check pairs of event type and NURL. Raises an error if the server would not call one of them."""
        for _, url in pairs:
            self.sender.outbound.parse(url)

    async def advertise(self, path: str, pairs: Iterable[tuple[str, str]], base: str) -> None:
        """Store NURLs for a table."""
        pairs = tuple(pairs)
        self.check(pairs)
        fault = url_fault(self.sender.surl(path, base))
        if fault is not None:
            raise InvalidNotifyError(f"the SURL of the table cannot be sent: {fault}")
        async with self._changing(path) as watched:
            new, changed = self._sorted(watched, pairs, base)
            if new:
                self._check_room(watched, len(new))
                if not watched.deliveries:
                    await self._registry.clear_left_over(path)
                await self._registry.add(path, new, [delivery.nurl for delivery in watched.deliveries.values()])
                for nurl in new:
                    self._deliver_to(watched, nurl).wake()
            if changed:
                await self._registry.update(changed)
                for nurl in changed:
                    watched.deliveries[nurl.name].advertised_again(nurl)

    def _sorted(
        self, watched: WatchedTable, pairs: Iterable[tuple[str, str]], base: str
    ) -> tuple[list[NurlRecord], list[NurlRecord]]:
        """The NURLs that are new, and those that are known and change."""
        new, changed, now_ms = [], [], self.now_ms()
        for event, url in pairs:
            nurl = NurlRecord(watched.path, watched.id, event, url, base, now_ms, now_ms, watched.last_seqno)
            known = watched.deliveries.get(nurl.name)
            if known is None:
                new.append(nurl)
                continue
            used = base if self.sender.public_url is None else known.nurl.base
            again = seen_again(known.nurl, now_ms, used)
            if again is not known.nurl:
                changed.append(again)
        return new, changed

    def _check_room(self, watched: WatchedTable, more: int) -> None:
        limits = self.limits
        if len(watched.deliveries) + more > limits.nurls_per_table_max:
            raise TooManyNurlsError(f"a table may have {limits.nurls_per_table_max} NURLs (nurls_per_table_max)")
        if sum([len(other.deliveries) for other in self._tables.values()]) + more > limits.nurls_max:
            raise TooManyNurlsError(f"a server may have {limits.nurls_max} NURLs (nurls_max)")

    async def withdraw(self, path: str, url: str) -> None:
        """Forget a NURL of a table, under all its event types."""
        async with self._changing(path) as watched:
            deliveries = [delivery for delivery in watched.deliveries.values() if delivery.nurl.url == url]
            await self._remove(watched, deliveries, "withdrawn")

    def traced(self, path: str, trace: TraceContext | None) -> None:
        """Set the trace of the next rows of a table, which their notifications inherit."""
        framing = self._engine.framing(path)
        watched = None if framing is None else self._tables.get(framing[0])
        if watched is not None:
            watched.next_trace = trace

    # Called by deliveries

    async def record(self, nurl: NurlRecord) -> None:
        watched = self._tables.get(nurl.table_id)
        if watched is not None:
            async with watched.lock:
                if nurl.name in watched.deliveries:
                    await self._registry.update((nurl,))

    async def drop(self, delivery: NurlDelivery, reason: str) -> None:
        watched = self._tables.get(delivery.nurl.table_id)
        if watched is None:
            return
        log.warning("NURL %s of table %r is dropped: %s", delivery.nurl.shown, name_of(watched.path), reason)
        async with watched.lock:
            if watched.deliveries.get(delivery.nurl.name) is delivery:
                await self._remove(watched, [delivery], reason)
                self._release_if_empty(watched)

    # Status

    def states(self) -> list[DeliveryState]:
        """The state of the delivery to each NURL."""
        return [delivery.state for watched in self._tables.values() for delivery in watched.deliveries.values()]

    def of_table(self, table_id: int) -> list[NurlDelivery]:
        """The deliveries to the NURLs of a table."""
        watched = self._tables.get(table_id)
        return [] if watched is None else list(watched.deliveries.values())

    # Watching

    @contextlib.asynccontextmanager
    async def _changing(self, path: str) -> AsyncIterator[WatchedTable]:
        """Watch the table at a path and lock its NURLs."""
        while True:
            table = await self._engine.info(path)
            if not self._running:  # starting or stopping
                raise OverloadedError("the notifier is about to start or to stop", retry_after_s=RETRY_AFTER_S)
            watched = self._watch(table)
            async with watched.lock:
                if self._tables.get(watched.id) is not watched:
                    continue  # released or deleted meanwhile
                try:
                    yield watched
                finally:
                    self._release_if_empty(watched)
                return

    def _watch(self, table: VisibleStream) -> WatchedTable:
        """Follow a table that was read just before."""
        watched = self._tables.get(table.id)
        if watched is None:
            watched = WatchedTable(self._engine, table, self._deleted)
            watched.open()
            self._tables[table.id] = watched
        return watched

    def _deliver_to(self, watched: WatchedTable, nurl: NurlRecord) -> NurlDelivery:
        delivery = NurlDelivery(nurl, lambda: watched.last_seqno, self, lambda: watched.trace)
        watched.deliveries[nurl.name] = delivery
        return delivery

    async def _remove(self, watched: WatchedTable, deliveries: list[NurlDelivery], reason: str) -> None:
        if deliveries:
            shown = " ".join(reason.split())[:NOTIFY_REASON_LENGTH_MAX]
            await self._registry.remove(watched.path, [delivery.nurl for delivery in deliveries], shown)
        for delivery in deliveries:
            del watched.deliveries[delivery.nurl.name]
            delivery.close()

    def _release_if_empty(self, watched: WatchedTable) -> None:
        if not watched.deliveries and self._tables.get(watched.id) is watched:
            del self._tables[watched.id]
            watched.follower.close()

    def _deleted(self, watched: WatchedTable) -> None:
        self._tables.pop(watched.id, None)
        deliveries = list(watched.deliveries.values())
        for delivery in deliveries:
            delivery.close()
        self._tasks.start(self._forget(watched.path, [delivery.nurl for delivery in deliveries]))

    def table_deleted(self, path: str) -> None:
        """Handle the deletion of a table that may have had NURLs."""
        self._tasks.start(self._forget(path, []))

    async def _forget(self, path: str, nurls: list[NurlRecord]) -> None:
        try:
            await self._registry.forget(path, nurls)
        except HeadwaterError as error:  # they are removed at the next start
            log.warning("the NURLs of a deleted table are left over: %s", error)
