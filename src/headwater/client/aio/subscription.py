"""A handle for one subscription, and a claim of it, asyncio."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from headwater.client import subscriptions
from headwater.client.aio.worker import AsyncWorker
from headwater.client.forking import Unpicklable
from headwater.client.session import Session
from headwater.client.subscriptions import AckResult, PendingStream, SubscriptionInfo, Wake, WakeKey
from headwater.client.working import LeaseClock, WorkBatch, WorkerSettings, WorkReport, worker_name
from headwater.errors import (
    FencedError,
    OffsetGoneError,
    OffsetLostError,
    OffsetTrimmedError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.positions import BEGINNING, Position

if TYPE_CHECKING:
    from headwater.client.aio.client import AsyncClient

log = logging.getLogger("headwater.client")

T = TypeVar("T")


class AsyncSubscription:
    """A handle for one subscription: a durable cursor over streams, which wakes workers when there are events.

    It holds the URL and no other state.

    ```python
    async with AsyncClient("http://127.0.0.1:4437") as client:
        await client.stream("wake/orders").create()
        await client.stream("orders/1").create()
        orders = client.subscription("orders")
        await orders.create(pattern="orders/*", wake_stream="wake/orders")
        await client.stream("orders/1").append({"sku": "tea"})
        claim = await orders.claim("worker-1")
        async for batch in claim.batches():
            print(batch.stream, batch.messages)
            await claim.ack({batch.stream: batch.offset})
        await claim.ack({}, done=True)
    ```
    """

    def __init__(self, client: AsyncClient, id: str, session: Session) -> None:  # noqa: A002
        self._client = client
        self._session = session
        self.id = id
        self.url = subscriptions.subscription_url(session, id)

    @property
    def client(self) -> AsyncClient:
        """The client that made this handle."""
        return self._client

    async def create(
        self,
        *,
        pattern: str | None = None,
        streams: Iterable[str] = (),
        webhook_url: str | None = None,
        wake_stream: str | None = None,
        lease_s: float | None = None,
        description: str | None = None,
    ) -> bool:
        """Create the subscription over streams, or over all streams that match a pattern, or both.

        In a pattern, `*` stands for one segment of a path and `**` for any number of segments. A webhook is sent to
        `webhook_url`, or wake events are appended to `wake_stream`, a JSON stream that has to exist. Streams that exist
        are linked at their tail: their earlier events are not pending.

        Returns False if the subscription exists with the same configuration. Raises SubscriptionExistsError if it
        exists with another one.
        """
        return await self._client._run(
            subscriptions.create(
                self._session,
                self.url,
                pattern=pattern,
                streams=streams,
                webhook_url=webhook_url,
                wake_stream=wake_stream,
                lease_s=lease_s,
                description=description,
            )
        )

    async def get(self) -> SubscriptionInfo:
        """Return the configuration, the streams with their acked offsets, and the status."""
        return await self._client._run(subscriptions.get(self._session, self.url))

    async def delete(self) -> None:
        """Delete the subscription and its cursors. Claims of it end."""
        await self._client._run(subscriptions.delete(self._session, self.url))

    async def add_streams(self, streams: Iterable[str]) -> None:
        """Link more streams, each at its tail. A stream that is linked already stays as it is."""
        await self._client._run(subscriptions.add_streams(self._session, self.url, streams))

    async def remove_stream(self, stream: str) -> None:
        """Unlink a stream that was linked by its name. If the pattern matches it, it stays linked."""
        await self._client._run(subscriptions.remove_stream(self._session, self.url, stream))

    async def claim(self, worker: str) -> AsyncClaim:
        """Claim the pending events for a worker, for the time of the lease.

        Raises AlreadyClaimedError if another worker has them, and NoPendingWorkError if there are none.
        """
        sent_s = self._session.lease_clock()
        claim_id = uuid.uuid4().hex
        claimed = await self._client._run(subscriptions.claim(self._session, self.url, worker, claim_id))
        key = WakeKey(self.url, "ack", claimed.wake_id, claimed.generation, claimed.token)
        lease = LeaseClock(claimed.lease_ttl_ms / 1000, sent_s)
        return AsyncClaim(self._client, self._session, self.id, key, claimed.streams, lease)

    def answer(self, wake: Wake) -> AsyncClaim:
        """Return a claim for a webhook that was verified, to read its events and to ack them later.

        Use it if the webhook was answered without `{"done": true}`. The lease is that of the subscription; it began
        when the webhook was sent.
        """
        if wake.subscription_id != self.id:
            raise ValueError(f"the webhook is of the subscription {wake.subscription_id!r}, not of {self.id!r}")
        key = WakeKey(self.url, "callback", wake.wake_id, wake.generation, wake.callback_token)
        return AsyncClaim(self._client, self._session, self.id, key, wake.streams, None)

    def worker(
        self,
        function: Callable[[Any], Any],
        *,
        name: str | None = None,
        per: Literal["batch", "wake"] = "batch",
        type: Any = Any,  # noqa: A002
        on_report: Callable[[WorkReport], Any] | None = None,
    ) -> AsyncWorker:
        """Return a worker that calls a function with the pending events of this subscription.

        `function` gets a WorkBatch, whose messages are acked when the function returns. With `per="wake"` it gets the
        claim, and what it has read from `claim.batches()` is acked when it returns. `name` says who holds the lease; it
        must be different for each worker. `type` is the type of messages, as in `read`. `on_report` is called when a
        claim begins and ends.
        """
        settings = WorkerSettings(name=name or worker_name(), per=per, message_type=type, on_report=on_report)
        return AsyncWorker(self._client, self._session, function, settings, subscription=self.id)

    def __repr__(self) -> str:
        return f"AsyncSubscription({self.url!r})"


class AsyncClaim(Unpicklable):
    """The pending events of a subscription, which one worker has for the time of a lease.

    Each `ack` and `heartbeat` extends the lease. When the lease has ended, or another wake has begun, they raise
    FencedError: the events are no longer this worker's.
    """

    def __init__(
        self,
        client: AsyncClient,
        session: Session,
        subscription: str,
        key: WakeKey,
        streams: list[PendingStream],
        lease: LeaseClock | None,
    ) -> None:
        self._client = client
        self._session = session
        self._key = key
        self._lease = lease
        self.subscription = subscription
        self.streams = streams
        self.delivered: dict[str, str] = {}  # by stream, the offset up to which `batches` has delivered
        self.delivered_count = 0  # messages that `batches` has delivered

    @property
    def wake_id(self) -> str:
        """The id of the wake."""
        return self._key.wake_id

    @property
    def generation(self) -> int:
        """The generation of the wake. It increases with every wake of the subscription."""
        return self._key.generation

    @property
    def token(self) -> str:
        """The token for requests about this wake."""
        return self._key.token

    @property
    def lease_s(self) -> float | None:
        """The time of the lease; None for a webhook, whose body does not say it."""
        return None if self._lease is None else self._lease.lease_s

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have the events, because the lease has ended or the server said so."""
        return self._lease is not None and self._lease.is_lost(self._session.lease_clock())

    @overload
    def batches(self, *, since: Mapping[str, str] | None = None) -> AsyncGenerator[WorkBatch[Any], None]: ...

    @overload
    def batches(
        self, type: type[T], *, since: Mapping[str, str] | None = None
    ) -> AsyncGenerator[WorkBatch[T], None]: ...

    @overload
    def batches(self, type: Any, *, since: Mapping[str, str] | None = None) -> AsyncGenerator[WorkBatch[Any], None]: ...

    async def batches(
        self,
        type: Any = Any,  # noqa: A002
        *,
        since: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[WorkBatch[Any], None]:
        """Iterate over the pending events, one stream after the other, in batches as the server sends them.

        `since` has offsets by stream, up to which events were processed although they may not be acked: what is stored
        with the results. A stream is read from there if that is after its acked offset.

        Events that are appended meanwhile are not part of the claim. A stream that was deleted is skipped. One that was
        deleted and created again is read from its beginning. FencedError is raised as soon as the lease is lost.
        """
        pending = [stream for stream in self.streams if stream.has_pending]
        for number, stream in enumerate(pending, 1):
            begin = max(stream.acked_offset, (since or {}).get(stream.path, ""))
            if begin >= stream.tail_offset:  # all of it was processed
                self.delivered[stream.path] = stream.tail_offset
                continue
            async for batch in self._stream_batches(stream, begin, type, is_last=number == len(pending)):
                yield batch

    async def _stream_batches(
        self, stream: PendingStream, begin: str, message_type: Any, *, is_last: bool
    ) -> AsyncGenerator[WorkBatch[Any], None]:
        handle = self._client.stream(stream.path)
        while True:
            reader = handle.read(type=message_type, offset=begin, until=stream.tail_offset)
            try:
                async with reader:
                    async for batch in reader.batches():
                        if self.is_lost:
                            raise FencedError(f"the lease of {self.subscription!r} is lost")
                        at_end = batch.offset >= stream.tail_offset and not batch.skip
                        if not batch.skip:
                            self.delivered[stream.path] = batch.offset
                        yield self._work(stream.path, batch.items, batch.position, is_last=is_last and at_end)
                return
            except OffsetGoneError as error:
                if begin == BEGINNING or (isinstance(error, OffsetLostError) and begin != stream.acked_offset):
                    raise
                if isinstance(error, OffsetTrimmedError):
                    log.warning("%s: events of %s were trimmed unprocessed: %s", self.subscription, stream.path, error)
                begin = BEGINNING
            except (StreamNotFoundError, StreamGoneError):
                return

    def _work(self, path: str, items: list[Any], position: Position, *, is_last: bool) -> WorkBatch[Any]:
        self.delivered_count += len(items)
        return WorkBatch(self.subscription, path, items, position, self.generation, is_last)

    async def ack(self, acks: Mapping[str, str], *, done: bool = False) -> AckResult:
        """Set the acked offsets of streams: everything before them was processed. With `done`, end the claim as well.

        All offsets are set, or none. Without `done` the lease is extended.
        """
        sent_s = self._session.lease_clock()
        result = await self._client._run(subscriptions.ack(self._session, self._key, acks, done=done))
        self._extend(sent_s)
        return result

    async def heartbeat(self) -> None:
        """Extend the lease."""
        sent_s = self._session.lease_clock()
        timeout_s = self._session.timeouts.answer_s if self.lease_s is None else self.lease_s
        await self._client._run(subscriptions.heartbeat(self._session, self._key, timeout_s))
        self._extend(sent_s)

    async def release(self) -> None:
        """End the claim without further acks. If events are pending, another worker can claim them at once.

        A webhook's wake cannot be released; it ends with its lease.
        """
        if self._key.action != "ack":
            raise ValueError("the wake of a webhook cannot be released; ack it with done=True, or let its lease end")
        await self._client._run(subscriptions.release(self._session, self._key))

    def _extend(self, sent_s: float) -> None:
        if self._lease is not None:
            self._lease.extend(sent_s)

    def _heartbeat_wait_s(self) -> float | None:
        """How long to wait for the next heartbeat; None if there is nothing to extend."""
        if self._lease is None or self.is_lost:
            return None
        return max(0.0, self._lease.heartbeat_s() - self._session.lease_clock())

    def _fence(self) -> None:
        """Note that the server said that the lease is lost."""
        if self._lease is not None:
            self._lease.is_fenced = True

    def _fail_heartbeat(self) -> None:
        if self._lease is not None:
            self._lease.try_again(self._session.lease_clock())

    def __repr__(self) -> str:
        return f"AsyncClaim({self.subscription!r}, generation={self.generation})"
