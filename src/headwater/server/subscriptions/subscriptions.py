"""All subscriptions of a server, as the `PathWatch` of the engine: new data of a stream wakes those that link it."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import random
import time
import uuid
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from headwater import limits
from headwater.backoff import Backoff
from headwater.engine import Engine
from headwater.engine.messages import News
from headwater.errors import (
    HeadwaterError,
    OverloadedError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    TargetRefusedError,
    TooManySubscriptionsError,
    WebhookUrlRejectedError,
)
from headwater.log.commands import WriteDocument, WriteDocuments
from headwater.log.state import Document
from headwater.outbound import OutboundClient
from headwater.protocol.subscriptions.config import Delivery
from headwater.protocol.tables.paths import LOG_OWN_LAST
from headwater.server.auth.grants import GrantedCallers
from headwater.server.auth.scopes import Action
from headwater.server.rates import TokenBuckets
from headwater.server.subscriptions.keys import Keys
from headwater.server.subscriptions.links import stored_lives
from headwater.server.subscriptions.matching import Matcher
from headwater.server.subscriptions.records import (
    CURSORS,
    MEMBERS,
    RECORDS,
    WAKES,
    SubscriptionRecord,
    Wakes,
    decode_record,
    decode_wakes,
    encode,
    write_member,
)
from headwater.server.subscriptions.sending import WebhookSender
from headwater.server.subscriptions.subscription import RunningSubscription, SubscriptionCounts
from headwater.server.turns import in_turns
from headwater.tasks import Tasks

log = logging.getLogger("headwater.subscriptions")

_CLEARS = Backoff(limits.WEBHOOK_RETRY_FIRST_S, limits.WEBHOOK_RETRY_MAX_S)


class SubscriptionsReport(msgspec.Struct):
    statuses: Counter[tuple[Delivery, str]]
    leases: int = 0
    pending: int = 0


class _Change:
    """The lock of an id, and how many requests have it or wait for it."""

    __slots__ = ("lock", "requests")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.requests = 0


class Subscriptions:
    def __init__(
        self,
        engine: Engine,
        outbound: OutboundClient,
        callers: GrantedCallers,
        *,
        public_url: str | None = None,
        entropy: Callable[[], float] = random.random,
    ) -> None:
        self.engine = engine
        self.keys = Keys(engine)
        self.sender = WebhookSender(outbound, self.keys, engine.limits.webhook_posts_max, public_url)
        self.tasks = Tasks()
        self.posts: Tasks = Tasks()
        self.entropy = entropy
        self.counts = SubscriptionCounts()
        self.running = self.has_stopped = False
        self._is_complete = True  # all subscriptions that are stored could be read
        self.scans = asyncio.Semaphore(limits.SUBSCRIPTION_SCANS_AT_ONCE)
        self.version = 0  # of the interest in paths
        self._callers = callers
        self._by_id: dict[str, RunningSubscription] = {}
        self._ids: list[str] = []  # in order
        self._matcher: Matcher[RunningSubscription] = Matcher()
        self._by_wake_stream: dict[str, dict[RunningSubscription, None]] = {}
        self._by_identity: Counter[str] = Counter()
        self._changing: dict[str, _Change] = {}  # by the id of a subscription that is created or deleted
        rate = engine.limits.wakes_per_s_per_identity
        self._rates = TokenBuckets(rate) if rate else None
        self._late: dict[tuple[str, News], None] = {}  # news whose subscriptions are told in turns
        self._is_late_full = False  # there was more news than that
        self._is_telling_late = False

    # Life

    async def start(self) -> None:
        """Load all subscriptions. Call it before the first request."""
        await self.keys.load()
        wakes: dict[str, Document] = {}
        async for document in self.engine.all_documents(WAKES):
            wakes[document.key.removeprefix(WAKES)] = document
        members: dict[str, list[str]] = {}
        async for document in self.engine.all_documents(MEMBERS):
            life, _, path = document.key.removeprefix(MEMBERS).partition("/")
            members.setdefault(life, []).append(path)
        async for document in self.engine.all_documents(RECORDS):
            try:
                record = decode_record(document.data)
                stored = wakes.get(record.life)
                state = Wakes() if stored is None else decode_wakes(stored.data)
            except msgspec.DecodeError as error:
                log.error("document %r cannot be read, and its subscription does not run: %s", document.key, error)
                self._is_complete = False
                continue
            version = 0 if stored is None else stored.version
            state = state.in_timeline(self.engine.timeline)
            subscription = RunningSubscription(self, record, state, version, members.get(record.life, ()))
            subscription.is_created = True
            self._add(subscription)
        self.engine.watch(self)

    def begin(self) -> None:
        """Begin to wake."""
        self.running = True
        self._callers.on_change(self._rules_changed)
        self.tasks.start(self._poke_all())
        self.tasks.start(self._clear_left_over())

    async def _poke_all(self) -> None:
        async for subscription in in_turns(list(self._by_id.values()), limits.SUBSCRIPTION_NOTES_PER_TURN):
            subscription.poke()

    def _rules_changed(self) -> None:
        """Creators may read more streams than before, or fewer."""
        if self.running:
            self.tasks.start(self._look_again())

    async def _look_again(self) -> None:
        async for subscription in in_turns(list(self._by_id.values()), limits.SUBSCRIPTION_NOTES_PER_TURN):
            subscription.note_unknown()

    async def stop(self) -> None:
        self.running, self.has_stopped = False, True
        for subscription in self._by_id.values():
            subscription.stop_waiting()
        self.posts.cancel()
        await self.tasks.ended()  # what they write is not interrupted
        await self.sender.outbound.aclose()

    async def _clear_left_over(self, failures: int = 0) -> None:
        """Delete what a crash has left of deleted subscriptions, and of creates that were not completed. If a
        subscription cannot be read, nothing is deleted: its cursors may be needed when that is mended."""
        if not self._is_complete:
            return
        known = {subscription.record.life for subscription in self._by_id.values()}
        try:
            async for life in stored_lives(self.engine):
                if life not in known and not self._is_life(life):
                    await self._clear(life)
        except HeadwaterError as error:
            self._clear_later(self._clear_left_over, failures + 1, error)

    def _is_life(self, life: str) -> bool:
        return any(subscription.record.life == life for subscription in self._by_id.values())

    async def _clear(self, life: str) -> None:
        """Delete the members and cursors of a life that is over, in steps."""
        for prefix in (f"{MEMBERS}{life}/", f"{CURSORS}{life}/"):
            while page := await self.engine.documents(prefix, "", limits.SUBSCRIPTION_WRITES):
                await self.engine.execute(WriteDocuments(tuple([WriteDocument(one.key, None) for one in page])))

    # What subscriptions need

    def may(self, record: SubscriptionRecord, action: Action, path: str) -> bool:
        return self._callers.caller(record.grant).may(action, path)

    def is_wake_stream(self, path: str) -> bool:
        return path in self._by_wake_stream

    def wake_wait_s(self, record: SubscriptionRecord) -> float:
        if self._rates is None or not record.grant.identity:
            return 0.0
        now_s = time.monotonic()
        wait_s = self._rates.wait_s(record.grant.identity, 1, now_s)
        if wait_s == 0:
            self._rates.take(record.grant.identity, 1, now_s)
        return wait_s

    # The watch of the engine

    def note(self, path: str, news: News) -> bool:
        if path <= LOG_OWN_LAST:  # no stream
            return False
        named, waking = self._matcher.members(path), self._by_wake_stream.get(path, {})
        # A pattern never links a wake stream, which may get an event of each of very many subscriptions.
        matching = [] if self.is_wake_stream(path) else self._matcher.by_pattern(path, limits.SUBSCRIPTION_MATCH_STEPS)
        if matching is None or len(named) + len(waking) + len(matching) > limits.SUBSCRIPTION_NOTES_PER_TURN:
            self._note_late(path, news)
            return True
        for subscription, is_member in self._noted(path, news, named, matching):
            self._tell(subscription, path, news, is_member=is_member)
        return bool(named or matching or waking)

    def _noted(
        self,
        path: str,
        news: News,
        named: Iterable[RunningSubscription],
        matching: Iterable[RunningSubscription | None],
    ) -> Iterator[tuple[RunningSubscription | None, bool]]:
        """The subscriptions that news concern, with whether they name the stream."""
        if news is News.APPENDED:
            yield from [(subscription, True) for subscription in named]
        if news is News.CREATED:
            yield from [(subscription, False) for subscription in self._by_wake_stream.get(path, ())]
        else:
            for subscription in matching:
                yield subscription, False

    def _tell(self, subscription: RunningSubscription | None, path: str, news: News, *, is_member: bool) -> None:
        if subscription is None:
            return
        if news is News.APPENDED:
            subscription.note_append(path, is_member=is_member)
        elif news is News.CREATED:
            subscription.note_wake_stream()
        else:
            self.tasks.start(subscription.forget_cursor(path))

    @property
    def is_late(self) -> bool:
        """Whether subscriptions may not have been told yet of everything that was appended. Other servers tell them a
        little later what they have appended."""
        return self._is_telling_late or self.engine.is_shared

    # News that concern very many subscriptions, or are about a path that patterns were made for

    def _note_late(self, path: str, news: News) -> None:
        """Tell the subscriptions in turns."""
        if len(self._late) >= limits.SUBSCRIPTION_MATCHES_LATE_MAX:
            self._is_late_full = True
        else:
            self._late[path, news] = None
        if not self._is_telling_late:
            self._is_telling_late = True
            self.tasks.start(self._tell_late())

    async def _tell_late(self) -> None:
        try:
            while self._late and self.running:
                path, news = next(iter(self._late))
                del self._late[path, news]
                named, walk = list(self._matcher.members(path)), self._matcher.walk(path)
                concerned = self._noted(path, news, named, walk)
                async for subscription, is_member in in_turns(concerned, limits.SUBSCRIPTION_NOTES_PER_TURN):
                    self._tell(subscription, path, news, is_member=is_member)
            if self._is_late_full:
                self._is_late_full = False
                async for subscription in in_turns(list(self._by_id.values()), limits.SUBSCRIPTION_NOTES_PER_TURN):
                    subscription.note_unknown()
        finally:
            self._is_telling_late = False

    # Requests

    def find(self, name: str) -> RunningSubscription:
        subscription = self._by_id.get(name)
        if subscription is None or not subscription.is_created or subscription.is_deleted:
            raise SubscriptionNotFoundError(f"there is no subscription {name!r}")
        return subscription

    def page(self, prefix: str, after: str) -> Iterator[RunningSubscription]:
        """The subscriptions whose ids begin with a prefix, after an id. They may change between two of them."""
        start = max(bisect_right(self._ids, after), bisect_left(self._ids, prefix))
        while start < len(self._ids) and (name := self._ids[start]).startswith(prefix):
            subscription = self._by_id[name]
            if subscription.is_created and not subscription.is_deleted:
                yield subscription
            start = bisect_right(self._ids, name)

    async def report(self) -> SubscriptionsReport:
        """The current state of all subscriptions, for the metrics."""
        report = SubscriptionsReport(Counter())
        now_ms = self.engine.now_ms()
        async for subscription in in_turns(list(self._by_id.values()), limits.SUBSCRIPTIONS_PER_TURN):
            report.statuses[subscription.record.config.type, subscription.status] += 1
            report.pending += len(subscription.pending)
            wake = subscription.wakes.wake
            report.leases += wake is not None and wake.is_held(now_ms)
        return report

    def busiest(self, limit: int) -> list[RunningSubscription]:
        """The subscriptions with the most pending streams; of equal ones first those that a worker has."""
        running = (one for one in self._by_id.values() if one.is_created and (one.pending or one.wakes.wake))
        return heapq.nlargest(limit, running, key=lambda one: (len(one.pending), one.wakes.wake is not None))

    def check_url(self, url: str) -> None:
        """WebhookUrlRejectedError if the server does not call this URL."""
        try:
            self.sender.outbound.parse(url)
        except TargetRefusedError as error:
            raise WebhookUrlRejectedError(error.detail) from None

    async def create(self, wanted: SubscriptionRecord) -> tuple[RunningSubscription, bool]:
        """Create a subscription, or confirm it. `wanted` has no life yet. Returns whether it was created."""
        if not self.running:
            raise OverloadedError("subscriptions are about to start or to stop", retry_after_s=limits.RETRY_AFTER_S)
        async with self._changed(wanted.id):
            known = self._by_id.get(wanted.id)
            if known is not None:
                if known.record.config.hash != wanted.config.hash:
                    raise SubscriptionExistsError(f"{wanted.id!r} exists with a different configuration")
                before = known.record.grant.identity
                await known.confirm(msgspec.structs.replace(known.record, grant=wanted.grant, base=wanted.base))
                self._by_identity.subtract([before])
                self._by_identity.update([known.record.grant.identity])
                return known, False
            self._check_room(wanted)
            await self.keys.ensure()
            record = msgspec.structs.replace(wanted, life=uuid.uuid4().hex)
            subscription = RunningSubscription(self, record, Wakes(self.engine.timeline), 0, record.config.streams)
            self._add(subscription)
            try:
                await self._store(subscription)
            except BaseException:
                self._remove(subscription)
                self.tasks.start(self._clear_deleted(record.life))
                raise
        subscription.poke()
        return subscription, True

    @contextlib.asynccontextmanager
    async def _changed(self, name: str) -> AsyncIterator[None]:
        """One request at a time creates or deletes the subscription with an id."""
        change = self._changing.setdefault(name, _Change())
        change.requests += 1
        try:
            async with change.lock:
                yield
        finally:
            change.requests -= 1
            if not change.requests:
                del self._changing[name]

    def _check_room(self, wanted: SubscriptionRecord) -> None:
        bounds, identity = self.engine.limits, wanted.grant.identity
        if len(self._by_id) >= bounds.subscriptions_max:
            raise TooManySubscriptionsError(
                f"a server may have {bounds.subscriptions_max} subscriptions (subscriptions_max)"
            )
        most = bounds.subscriptions_per_identity_max
        if most and identity and self._by_identity[identity] >= most:
            raise TooManySubscriptionsError(f"a token may create {most} subscriptions (subscriptions_per_identity_max)")

    async def _store(self, subscription: RunningSubscription) -> None:
        """Write the cursors of existing streams at their tails, and then the record, with which it exists."""
        record, count = subscription.record, 0
        documents: list[WriteDocument] = []
        async for link in subscription.links.after(""):
            if link.stream is not None:
                documents += subscription.first_cursor(link.stream)
            if len(documents) >= limits.SUBSCRIPTION_WRITES:
                count += len(documents)
                if count > self.engine.limits.subscription_members_max:
                    raise TooManySubscriptionsError(
                        f"the pattern matches more than {self.engine.limits.subscription_members_max} streams with "
                        "data (subscription_members_max); use several subscriptions with narrower patterns"
                    )
                await self.engine.execute(WriteDocuments(tuple(documents)))
                documents = []
        members = [write_member(record.life, path) for path in record.config.streams]
        await self.engine.execute(WriteDocuments((*documents, *members, WriteDocument(record.key, encode(record), 0))))
        subscription.is_created = True

    async def delete(self, name: str) -> None:
        async with self._changed(name):
            subscription = self._by_id.get(name)
            if subscription is None:
                return
            await subscription.delete()
            self._remove(subscription)
            self.tasks.start(self._clear_deleted(subscription.record.life))

    async def _clear_deleted(self, life: str, failures: int = 0) -> None:
        try:
            await self._clear(life)
        except HeadwaterError as error:
            self._clear_later(partial(self._clear_deleted, life), failures + 1, error)

    def _clear_later(self, clear: Callable[[int], Coroutine[Any, Any, None]], failures: int, error: Exception) -> None:
        """Clear again after a while, for example when the disk has space; a stop leaves it to the next start."""
        wait_s = _CLEARS.wait_s(failures)
        log.info("documents of deleted subscriptions are deleted in %.0f s: %s", wait_s, error)

        def begin() -> None:
            if self.running:
                self.tasks.start(clear(failures))

        asyncio.get_running_loop().call_later(wait_s, begin)

    async def name(self, subscription: RunningSubscription, paths: tuple[str, ...]) -> None:
        """Link streams by name."""
        for path in paths:
            self._matcher.add_member(path, subscription)
        self.version += 1
        try:
            await subscription.name(paths)
        finally:
            self._match_members(subscription, paths)

    async def unname(self, subscription: RunningSubscription, path: str) -> None:
        try:
            await subscription.unname(path)
        finally:
            self._match_members(subscription, (path,))

    def _match_members(self, subscription: RunningSubscription, paths: tuple[str, ...]) -> None:
        """Let the matcher have those of the paths that are linked by name."""
        for path in paths:
            if subscription.links.is_member(path) and not subscription.is_deleted:
                self._matcher.add_member(path, subscription)
            else:
                self._matcher.remove_member(path, subscription)

    # Registering

    def _add(self, subscription: RunningSubscription) -> None:
        record = subscription.record
        self._by_id[record.id] = subscription
        insort(self._ids, record.id)
        self._by_identity[record.grant.identity] += 1
        if subscription.pattern is not None:
            self._matcher.add_pattern(subscription.pattern, subscription)
        for path in subscription.links.members:
            self._matcher.add_member(path, subscription)
        if record.config.wake_stream is not None:
            self._by_wake_stream.setdefault(record.config.wake_stream, {})[subscription] = None
        self.version += 1

    def _remove(self, subscription: RunningSubscription) -> None:
        record = subscription.record
        del self._by_id[record.id]
        del self._ids[bisect_left(self._ids, record.id)]
        self._by_identity[record.grant.identity] -= 1
        if subscription.pattern is not None:
            self._matcher.remove_pattern(subscription.pattern, subscription)
        for path in subscription.links.members:
            self._matcher.remove_member(path, subscription)
        if record.config.wake_stream is not None:
            sharing = self._by_wake_stream[record.config.wake_stream]
            del sharing[subscription]
            if not sharing:
                del self._by_wake_stream[record.config.wake_stream]
                self.note(record.config.wake_stream, News.APPENDED)  # from now on, patterns link it
