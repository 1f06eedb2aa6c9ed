"""The idempotent producer, asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from headwater import limits
from headwater.client import forking
from headwater.client.aio.transport import resolved
from headwater.client.codecs import encoder_of
from headwater.client.forking import Owned, Unpicklable
from headwater.client.outbox import (
    BatchOutcome,
    OnDelivery,
    Outbox,
    OutboxState,
    PendingBatch,
    ProducerIdentity,
    ProducerMetrics,
    ProducerSettings,
    deliver,
)
from headwater.errors import ClientError, HeadwaterError
from headwater.tasks import Tasks

if TYPE_CHECKING:
    from headwater.client.aio.stream import AsyncStream


class AsyncProducer(Owned, Unpicklable):
    """An idempotent producer: it appends messages in the background, in order, each exactly once.

    Use it as a context manager or call `close`. `append` waits only while `queue_bytes` of messages are not stored yet.
    A non-retryable error stops the producer: the next call raises it, and the delivery callbacks of all messages that
    were not stored receive it. After `fork()`, only the parent process can use it, and it sends what is queued.

    ```python
    async with AsyncClient("http://127.0.0.1:4437") as client:
        visits = client.stream("visits")
        await visits.create()
        async with visits.producer("importer", auto_claim=True) as producer:
            for number in range(1000):
                await producer.append({"visit": number})
    ```
    """

    def __init__(
        self,
        stream: AsyncStream,
        identity: ProducerIdentity,
        settings: ProducerSettings,
        on_delivery: OnDelivery | None,
    ) -> None:
        self._stream = stream
        self._client = stream._client
        self._session = stream._session
        self._content_type = ""
        self._encode: Callable[[Any], bytes] | None = None
        self._process = forking.process()
        self._box = Outbox(identity, settings, self._session.retry, on_delivery)
        self._changed = asyncio.Condition()
        self._sending = Tasks()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        """The id of the producer: the given one, or a generated one."""
        return self._box.id

    @property
    def epoch(self) -> int:
        """The epoch. With `auto_claim` it can be higher than the given one."""
        return self._box.epoch

    @property
    def metrics(self) -> ProducerMetrics:
        """A copy of the current counts."""
        self._check_parent()
        return copy.copy(self._box.metrics)

    async def append(self, value: Any, on_delivery: OnDelivery | None = None) -> None:
        """Queue one message. `on_delivery` is called when it is stored or has failed."""
        self._check_parent()
        box = self._box
        encode = self._encode or await self._learn()
        message = encode(value)
        while box.full and box.accepts:
            self._pump()
            async with self._changed:
                await self._changed.wait()
        box.check()
        if box.add(message, on_delivery, self._session.clock()):
            self._pump()
            await asyncio.sleep(0)  # once per batch, so that the senders run even if the caller only appends

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all appended messages are stored.

        Raises TimeoutError after `timeout_s`; sending continues nevertheless. Do not call it from a delivery callback:
        it would wait for itself.
        """
        self._check_parent()
        box = self._box
        target = box.metrics.messages
        box.flushing += 1
        try:
            self._pump()
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: box.settled >= target)
        except TimeoutError:
            raise TimeoutError(f"messages not stored after {timeout_s} s") from None
        finally:
            box.flushing -= 1
        if box.failure is not None:
            raise box.failure

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and stop the producer; later appends raise an error. The stream stays open.

        Raises TimeoutError after `timeout_s`. Messages that are not stored by then fail; their callbacks are called.
        In a forked process it has no effect: the parent sends and closes.
        """
        if not self._is_here():
            return
        self._box.close()
        try:
            await self.flush(timeout_s)
        except BaseException:
            closed = ClientError("the producer was closed before everything was stored")
            await asyncio.shield(self._notify(self._box.give_up(closed)))
            raise
        finally:
            self._box.stop()
            if self._timer is not None:
                self._timer.cancel()
            self._sending.cancel()
            await self._notify(BatchOutcome())  # `close_stream` may wait for a request that was cancelled

    async def close_stream(self, final: Any = UNSET, timeout_s: float | None = None) -> None:
        """Close the stream after all appended messages, with `final` as its last message if given. Then stop.

        A retry does not repeat the close. A second call has no effect.
        """
        self._check_parent()
        box = self._box
        encode = self._encode or await self._learn()
        box.finish(None if final is UNSET else encode(final), self._session.clock())
        self._pump()
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: box.state is not OutboxState.FINISHING)
        except TimeoutError:
            raise TimeoutError(f"the stream is not closed after {timeout_s} s") from None
        box.check_finished()
        await self.close()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:  # after a cancellation, do not wait for a server that does not respond
            with contextlib.suppress(TimeoutError, HeadwaterError):
                await self.close(limits.PRODUCER_LEAVE_S)

    def _check_parent(self) -> None:
        # A second process with the same id and epoch would number other messages alike, and the server drop them.
        self._check_process("what is queued is sent there. Make a producer of this process: stream.producer()")

    async def _learn(self) -> Callable[[Any], bytes]:
        self._content_type = await self._stream._known_content_type()
        self._encode = encoder_of(self._content_type)
        return self._encode

    def _pump(self) -> None:
        """Send the batches that are due, and set a timer for the next one."""
        loop, box = asyncio.get_running_loop(), self._box
        while (batch := box.take(self._session.clock())) is not None:
            self._sending.start(self._send(batch))
        if self._timer is not None:
            self._timer.cancel()
        wait_s = box.wait_s(self._session.clock())
        self._timer = None if wait_s is None else loop.call_later(wait_s, self._pump)

    async def _send(self, batch: PendingBatch) -> None:
        await self._notify(await self._deliver(batch))
        self._pump()

    async def _notify(self, outcome: BatchOutcome) -> None:
        outcome.notify()
        self._box.settled += outcome.messages
        async with self._changed:
            self._changed.notify_all()

    async def _deliver(self, batch: PendingBatch) -> BatchOutcome:
        box, session = self._box, self._session
        try:
            try:
                sent = await self._client._run(deliver(session, self._stream.url, self._content_type, box, batch))
            except HeadwaterError as error:
                outcome = box.failed(batch, error, session.clock(), session.chance())
            else:
                return box.stored(batch, sent)
            if outcome.report is not None and session.on_error is not None:
                await resolved(session.on_error(outcome.report))
        except Exception as error:  # noqa: BLE001  # if a sender died, `flush` would wait forever
            return box.broken(batch, error)
        return outcome
