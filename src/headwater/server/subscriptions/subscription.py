"""One subscription: pending streams become wakes, wakes are delivered or claimed, and acks move cursors.

| wake in flight    | what ends it                                 | what happens meanwhile                            |
|-------------------|----------------------------------------------|---------------------------------------------------|
| none              | a stream is pending                          |                                                   |
| webhook, sent     | `done`, in the response or a callback        | a failure is retried with growing waits           |
| webhook, accepted | a callback with `done`; the lease ends       | callbacks ack and extend the lease                |
| pull, not claimed | a claim                                      | the wake event is written again if it may be lost |
| pull, claimed     | an ack with `done`; a release; the lease ends | acks extend the lease                            |

When a wake has ended and streams are pending, the next one begins, with a higher generation. Everything is written
before it is answered or sent. `_lock` is held while the state changes; deliveries run without it, and their outcome
counts only if their wake is still in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.engine import Engine
from headwater.engine.messages import FindRecords, VisibleStream
from headwater.errors import (
    AlreadyClaimedError,
    FencedError,
    HeadwaterError,
    InvalidAckError,
    NoPendingWorkError,
    OffsetTrimmedError,
    StoppingError,
    SubscriptionNotFoundError,
    TooManySubscriptionsError,
    WakeTokenExpiredError,
)
from headwater.log.commands import Append, WriteDocument, WriteDocuments
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.subscriptions.config import Ack, AckBody, ClaimBody
from headwater.protocol.subscriptions.patterns import parse_pattern
from headwater.server.auth.scopes import Action
from headwater.server.subscriptions.keys import Keys
from headwater.server.subscriptions.links import Link, Links, acked_position, cursor_at, is_cursor_of
from headwater.server.subscriptions.records import (
    WAKES,
    StreamCursor,
    SubscriptionRecord,
    WakeInFlight,
    Wakes,
    WakeStream,
    cursor_key,
    decode_cursor,
    encode,
    member_key,
    write_cursor,
    write_member,
)
from headwater.server.subscriptions.sending import DeliveryOutcome, WebhookSender
from headwater.server.subscriptions.tokens import WakeToken, format_token, parse_token
from headwater.server.turns import in_turns
from headwater.tasks import Tasks

log = logging.getLogger("headwater.subscriptions")

_RETRIES = Backoff(limits.WEBHOOK_RETRY_FIRST_S, limits.WEBHOOK_RETRY_MAX_S, jitter=limits.WEBHOOK_RETRY_JITTER)
_TELLS = Backoff(limits.WAKE_TOLD_AGAIN_S, limits.WAKE_TOLD_AGAIN_MAX_S)
_UNTOLD = Backoff(limits.WEBHOOK_RETRY_FIRST_S, limits.WEBHOOK_RETRY_MAX_S)


ACTIVE, FAILED = STATUSES = ("active", "failed")  # failed: a delivery or a wake event has failed and is retried


class SubscriptionHost(Protocol):
    """What a subscription needs of the others and of the server."""

    engine: Engine
    keys: Keys
    sender: WebhookSender
    tasks: Tasks
    posts: Tasks  # webhooks on their way, which a stop cancels
    entropy: Callable[[], float]
    counts: SubscriptionCounts
    running: bool  # wakes are delivered
    has_stopped: bool  # for ever: this server stops, or another one has the role
    scans: asyncio.Semaphore  # how many subscriptions look at all their links at the same time

    def may(self, record: SubscriptionRecord, action: Action, path: str) -> bool: ...

    def is_wake_stream(self, path: str) -> bool: ...

    @property
    def is_late(self) -> bool:
        """Whether subscriptions have not yet been told of everything that was appended."""

    def wake_wait_s(self, record: SubscriptionRecord) -> float:
        """How long the next wake has to wait, because its creator has had many. 0: it may begin, and is counted."""


class SubscriptionReader(Protocol):
    """A feed that follows the streams of a subscription."""

    def note(self, path: str) -> None:
        """A stream has new data."""


class SubscriptionCounts(msgspec.Struct):
    """Counts for the metrics."""

    wakes: int = 0
    acks: int = 0
    fenced: int = 0
    expired: int = 0  # leases that ended without an ack
    claims: int = 0


class RunningSubscription:
    def __init__(
        self, around: SubscriptionHost, record: SubscriptionRecord, wakes: Wakes, version: int, members: Iterable[str]
    ) -> None:
        self.record = record
        self.wakes = wakes
        self.pattern = None if record.config.pattern is None else parse_pattern(record.config.pattern)
        self.links = Links(around.engine, record.life, self.pattern, members, self._sees, self._may_read)
        self.pending: dict[str, None] = {}  # streams that may have unacked data, oldest first
        self.readers: dict[SubscriptionReader, None] = {}  # feeds that follow its streams
        self.is_created = False  # its record is durable
        self.is_deleted = False
        self._around = around
        self._engine = around.engine
        self._version = version  # of the document of `wakes`; 0: there is none
        self._lock = asyncio.Lock()
        self._is_scanned = False  # `pending` has all pending streams
        self._scanned_to = ""  # where the next scan begins
        self._left_over: dict[str, None] = {}  # deleted streams whose cursors could not be deleted yet
        self._delivering: str | None = None  # the id of the wake whose webhook is on its way
        self._post: asyncio.Task[tuple[DeliveryOutcome, str]] | None = None
        self._is_advancing = False
        self._must_advance = False
        self._timer: asyncio.TimerHandle | None = None
        self._failures = Streak(_UNTOLD)  # of writes in a row

    @property
    def is_over(self) -> bool:
        """Whether its readers are told of streams that join no more."""
        return self.is_deleted or self._around.has_stopped

    # Streams

    def _sees(self, path: str) -> bool:
        """Whether a stream that the pattern matches is linked."""
        return not self._around.is_wake_stream(path) and self._may_read(path)

    def _may_read(self, path: str) -> bool:
        return self._around.may(self.record, Action.READ, path)

    def note_append(self, path: str, *, is_member: bool) -> None:
        """A stream that the pattern matches or the subscription names has new data."""
        for reader in list(self.readers):
            reader.note(path)
        if path not in self.pending:
            if not (self._may_read(path) if is_member else self._sees(path)):
                return
            if self._is_scanned:  # otherwise the next scan finds it, in its turn
                self._keep_pending(path)
        if self.wakes.wake is None:
            self.poke()

    def _keep_pending(self, path: str) -> bool:
        """Remember that a stream is pending. False if there is no room, so that it has to be found by a scan."""
        if path not in self.pending and len(self.pending) >= limits.SUBSCRIPTION_PENDING_MAX:
            self._is_scanned = False
            return False
        self.pending.setdefault(path)
        return True

    def _take_turns(self, links: list[Link]) -> None:
        """Let other streams come before these, which are in a wake now, so that none waits for ever."""
        for link in links:
            self.pending.pop(link.path, None)
            if self._is_scanned:  # otherwise a scan finds them again, after the others
                self.pending[link.path] = None

    def note_unknown(self) -> None:
        """Any stream that the pattern matches may have new data."""
        self._is_scanned = False
        if self.wakes.wake is None:
            self.poke()

    def note_wake_stream(self) -> None:
        """The wake stream was created, or has changed."""
        wake = self.wakes.wake
        if wake is not None and wake.holder is None:
            self.poke()

    async def _find_pending(self, most: int) -> list[Link]:
        """Up to so many streams with unacked data."""
        links = await self._check_pending(most)
        while not links and not self._is_scanned:
            await self._scan()
            links = await self._check_pending(most)
        return links

    async def _scan(self) -> None:
        """Find pending streams among all links, as many as are kept. A scan goes on where the one before has ended."""
        async with self._around.scans:
            unlinked: set[str] = set()
            self._is_scanned = True  # what is appended from now on is noted
            try:
                starts = (self._scanned_to, "") if self._scanned_to else ("",)
                for start in starts:
                    if self._is_scanned:
                        await self._scan_after(start, unlinked)
                for path in sorted(unlinked):
                    await self._forget_cursor(path)
            except BaseException:
                self._is_scanned = False
                raise

    async def _scan_after(self, start: str, unlinked: set[str]) -> None:
        async for link in self.links.after(start, unlinked):
            if link.lag_bytes > 0 and not self._keep_pending(link.path):
                return
            self._scanned_to = link.path
        self._scanned_to = ""

    async def _check_pending(self, most: int) -> list[Link]:
        links: list[Link] = []
        for number, path in enumerate(list(self.pending), 1):
            if len(links) >= most:
                break
            if number % limits.SUBSCRIPTIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            link = await self.links.find(path)
            if path in self.links and link.lag_bytes > 0:
                links.append(link)
            else:
                self.pending.pop(path, None)  # nothing was awaited since the tail was read
        return links

    # Advancing

    def poke(self) -> None:
        """Do what is due, in the background."""
        self._must_advance = True
        if not self._is_advancing and self._around.running and self.is_created and not self.is_deleted:
            self._is_advancing = True
            self._around.tasks.start(self._advance_until_done())

    async def _advance_until_done(self) -> None:
        try:
            while self._must_advance and not self.is_deleted:
                self._must_advance = False
                async with self._lock:
                    await self._advance()
            self._failures.reset()
        except StoppingError:
            return
        except HeadwaterError as error:
            self._retry(error)
        except Exception as error:
            log.exception("subscription %r failed", self.record.id)
            self._retry(error)
        finally:
            self._is_advancing = False

    def _retry(self, error: Exception) -> None:
        wait_s = self._failures.fail()
        log.warning("subscription %r is retried in %.0f s: %s", self.record.id, wait_s, error)
        self._wait(wait_s)

    def _wait(self, wait_s: float) -> None:
        """Advance again after a while, and not before, unless something happens."""
        self.stop_waiting()
        if self._around.running:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self.poke)

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _advance(self) -> None:
        """Do what is due now: end an expired lease, begin a wake, retry a delivery or a wake event."""
        if self.is_deleted:
            return
        now_ms, wake = self._engine.now_ms(), self.wakes.wake
        if wake is not None and wake.lease_until_ms and not wake.is_held(now_ms) and not self.wakes.next_attempt_ms:
            self._around.counts.expired += 1
            await self._write(self.wakes.over())
            wake = None
        wait_s = 0.0
        if wake is None:
            wait_s = await self._begin()
        elif self.record.is_webhook:
            if not wake.delivered and self.wakes.next_attempt_ms <= now_ms:
                wait_s = await self._send(wake)
        elif wake.holder is None:
            await self._tell_again(wake, now_ms)
        if not self._is_scanned and not self.pending:
            await self._scan()  # for the next wake, and for those who look at the lag
        for path in list(self._left_over):
            await self._forget_cursor(path)
            self._left_over.pop(path, None)
        if wait_s:
            self._wait(wait_s)
        else:
            self._wait_for_due()

    def _wait_for_due(self) -> None:
        due_ms, wake = self.wakes.due_ms(), self.wakes.wake
        is_under_way = wake is not None and wake.id == self._delivering and not wake.delivered
        if due_ms is None or is_under_way:  # the end of a delivery advances too
            self.stop_waiting()
        else:
            self._wait((due_ms - self._engine.now_ms()) / 1000)

    async def _begin(self) -> float:
        """Begin a wake if a stream is pending. Returns how long it has to wait."""
        links = await self._find_pending(limits.WAKE_STREAMS_MAX if self.record.is_webhook else 1)
        if not links:
            return 0.0
        wait_s = self._around.wake_wait_s(self.record)
        if wait_s > 0:
            return wait_s
        wake = WakeInFlight(f"w_{uuid.uuid4().hex}", self.wakes.generation + 1, trigger=links[0].path)
        self._around.counts.wakes += 1
        if self.record.is_webhook:
            wake = msgspec.structs.replace(wake, streams=tuple([link.in_wake() for link in links]))
            await self._write(self.wakes.issued(wake))
            self._take_turns(links)
            self._deliver(wake)
        else:
            await self._tell(self.wakes.issued(wake), wake)
        return 0.0

    async def _write(self, wakes: Wakes, documents: Iterable[WriteDocument] = ()) -> None:
        """Write the state and other documents in one record."""
        await self._engine.execute(WriteDocuments((self._document(wakes), *documents)))
        self._written(wakes)

    def _document(self, wakes: Wakes) -> WriteDocument:
        return WriteDocument(WAKES + self.record.life, encode(wakes), expected=self._version)

    def _written(self, wakes: Wakes) -> None:
        self.wakes = wakes
        self._version += 1

    # Wake events

    async def _tell(self, wakes: Wakes, wake: WakeInFlight) -> None:
        """Write the state and a wake event in one record; the state alone if the wake stream cannot take the event."""
        path, now_ms = self.record.config.wake_stream or "", self._engine.now_ms()
        stream = await self.links.stream(path)
        event = {
            "type": "wake",
            "subscription_id": self.record.id,
            "stream": wake.trigger,
            "generation": wake.generation,
            "ts": now_ms,
        }
        if stream is not None and self._around.may(self.record, Action.APPEND, path):
            next_wake = msgspec.structs.replace(
                wake,
                wake_stream_id=stream.id,
                tells=wake.tells + 1,
                tell_ms=now_ms + int(_TELLS.wait_s(wake.tells + 1) * 1000),
            )
            next_wakes = msgspec.structs.replace(wakes, wake=next_wake, failures=0, last_failure=None)
            command = Append(
                path,
                now_ms,
                msgspec.json.encode(event),
                "application/json",
                documents=(self._document(next_wakes),),
                stream_id=stream.id,
            )
            try:
                await self._engine.execute(command)
            except StoppingError:
                raise
            except HeadwaterError as error:
                if error.retryable:
                    raise
                reason = f"the wake stream {path!r} does not take events: {error}"
            else:
                self._written(next_wakes)
                return
        else:
            reason = f"the wake stream {path!r} does not exist" if stream is None else f"no access to {path!r}"
        failures = self.wakes.failures + 1
        later_wake = msgspec.structs.replace(
            wake, wake_stream_id=0, tell_ms=now_ms + int(_UNTOLD.wait_s(failures) * 1000)
        )
        reason = reason[: limits.WEBHOOK_REASON_LENGTH_MAX]
        await self._write(msgspec.structs.replace(wakes, wake=later_wake, failures=failures, last_failure=reason))

    async def _tell_again(self, wake: WakeInFlight, now_ms: int) -> None:
        """Write the wake event again if it was never written, the wake stream is another one, or nobody claims it."""
        if now_ms < wake.tell_ms:
            stream = await self.links.stream(self.record.config.wake_stream or "")
            if stream is None or stream.id == wake.wake_stream_id:
                return
        if await self._find_pending(1):
            await self._tell(self.wakes, wake)
        else:
            await self._end_idle()  # for example, the stream was deleted

    async def _end_idle(self) -> None:
        """End a wake because nothing is pending, and begin the next one if something was appended meanwhile."""
        await self._write(self.wakes.over())
        self.poke()

    # Webhooks

    async def _send(self, wake: WakeInFlight) -> float:
        """Send a wake, or another one if the creator may not read all of its streams any more."""
        if self._delivering == wake.id or all(self._may_read(stream.path) for stream in wake.streams):
            self._deliver(wake)
            return 0.0
        await self._write(self.wakes.over())
        return await self._begin()

    def _deliver(self, wake: WakeInFlight) -> None:
        if self._delivering != wake.id:
            self._delivering = wake.id
            self._around.tasks.start(self._deliver_wake(wake))

    async def _deliver_wake(self, wake: WakeInFlight) -> None:
        try:
            post = self._around.sender.post(self.record, wake, self.token(wake))
            self._post = self._around.posts.start(post)
            outcome, reason = await self._post
            async with self._lock:
                if self._delivering == wake.id:
                    self._delivering = None
                if not self.is_deleted and self.wakes.wake is not None and self.wakes.wake.id == wake.id:
                    await self._delivered(self.wakes.wake, outcome, reason)
        except (StoppingError, asyncio.CancelledError):
            return
        except Exception as error:  # noqa: BLE001 - logged, and delivered again
            self._retry(error)
        else:
            self.poke()
        finally:
            if self._delivering == wake.id:
                self._delivering = None

    async def _delivered(self, wake: WakeInFlight, outcome: DeliveryOutcome, reason: str) -> None:
        """Write what the response to the webhook of the wake in flight means."""
        now_ms, ttl_ms = self._engine.now_ms(), self.record.config.lease_ttl_ms
        if outcome is DeliveryOutcome.DONE:
            cursors = await self._cursors_of(wake.streams)
            await self._write(self.wakes.succeeded().over(), cursors)
            self._around.counts.acks += len(cursors)
        elif outcome is DeliveryOutcome.ACCEPTED:
            lease_ms = max(wake.lease_until_ms, now_ms + ttl_ms)
            accepted = msgspec.structs.replace(wake, delivered=True, lease_until_ms=lease_ms)
            await self._write(msgspec.structs.replace(self.wakes.succeeded(), wake=accepted))
        elif not wake.delivered:  # otherwise a callback came, and the receiver works
            failures = self.wakes.failures + 1
            wait_ms = int(_RETRIES.wait_s(failures, self._around.entropy()) * 1000)
            level = logging.WARNING if failures == 1 else logging.INFO
            log.log(level, "the webhook of subscription %r failed: %s", self.record.id, reason)
            await self._write(
                msgspec.structs.replace(
                    self.wakes, failures=failures, last_failure=reason, next_attempt_ms=now_ms + wait_ms
                )
            )

    async def _cursors_of(self, streams: Iterable[WakeStream]) -> list[WriteDocument]:
        """The cursors after a wake whose streams are all processed. A cursor never moves back."""
        documents = []
        for sent in streams:
            link = await self.links.find(sent.path)
            if link.stream is None or sent.path not in self.links:
                continue
            position = acked_position(link.stream, sent.tail)
            if is_cursor_of(link.stream, sent.tail) and position > link.position:
                documents.append(write_cursor(self.record.life, sent.path, cursor_at(link.stream, position)))
        return documents

    # Workers

    def token(self, wake: WakeInFlight) -> str:
        until_s = self._engine.now_ms() // 1000 + limits.WAKE_TOKEN_S
        return format_token(self._around.keys.secret, WakeToken(self.record.life, wake.generation, wake.id, until_s))

    async def claim(self, body: ClaimBody) -> tuple[WakeInFlight, list[WakeStream]]:
        """Give the lease to a worker. Returns the wake and its pending streams."""
        async with self._lock:
            self._check_exists()
            now_ms, wakes = self._engine.now_ms(), self.wakes
            wake = wakes.wake
            if wake is not None and wake.is_held(now_ms) and not (body.claim_id and body.claim_id == wake.claim_id):
                raise AlreadyClaimedError(
                    f"{wake.holder!r} has claimed it", holder=wake.holder or "", generation=wake.generation
                )
            links = await self._find_pending(limits.WAKE_STREAMS_MAX)
            if not links and self._around.is_late:
                self._is_scanned = False
                links = await self._find_pending(limits.WAKE_STREAMS_MAX)
            if wake is not None and wake.is_held(now_ms):
                return wake, [link.in_wake() for link in links]  # the response to this claim was lost
            if not links:
                if wake is not None:
                    await self._end_idle()
                raise NoPendingWorkError("no linked stream has data after its acked offset")
            if wake is None or wake.holder is not None:  # nobody was told of a wake, or its lease has ended
                wake = WakeInFlight(f"w_{uuid.uuid4().hex}", wakes.generation + 1, trigger=links[0].path)
                self._around.counts.wakes += 1
            claimed = msgspec.structs.replace(
                wake,
                holder=body.worker,
                claim_id=body.claim_id,
                lease_until_ms=now_ms + self.record.config.lease_ttl_ms,
                tell_ms=0,
            )
            await self._write(wakes.issued(claimed))
            self._take_turns(links)
            self._around.counts.claims += 1
            self._wait_for_due()
            return claimed, [link.in_wake() for link in links]

    async def ack(self, token: str, body: AckBody) -> bool:
        """Apply acks, and extend the lease or end the wake. Returns whether another wake follows."""
        async with self._lock:
            wake = self._fence(token, body)
            documents = await self._checked(body.acks)
            lease_ms = self._engine.now_ms() + self.record.config.lease_ttl_ms
            held = msgspec.structs.replace(wake, delivered=True, lease_until_ms=max(wake.lease_until_ms, lease_ms))
            after = self.wakes.succeeded()
            await self._write(after.over() if body.done else msgspec.structs.replace(after, wake=held), documents)
            self._around.counts.acks += len(documents)
            if not body.done:
                self._wait_for_due()
                return False
            return await self._continue()

    async def release(self, token: str, body: AckBody) -> None:
        """End a wake without acks."""
        async with self._lock:
            self._fence(token, body)
            await self._write(self.wakes.over())
            await self._continue()

    async def _continue(self) -> bool:
        """Begin the next wake if streams are pending. What was written stays so if this fails."""
        try:
            await self._advance()
        except HeadwaterError as error:
            self._retry(error)
        return self.wakes.wake is not None

    def _fence(self, text: str, body: AckBody) -> WakeInFlight:
        """The wake that a request is about, if it is in flight and the lease has not ended."""
        self._check_exists()
        token = parse_token(self._around.keys.secret, text)
        now_ms, wake = self._engine.now_ms(), self.wakes.wake
        is_current = wake is not None and (token.life, token.generation, token.wake_id) == (
            self.record.life,
            wake.generation,
            wake.id,
        )
        if not is_current and token.until_s * 1000 <= now_ms:
            raise WakeTokenExpiredError("the token has expired")
        if wake is not None and is_current and (body.generation, body.wake_id) == (wake.generation, wake.id):
            is_leased = wake.lease_until_ms > 0
            if wake.is_held(now_ms) or (self.record.is_webhook and (not is_leased or self.wakes.next_attempt_ms)):
                return wake
        self._around.counts.fenced += 1
        self.poke()
        raise FencedError("the wake is over: it was done or released, or its lease has ended")

    async def _checked(self, acks: list[Ack]) -> list[WriteDocument]:
        """The cursors that acks set. InvalidAckError if one of them cannot be applied."""
        cursors: dict[str, tuple[int, StreamCursor]] = {}
        async for ack in in_turns(acks, limits.SUBSCRIPTIONS_PER_TURN):
            path = ack.member
            link = await self.links.find(path)
            if path not in self.links or link.stream is None:
                raise InvalidAckError(f"{path!r} is not a stream of this subscription")
            position = await self._position(link, ack.offset)
            least = cursors[path][0] if path in cursors else link.position
            if position < least:
                raise InvalidAckError(f"{path!r} is acked up to {format_offset(link.stream.offset(least))}")
            if position > link.position:  # the offset where a fork begins is its source's, and would outlive the fork
                cursors[path] = (position, cursor_at(link.stream, position))
        return [write_cursor(self.record.life, path, cursor) for path, (_, cursor) in cursors.items()]

    async def _position(self, link: Link, text: str) -> int:
        stream = link.stream
        if stream is None:
            raise InvalidAckError(f"there is no stream at {link.path!r}")
        try:
            offset = parse_offset(text)
            if offset is None or text.startswith("-"):
                raise InvalidAckError(f"an ack needs an offset of {link.path!r}, got {text[:80]!r}")
            position = stream.names.resolve(stream.tail, offset)
            if position < stream.tail:
                with contextlib.suppress(OffsetTrimmedError):  # it was read before, and nothing is left to look at
                    await self._engine.records(FindRecords(link.path, offset, limit=1))  # refuses one inside a record
        except InvalidAckError:
            raise
        except HeadwaterError as error:
            raise InvalidAckError(f"{link.path!r}: {error.detail}") from None
        return position

    def _check_exists(self) -> None:
        if self.is_deleted:
            raise SubscriptionNotFoundError(f"there is no subscription {self.record.id!r}")

    # Changes by requests

    async def name(self, paths: Iterable[str]) -> None:
        """Link streams by name, at their tails unless they are linked already."""
        async with self._lock:
            self._check_exists()
            added = [path for path in paths if not self.links.is_member(path)]
            if self.links.member_count + len(added) > self._engine.limits.subscription_members_max:
                raise TooManySubscriptionsError(
                    f"a subscription may name {self._engine.limits.subscription_members_max} streams "
                    "(subscription_members_max)"
                )
            cursors = await self.first_cursors([path for path in added if not self.links.has_by_pattern(path)])
            members = [write_member(self.record.life, path) for path in added]
            if members:
                await self._engine.execute(WriteDocuments((*members, *cursors)))
                self.links.name(added)
                self.pending.update(dict.fromkeys(added))  # what was appended meanwhile
        self.poke()

    async def unname(self, path: str) -> None:
        """Remove a link by name. A link by pattern stays, with its cursor."""
        async with self._lock:
            self._check_exists()
            documents = [WriteDocument(member_key(self.record.life, path), None)]
            if not self.links.has_by_pattern(path):
                documents.append(WriteDocument(cursor_key(self.record.life, path), None))
            await self._engine.execute(WriteDocuments(tuple(documents)))
            self.links.unname(path)
            await self._forget_in_time(path)

    async def first_cursors(self, paths: Iterable[str]) -> list[WriteDocument]:
        """The cursors of streams that are linked at their tails. An empty or missing stream needs none."""
        streams = [await self.links.stream(path) for path in paths]
        return [cursor for stream in streams if stream is not None for cursor in self.first_cursor(stream)]

    def first_cursor(self, stream: VisibleStream) -> list[WriteDocument]:
        if stream.tail <= acked_position(stream, None):
            return []
        return [write_cursor(self.record.life, stream.path, cursor_at(stream, stream.tail))]

    async def forget_cursor(self, path: str) -> None:
        """Delete the cursor of a stream that was deleted, if no stream at its path has it and it is not named."""
        async with self._lock:
            if not self.is_deleted:
                await self._forget_in_time(path)

    async def _forget_in_time(self, path: str) -> None:
        """Delete the cursor of a stream now, or later if that fails, for example because the disk is full."""
        try:
            await self._forget_cursor(path)
        except HeadwaterError as error:
            if len(self._left_over) < limits.SUBSCRIPTION_PENDING_MAX:
                self._left_over[path] = None
            else:
                self._is_scanned = False  # a scan finds it
            if not isinstance(error, StoppingError):
                self._retry(error)

    async def _forget_cursor(self, path: str) -> None:
        document = await self._engine.document(cursor_key(self.record.life, path))
        if document is None or self.links.is_member(path):
            return
        stream = await self.links.stream(path)
        if stream is None or not is_cursor_of(stream, decode_cursor(document.data)):
            await self._engine.execute(WriteDocuments((WriteDocument(document.key, None, document.version),)))

    async def confirm(self, record: SubscriptionRecord) -> None:
        """Take over the grant of the caller that has confirmed the subscription."""
        async with self._lock:
            self._check_exists()
            if record.grant != self.record.grant or record.base != self.record.base:
                await self._engine.execute(WriteDocuments((WriteDocument(record.key, encode(record)),)))
                if record.grant != self.record.grant:
                    self._is_scanned = False  # the creator may read other streams
                self.record = record
        self.poke()

    async def delete(self) -> None:
        async with self._lock:
            self._check_exists()
            documents = (WriteDocument(self.record.key, None), WriteDocument(WAKES + self.record.life, None))
            await self._engine.execute(WriteDocuments(documents))
            self.is_deleted = True
            self.stop_waiting()
            if self._post is not None:
                self._post.cancel()

    # Shown to users

    @property
    def status(self) -> str:
        return FAILED if self.wakes.failures else ACTIVE

    async def lag_bytes(self) -> int:
        """The bytes after the acked offsets of the streams that are known to be pending."""
        return sum([(await self.links.find(path)).lag_bytes for path in list(self.pending)])
