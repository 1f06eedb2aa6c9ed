"""Clients of subscriptions of a simulated server: who creates them, workers and receivers of webhooks.

Workers use any wake they have ever received, so requests come late, twice, after a crash, and with tokens of
subscriptions that were deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

from headwater import limits
from headwater.engine import Engine
from headwater.engine.messages import FindRecords, Read, VisibleStream
from headwater.errors import (
    AlreadyClaimedError,
    FencedError,
    HeadwaterError,
    InvalidAckError,
    NoPendingWorkError,
    OverloadedError,
    StorageFullError,
    SubscriptionNotFoundError,
    TargetUnreachableError,
    WakeTokenError,
    WakeTokenExpiredError,
)
from headwater.log.commands import Append, Create, Delete
from headwater.log.offsets import Offset
from headwater.log.state import Document
from headwater.outbound import Answer
from headwater.protocol.streams.offsets import format_offset, parse_offset
from headwater.protocol.subscriptions.config import Ack, AckBody, ClaimBody, Delivery, SubscriptionConfig
from headwater.protocol.tables.paths import LOG_OWN_LAST
from headwater.server.auth.grants import Grant, GrantedCallers
from headwater.server.subscriptions import keys, sending, subscription, subscriptions
from headwater.server.subscriptions.records import (
    CURSORS,
    ROOT,
    StreamCursor,
    SubscriptionRecord,
    WakeStream,
    decode_cursor,
)
from headwater.server.subscriptions.subscription import RunningSubscription
from headwater.server.subscriptions.subscriptions import Subscriptions
from headwater.server.subscriptions.tokens import parse_token
from tests.fault.oracle import BrokenPromiseError
from tests.fault.subscription_oracle import Known, KnownSubscription, KnownWake, position_of
from tests.fault.world import World

T = TypeVar("T")

IDS = ("s0", "s1", "s2")
WAKE_STREAMS = ("wake/0", "wake/1")
PATTERNS = ("*", "**", "d/*", "d/**", "**/x", "fork/1", None)
PATHS = ("a", "json", "fork/1", "fork/2", "d/x", "d/y", "d/e/x")
NAMED = ("a", "json", "fork/2", "d/x", "nowhere")
JSON = "application/json"
REFUSED = (StorageFullError, OverloadedError)  # nothing was changed
CALM_S = 400.0
ANSWERS = ("done", "done", "accepted", "garbage", "failed", "failed", "error", "hang")  # of receivers


def seams(rng: random.Random) -> tuple[tuple[Any, str, Any], ...]:
    """What is patched so that a seed determines everything."""
    ids = SimpleNamespace(uuid4=lambda: uuid.UUID(int=rng.getrandbits(128)))
    return (
        (subscription, "uuid", ids),
        (subscriptions, "uuid", ids),
        (keys, "os", SimpleNamespace(urandom=rng.randbytes)),
        (keys, "_new_private", lambda: rng.randbytes(32)),
        (sending, "time", SimpleNamespace(time=lambda: 1)),
        (limits, "SUBSCRIPTION_MATCH_STEPS", rng.choice([3, 1000])),
        (limits, "SUBSCRIPTION_MATCHES_LATE_MAX", 2),
    )


class SubscriptionWorld:
    """What the users of subscriptions know, across the lives of the server."""

    def __init__(self) -> None:
        self.known: dict[str, KnownSubscription] = {}
        self.wakes: list[tuple[KnownSubscription, KnownWake]] = []  # the newest last
        self.latest_ms = 0
        self.down: set[str] = set()  # their receivers fail for so long that waits for a retry outlast a restart


class Subscribers:
    """The users of subscriptions in one life of the server, and its subscriptions."""

    def __init__(self, world: World, known: SubscriptionWorld, engine: Engine) -> None:
        self._world = world
        self._known = known
        self._random = world.random
        self._disk = world.disk
        self._engine = engine
        self._is_calm = False
        if self._random.random() < 0.5:
            known.down = {name for name in IDS if self._random.random() < 0.4}
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: list[BaseException] = []
        self.service = Subscriptions(engine, self, GrantedCallers(None), entropy=self._random.random)  # type: ignore[arg-type]

    async def start(self) -> None:
        await self.service.start()
        await self._settle()
        self.service.begin()
        clients = [self._admin, self._worker, self._worker, self._worker, self._change_wake_streams]
        self._tasks = [asyncio.ensure_future(self._repeat(client)) for client in clients]

    async def stop(self) -> None:
        """Wait until every client has its reply."""
        self._stopping = True
        _, waiting = await asyncio.wait(self._tasks, timeout=300)
        if waiting and not self._disk.crashed:
            raise BrokenPromiseError(f"{len(waiting)} users of subscriptions got no reply")

    def check(self) -> None:
        for known in self._present().values():
            if known.id in self.service._by_id:
                self._check_wakes(known, self.service._by_id[known.id])
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        if self._broken:
            raise self._broken[0]

    async def _repeat(self, client: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self._stopping:
            await asyncio.sleep(self._random.choice([0.0, 0.01, 0.05, 0.2, 1.0]))
            await client()

    def now_ms(self) -> int:
        """The latest time of the engine in any life."""
        self._known.latest_ms = max(self._known.latest_ms, self._engine.now_ms())
        return self._known.latest_ms

    async def _reply(self, work: Awaitable[T]) -> T:
        """The reply to a request. After a crash there is none."""
        try:
            reply = await work
        except HeadwaterError:
            if self._disk.crashed:
                await asyncio.sleep(1e9)
            raise
        if self._disk.crashed:
            await asyncio.sleep(1e9)
        return reply

    def _current(self, known: KnownSubscription) -> bool:
        return self._known.known.get(known.id) is known

    def _is_present(self, known: KnownSubscription) -> bool:
        return self._current(known) and known.known is Known.PRESENT

    def _wake_streams_in_use(self) -> set[str]:
        present = (known for known in self._known.known.values() if known.known is Known.PRESENT)
        return {known.config.wake_stream for known in present if known.config.wake_stream is not None}

    async def _streams(self) -> dict[str, VisibleStream]:
        streams: dict[str, VisibleStream] = {}
        after: str | None = LOG_OWN_LAST
        while after is not None:
            page = await self._engine.page("", after, 1000)
            streams.update((stream.path, stream) for stream in page.streams)
            after = page.next_after
        return streams

    async def _stream(self, path: str) -> VisibleStream | None:
        try:
            return await self._engine.info(path)
        except HeadwaterError:
            return None

    # After a start

    async def _settle(self) -> None:
        """Compare what is there after a start with what is certain."""
        streams = await self._streams()
        for name in IDS:
            known, running = self._known.known.get(name), self.service._by_id.get(name)
            if (
                known is not None
                and known.life is not None
                and running is not None
                and known.life != running.record.life
            ):
                raise BrokenPromiseError(f"subscription {name} is another one than before")
            if running is None:
                if known is not None and known.known is Known.PRESENT:
                    raise BrokenPromiseError(f"subscription {name} is lost")
                self._known.known.pop(name, None)
            elif known is None:
                raise BrokenPromiseError(f"subscription {name} exists again after its deletion")
            else:
                self._settle_one(known, running, streams)

    def _settle_one(
        self, known: KnownSubscription, running: RunningSubscription, streams: dict[str, VisibleStream]
    ) -> None:
        if known.life is None:  # it was being created
            known.life = running.record.life
            for path, stream in streams.items():
                known.link(path, stream.id, start_of(stream), stream.tail)
        known.known = Known.PRESENT
        for path in sorted(known.changing):
            known.members.discard(path)
            if running.links.is_member(path):
                known.members.add(path)
            if not known.has_glob(path):
                known.forget(path)
                if path in streams:
                    known.link(path, streams[path].id, start_of(streams[path]), streams[path].tail)
        known.changing.clear()
        if set(running.links.members) != known.members:
            raise BrokenPromiseError(f"subscription {known.id} has other members than before")
        self._check_wakes(known, running)
        known.claims = 0
        if known.wake is not None:
            known.wake.posts = 0

    def _check_wakes(self, known: KnownSubscription, running: RunningSubscription) -> None:
        """The state that the server shows is at least as new as what its users have seen."""
        state, wake = running.wakes, known.wake
        if state.generation < known.generation:
            raise BrokenPromiseError(f"subscription {known.id}: its generation is lower than before")
        known.generation = state.generation
        if (
            wake is not None
            and wake.is_surely_valid(self.now_ms())
            and (state.wake is None or state.wake.id != wake.id)
        ):
            raise BrokenPromiseError(f"subscription {known.id}: the wake in flight is lost")
        if state.wake is not None and wake is not None and state.wake.id == wake.id and state.next_attempt_ms:
            wake.next_attempt_ms = state.next_attempt_ms

    # Creating, changing, deleting

    async def _admin(self) -> None:
        absent = [name for name in IDS if name not in self._known.known]
        name = self._random.choice(absent or IDS)
        known = self._known.known.get(name)
        action = self._random.random()
        if known is None:
            await self._create(name)
        elif known.known is not Known.PRESENT:
            return
        elif action < 0.04:
            await self._delete(known)
        elif action < 0.3:
            await self._change_members(known)
        else:
            await self._observe(known)

    def _new_config(self) -> SubscriptionConfig:
        pattern = self._random.choice(PATTERNS)
        count = self._random.choice([0, 1, 2] if pattern is not None else [1, 2, 3])
        members = tuple(sorted(self._random.sample(NAMED, count)))
        lease_ms = self._random.choice([1000, 2000, 5000])
        if self._random.random() < 0.5:
            url = "https://receiver.example/hook"
            return SubscriptionConfig(Delivery.WEBHOOK, pattern, members, webhook_url=url, lease_ttl_ms=lease_ms)
        wake_stream = self._random.choice(WAKE_STREAMS)
        return SubscriptionConfig(Delivery.PULL_WAKE, pattern, members, wake_stream=wake_stream, lease_ttl_ms=lease_ms)

    async def _create(self, name: str) -> None:
        config = self._new_config()
        known = KnownSubscription(name, config, members=set(config.streams))
        before = await self._streams()
        self._known.known[name] = known
        wanted = SubscriptionRecord(name, "", config, self._engine.now_ms(), Grant(""), "http://server.example")
        try:
            running, is_new = await self._reply(self.service.create(wanted))
        except REFUSED:
            del self._known.known[name]
            return
        except HeadwaterError:
            return
        if not is_new:
            raise BrokenPromiseError(f"subscription {name} existed")
        streams = await self._streams()
        known.life = running.record.life
        for path, stream in streams.items():
            earlier = before.get(path)
            low = earlier.tail if earlier is not None and earlier.id == stream.id else start_of(stream)
            known.link(path, stream.id, low, stream.tail)
        known.known = Known.PRESENT

    async def _delete(self, known: KnownSubscription) -> None:
        known.known = Known.UNCERTAIN
        try:
            await self._reply(self.service.delete(known.id))
        except REFUSED:
            known.known = Known.PRESENT
        except HeadwaterError:
            return
        else:
            del self._known.known[known.id]

    async def _change_members(self, known: KnownSubscription) -> None:
        path = self._random.choice(NAMED)
        if path in known.changing:
            return
        known.changing.add(path)
        running = self.service.find(known.id)
        is_linked, before = known.links(path), await self._stream(path)
        removes = path in known.members
        try:
            await self._reply(self.service.unname(running, path) if removes else self.service.name(running, (path,)))
        except REFUSED:
            known.changing.discard(path)
            return
        except HeadwaterError:
            return
        (known.members.discard if removes else known.members.add)(path)
        if not known.has_glob(path) and (removes or not is_linked):
            stream = await self._stream(path)
            known.forget(path)
            if stream is not None:
                same = before is not None and before.id == stream.id
                low = min(stream.tail, before.tail) if same and before is not None else start_of(stream)
                known.link(path, stream.id, low, stream.tail)
        known.changing.discard(path)

    async def _observe(self, known: KnownSubscription) -> None:
        """Look at the state of a subscription and at all its cursors."""
        running = self.service.find(known.id)
        self._check_wakes(known, running)
        least = {key: cursor.least for key, cursor in known.cursors.items()}
        changed = dict(known.changed_at)
        async for link in running.links.after(""):
            if link.stream is None or link.path in WAKE_STREAMS or not self._is_present(known):
                continue
            if link.path in known.changing or known.changed_at.get(link.path) != changed.get(link.path):
                continue
            current = await self._stream(link.path)
            if current is None or current.id != link.stream.id:
                continue  # it was deleted in the meantime
            if not known.links(link.path):
                raise BrokenPromiseError(f"subscription {known.id} links {link.path}")
            start, key = start_of(link.stream), (link.path, link.stream.id)
            is_own = link.cursor is not None and link.cursor.id == link.stream.id
            position = link.cursor.position if link.cursor is not None and is_own else start
            known.cursor(*key, start).check(position, least.get(key, start), f"subscription {known.id}, {link.path}")
            if link.position < least.get(key, start):
                raise BrokenPromiseError(f"subscription {known.id}, {link.path}: an acked offset moved back")

    async def _change_wake_streams(self) -> None:
        path, action = self._random.choice(WAKE_STREAMS), self._random.random()
        try:
            if action < 0.7:
                await self._make_wake_stream(path)
            elif action < 0.8:
                await self._reply(self._engine.execute(Delete(path, self._engine.now_ms())))
            elif action < 0.85:
                await self._reply(self._engine.execute(Append(path, self._engine.now_ms(), b"", close=True)))
        except HeadwaterError:
            return

    async def _make_wake_stream(self, path: str) -> None:
        stream = await self._stream(path)
        if stream is None:
            kind = "text/plain" if not self._is_calm and self._random.random() < 0.1 else JSON
            await self._reply(self._engine.execute(Create(path=path, now_ms=self._engine.now_ms(), content_type=kind)))
        elif self._is_calm and (stream.closed or stream.content_type != JSON):
            await self._reply(self._engine.execute(Delete(path, self._engine.now_ms())))

    # Workers

    async def _worker(self) -> None:
        if self._random.random() < 0.35 or not self._known.wakes:
            known = self._known.known.get(self._random.choice(IDS))
            if known is not None and known.config.type is Delivery.PULL_WAKE and self._is_present(known):
                await self._claim(known)
            return
        known, wake = self._random.choice(self._known.wakes[-5:])
        is_pull = known.config.type is Delivery.PULL_WAKE
        await self._use(known, wake, release=is_pull and self._random.random() < 0.15)

    async def _claim(self, known: KnownSubscription) -> KnownWake | None:
        running, now_ms = self.service.find(known.id), self.now_ms()
        sent_ms = self._engine.now_ms()
        before, claim_id = known.wake, self._random.choice(["", "c0", "c1"])
        least = {key: cursor.least for key, cursor in known.cursors.items()}
        changed = dict(known.changed_at)
        is_free = not known.claims and not known.is_claim_lost
        is_free &= before is None or before.is_over or (not before.extending and sent_ms >= before.lease_high_ms)
        known.claims += 1
        was_lost, known.is_claim_lost = known.is_claim_lost, True
        try:
            in_flight, streams = await self._reply(running.claim(ClaimBody("worker", claim_id)))
        except AlreadyClaimedError:
            known.is_claim_lost = was_lost
            if is_free and self._is_present(known) and known.wake is before:
                raise BrokenPromiseError(f"subscription {known.id} is claimed, but nobody holds it") from None
            return None
        except (NoPendingWorkError, *REFUSED):
            known.is_claim_lost = was_lost
            return None
        except SubscriptionNotFoundError:
            if self._is_present(known):
                raise BrokenPromiseError(f"subscription {known.id} is not found") from None
            return None
        except HeadwaterError:
            return None
        finally:
            known.claims -= 1
        known.is_claim_lost = was_lost and bool(known.claims)
        wake = KnownWake(in_flight.id, in_flight.generation, running.token(in_flight), tuple(streams))
        lease_ms = known.config.lease_ttl_ms
        if (before is not None and before.id == wake.id) or (known.wake is not None and known.wake.id == wake.id):
            return known.wake  # repeated by its claim_id
        wake.lease_low_ms, wake.lease_high_ms = sent_ms + lease_ms, self._engine.now_ms() + lease_ms
        if known.wake is not None and known.wake.generation > wake.generation:
            return None  # another claim has its reply before this one
        known.see(wake, max(now_ms, self.now_ms()))
        known.wake = wake
        self._known.wakes.append((known, wake))
        if self._is_present(known):
            known.check_streams(wake, self._wake_streams_in_use())
            for stream in streams:
                if known.changed_at.get(stream.path) == changed.get(stream.path):
                    await self._check_cursor(known, stream, least)
        return wake

    async def _check_cursor(
        self, known: KnownSubscription, stream: WakeStream, least: dict[tuple[str, int], int]
    ) -> None:
        """Check the acked offset of a stream of a wake."""
        if stream.path in known.changing or stream.path in WAKE_STREAMS:
            return
        key = (stream.path, stream.tail.id)
        if key not in known.cursors:
            current = await self._stream(stream.path)
            if current is None or current.id != stream.tail.id or stream.path in known.changing:
                return
            known.cursor(*key, start_of(current))
        cursor = known.cursors[key]
        cursor.check(position_of(stream.acked), least.get(key, cursor.low), f"subscription {known.id}, {stream.path}")

    async def _choose_acks(self, known: KnownSubscription, wake: KnownWake) -> tuple[list[tuple[str, Offset]], bool]:
        """Some acks, and whether all are valid as far as the worker knows."""
        acks: list[tuple[str, Offset]] = []
        for stream in wake.streams:
            if self._random.random() < 0.3:
                continue
            current = await self._stream(stream.path)
            if current is None or current.id != stream.tail.id or stream.path in known.changing:
                continue
            known.cursor(stream.path, current.id, start_of(current))
            try:
                until = current.offset(current.tail)
                reply = await self._engine.records(FindRecords(stream.path, until=until, limit=1000))
            except HeadwaterError:
                continue
            cursor = known.cursors.get((stream.path, current.id))
            least = position_of(stream.acked) if cursor is None else cursor.least
            ends = [record.position for record in reply.records if record.position >= least]
            if ends and reply.stream.id == current.id:
                acks.append((stream.path, current.offset(self._random.choice([*ends, stream.tail.position, ends[-1]]))))
        if acks and self._random.random() < 0.15:
            path, offset = self._random.choice(acks)
            invalid = self._random.choice(
                [(path, Offset(offset.id, offset.position + 100_000)), ("not/linked", offset), (path, Offset(1, 1))]
            )
            acks.insert(self._random.randrange(len(acks) + 1), invalid)
            return acks, False
        return acks, True

    async def _use(self, known: KnownSubscription, wake: KnownWake, *, release: bool = False) -> None:
        """Ack or release a wake that may be over for long."""
        acks, are_valid = ([], True) if release else await self._choose_acks(known, wake)
        await self._send(known, wake, acks, are_valid=are_valid, release=release, done=self._random.random() < 0.4)

    async def _send(
        self,
        known: KnownSubscription,
        wake: KnownWake,
        acks: list[tuple[str, Offset]],
        *,
        are_valid: bool = True,
        release: bool = False,
        done: bool = True,
    ) -> None:
        done = done or release
        try:
            running = self.service.find(known.id)
        except SubscriptionNotFoundError:
            if self._is_present(known):
                raise BrokenPromiseError(f"subscription {known.id} is not found") from None
            return
        if running.record.is_webhook is not (known.config.type is Delivery.WEBHOOK):
            return
        sent_ms, is_pull = self._engine.now_ms(), not running.record.is_webhook
        is_fenced = not self._current(known) or wake.is_over or known.generation > wake.generation
        is_fenced |= is_pull and not wake.extending and sent_ms >= wake.lease_high_ms
        cursors = [known.cursors.get((path, offset.id)) for path, offset in acks] if are_valid else []
        for cursor, (_, offset) in zip(cursors, acks, strict=False):
            if cursor is not None:
                cursor.acked[offset.position] += 1
        wake.ending += done
        wake.extending += 1
        body = AckBody(wake.id, wake.generation, [Ack(format_offset(at), path) for path, at in acks], done)

        def refused() -> None:
            wake.ending -= done
            wake.extending -= 1
            for cursor, (_, offset) in zip(cursors, acks, strict=False):
                if cursor is not None:
                    cursor.acked[offset.position] -= 1

        try:
            if release:
                await self._reply(running.release(wake.token, body))
            else:
                await self._reply(running.ack(wake.token, body))
        except (FencedError, WakeTokenExpiredError, SubscriptionNotFoundError) as error:
            refused()
            if self._is_present(known) and wake.is_surely_valid(self.now_ms()):
                raise BrokenPromiseError(f"subscription {known.id}: a valid wake was refused: {error}") from None
        except WakeTokenError as error:
            raise BrokenPromiseError(f"subscription {known.id}: {error}") from None
        except InvalidAckError as error:
            refused()
            if are_valid:
                await self._check_refusal(known, acks, error)
        except REFUSED:
            refused()
        except HeadwaterError:
            return
        else:
            if is_fenced:
                raise BrokenPromiseError(f"subscription {known.id}: generation {wake.generation} acked after its end")
            if not are_valid:
                raise BrokenPromiseError(f"subscription {known.id}: an invalid ack was applied")
            wake.extending -= 1
            wake.is_over = wake.is_over or done
            wake.is_leased = True
            wake.lease_low_ms = max(wake.lease_low_ms, sent_ms + known.config.lease_ttl_ms)
            wake.lease_high_ms = max(wake.lease_high_ms, self._engine.now_ms() + known.config.lease_ttl_ms)
            for cursor, (path, offset) in zip(cursors, acks, strict=True):
                if cursor is not None and path not in known.changing:
                    cursor.least = max(cursor.least, offset.position)

    async def _check_refusal(
        self, known: KnownSubscription, acks: list[tuple[str, Offset]], error: InvalidAckError
    ) -> None:
        """An ack may be refused if its stream is gone or not linked any more, or another ack was faster."""
        for path, offset in acks:
            current, cursor = await self._stream(path), known.cursors.get((path, offset.id))
            if current is None or current.id != offset.id or path in known.changing or not known.links(path):
                return
            if cursor is None or any(count > 0 and at > offset.position for at, count in cursor.acked.items()):
                return
            if cursor.high > offset.position or path in WAKE_STREAMS or known.changed_at.get(path):
                return
        raise BrokenPromiseError(f"subscription {known.id}: valid acks were refused: {error}")

    # Webhooks: what the server uses of `OutboundClient`

    def parse(self, url: str) -> SimpleNamespace:
        return SimpleNamespace(host=url)

    async def aclose(self) -> None:
        """There is nothing to close."""

    async def request(self, method: str, url: str, *, body: bytes, total_s: float, **_: object) -> Answer:
        try:
            return await self._receive(body, total_s)
        except (HeadwaterError, asyncio.CancelledError):
            raise
        except BaseException as error:
            self._broken.append(error)
            raise

    async def _receive(self, body: bytes, total_s: float) -> Answer:
        message = json.loads(body)
        token = message["callback_token"]
        known = self._known.known.get(message["subscription_id"])
        life = parse_token(self.service.keys.secret, token).life
        if known is None or not self._is_present(known) or known.life != life:
            return Answer(500, {}, b"")
        wake = self._note_post(known, message)
        wake.posts += 1
        try:
            return await self._answer(known, wake, total_s)
        finally:
            wake.posts -= 1

    def _note_post(self, known: KnownSubscription, message: dict[str, Any]) -> KnownWake:
        streams = tuple(
            WakeStream(
                stream["path"],
                stream["link_type"] == "explicit",
                parse_offset(stream["acked_offset"]) if stream["acked_offset"] != "-1" else None,
                _cursor(stream["tail_offset"]),
            )
            for stream in message["streams"]
        )
        wake = KnownWake(message["wake_id"], message["generation"], message["callback_token"], streams, is_leased=False)
        before = known.wake
        known.see(wake, self.now_ms())
        if before is not None and before.id == wake.id:
            self._check_repeat(known, before, wake)
            return before
        if known.wake is not None and known.generation > wake.generation:
            raise BrokenPromiseError(f"subscription {known.id}: a webhook of an earlier generation")
        known.check_streams(wake, self._wake_streams_in_use())
        for stream in streams:
            cursor = known.cursors.get((stream.path, stream.tail.id))
            if cursor is not None and known.can_check(stream.path, wake.generation) and stream.path not in WAKE_STREAMS:
                where = f"subscription {known.id}, {stream.path}"
                cursor.check(position_of(stream.acked), cursor.least, where)
        known.wake = wake
        self._known.wakes.append((known, wake))
        return wake

    def _check_repeat(self, known: KnownSubscription, before: KnownWake, wake: KnownWake) -> None:
        where = f"subscription {known.id}, generation {wake.generation}"
        if before.streams != wake.streams:
            raise BrokenPromiseError(f"{where}: a webhook is repeated with other streams")
        if before.posts:
            raise BrokenPromiseError(f"{where}: a webhook is sent twice at the same time")
        if self._engine.now_ms() < before.next_attempt_ms:
            raise BrokenPromiseError(f"{where}: a webhook is repeated before its time")
        if before.is_over:
            raise BrokenPromiseError(f"{where}: a webhook is repeated after it was done")

    async def _answer(self, known: KnownSubscription, wake: KnownWake, total_s: float) -> Answer:
        kinds = ["failed", "error"] if known.id in self._known.down else ANSWERS
        kind = "done" if self._is_calm else self._random.choice(kinds)
        wait_s = self._random.choice([0.0, 0.0, 0.01, 0.3, 0.9])
        await asyncio.sleep(min(wait_s, total_s))
        if kind == "failed":
            return Answer(self._random.choice([404, 500, 301]), {}, b"")
        if kind == "error":
            raise TargetUnreachableError("refused")
        if kind == "hang":
            await asyncio.sleep(total_s)
            raise TargetUnreachableError("no answer")
        if kind == "done":
            wake.ending += 1
            for stream in wake.streams:
                cursor = known.cursors.get((stream.path, stream.tail.id))
                if cursor is None and stream.path not in WAKE_STREAMS:
                    cursor = known.cursor(stream.path, stream.tail.id, position_of(stream.acked))
                if cursor is not None:
                    cursor.acked[stream.tail.position] += 1
            return Answer(200, {}, b'{"done": true}')
        if not wake.is_leased:  # otherwise the lease of a callback may be the one that survives a crash
            wake.lease_low_ms = 0 if wake.extending else self._engine.now_ms() + known.config.lease_ttl_ms
        wake.is_leased = True
        wake.lease_high_ms = float("inf")
        return Answer(202, {}, b"{}" if kind == "accepted" else b'\xff{"done": tru')

    # Calm

    async def calm(self) -> None:
        """Nobody writes, and receivers and workers do their work: all events are delivered, nothing is left over."""
        self._is_calm = True
        await self._until(self._missing_wake_stream, "a wake stream cannot be created")
        await self._until(self._missing_event, "a wake event is missing")
        await self._until(self._undelivered, "events are not delivered")
        generations = {name: self.service.find(name).wakes.generation for name in self._present()}
        await asyncio.sleep(5)
        if generations != {name: self.service.find(name).wakes.generation for name in self._present()}:
            raise BrokenPromiseError("a wake began although nothing was pending")
        for known in self._present().values():
            await self._observe(known)
        await self._until(self._left_over, "documents are left over")

    async def _until(self, reason: Callable[[], Awaitable[str]], what: str) -> None:
        """Wait until there is no reason to wait."""
        waited_s = 0
        while why := await self._reply(reason()):
            if waited_s > CALM_S:
                raise BrokenPromiseError(f"{what}: {why}")
            await asyncio.sleep(1)
            waited_s += 1
            self.check()

    def _present(self) -> dict[str, KnownSubscription]:
        return {name: known for name, known in self._known.known.items() if known.known is Known.PRESENT}

    async def _pending(self, known: KnownSubscription) -> list[str]:
        """The linked streams with unacked data, by the documents of the cursors."""
        pending = []
        for path, stream in (await self._streams()).items():
            if not known.links(path) or (path in self._wake_streams_in_use() and path not in known.members):
                continue
            document = await self._engine.document(f"{CURSORS}{known.life}/{path}")
            cursor = None if document is None else decode_cursor(document.data)
            is_own = cursor is not None and cursor.id == stream.id
            if stream.tail > (cursor.position if cursor is not None and is_own else start_of(stream)):
                pending.append(path)
        return pending

    async def _missing_wake_stream(self) -> str:
        for path in WAKE_STREAMS:
            stream = await self._stream(path)
            if stream is None or stream.closed or stream.content_type != JSON:
                with contextlib.suppress(StorageFullError):
                    await self._make_wake_stream(path)
                return path
        return ""

    async def _missing_event(self) -> str:
        for known in self._present().values():
            if known.config.wake_stream is None or not await self._pending(known):
                continue
            state = self.service.find(known.id).wakes
            if state.wake is None or state.wake.holder is not None:
                return f"subscription {known.id} has no wake that can be claimed, or it is held: {state}"
            content = await self._engine.read(Read(known.config.wake_stream, bytes_max=1_000_000))
            body = {"subscription_id": known.id, "generation": state.generation}
            events = json.loads(b"[" + content.data.rstrip(b",") + b"]")
            if not any(event.items() >= body.items() for event in events):
                return f"subscription {known.id}: no event with {state.generation} in {events}"
        return ""

    async def _undelivered(self) -> str:
        for known in self._present().values():
            if known.config.wake_stream is not None:
                wake = await self._claim(known)
                if wake is not None:
                    await self._send(known, wake, [(stream.path, stream.tail) for stream in wake.streams])
            pending, state = await self._pending(known), self.service.find(known.id).wakes
            if pending or state.wake is not None:
                return f"subscription {known.id}: {pending}, {state}"
        return ""

    async def _left_over(self) -> str:
        streams = await self._streams()
        lives = {known.life or "": known for known in self._present().values()}
        after = ""
        while page := await self._engine.documents(ROOT, after, 100):
            after = page[-1].key
            for document in page:
                if not self._is_expected(document, lives, streams):
                    return document.key
        return ""

    def _is_expected(
        self, document: Document, lives: dict[str, KnownSubscription], streams: dict[str, VisibleStream]
    ) -> bool:
        kind, _, rest = document.key.removeprefix(ROOT).partition("/")
        name, _, path = rest.partition("/")
        if kind in ("keys", "record"):
            return kind == "keys" or name in self._known.known
        if name not in lives or kind == "wakes":
            return name in lives
        known = lives[name]
        if path in known.members or kind == "member":
            return path in known.members
        return path in streams and known.links(path) and decode_cursor(document.data).id == streams[path].id


def _cursor(text: str) -> StreamCursor:
    offset = parse_offset(text) or Offset(0, 0)
    return StreamCursor(offset.id, offset.position)


def start_of(stream: VisibleStream) -> int:
    """Where the own data of a stream begins."""
    return stream.lineage[-1].end if stream.lineage else 0
