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
from headwater.client.aio.transport import resolved
from headwater.client.codecs import encoder_of
from headwater.client.outbox import (
    Identity,
    OnDelivery,
    Outbox,
    Outcome,
    PendingBatch,
    ProducerMetrics,
    ProducerSettings,
    deliver,
)
from headwater.errors import ClientError, HeadwaterError

if TYPE_CHECKING:
    from headwater.client.aio.stream import AsyncStream


class AsyncProducer:
    """Appends in the background, in order, each message once. Use it as a context manager or call `close`.

    `append` waits only when `queue_bytes` are on their way. An error that cannot be retried ends the producer: it is
    raised by whatever is called next, and told to the callbacks of all that was not stored.

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
        self, stream: AsyncStream, identity: Identity, settings: ProducerSettings, on_delivery: OnDelivery | None
    ) -> None:
        self._stream = stream
        self._client = stream._client
        self._session = stream._session
        self._content_type = ""
        self._encode: Callable[[Any], bytes] | None = None
        self._box = Outbox(identity, settings, self._session.retry, on_delivery)
        self._changed = asyncio.Condition()
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        """The id of the producer, given or made."""
        return self._box.id

    @property
    def epoch(self) -> int:
        """The epoch; higher than the one given if `auto_claim` had to raise it."""
        return self._box.epoch

    @property
    def metrics(self) -> ProducerMetrics:
        """The counts as of now: a copy."""
        return copy.copy(self._box.metrics)

    async def append(self, value: Any, on_delivery: OnDelivery | None = None) -> None:
        """Queue one message. `on_delivery` hears when it is stored, or why not."""
        box = self._box
        encode = self._encode or await self._learn()
        message = encode(value)
        while box.full and box.failure is None and not box.closing:
            self._pump()
            async with self._changed:
                await self._changed.wait()
        box.check()
        if box.add(message, on_delivery, self._session.clock()):
            self._pump()
            await asyncio.sleep(0)  # once a batch, so that sending goes on beside a loop that only appends

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was appended is stored. TimeoutError if that takes too long: it goes on all the same.

        Not from a delivery callback, which is a part of what is waited for.
        """
        box = self._box
        target = box.metrics.messages
        box.flushing += 1
        try:
            self._pump()
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: box.settled >= target)
        except TimeoutError:
            raise TimeoutError(f"messages still on their way after {timeout_s} s") from None
        finally:
            box.flushing -= 1
        if box.failure is not None:
            raise box.failure

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and end; appending is an error from then on. The stream itself stays open.

        What is not stored in time is given up: its callbacks are told, and it is a TimeoutError.
        """
        self._box.closing = True
        try:
            await self.flush(timeout_s)
        except BaseException:
            closed = ClientError("the producer was closed before everything was stored")
            await asyncio.shield(self._notify(self._box.give_up(closed)))
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._sending:
                task.cancel()

    async def close_stream(self, final: Any = UNSET, timeout_s: float | None = None) -> None:
        """Close the stream behind all that was appended, with `final` as its last message if given; then end.

        The close is stored once, as every message is. Calling it again changes nothing.
        """
        box = self._box
        encode = self._encode or await self._learn()
        box.finish(None if final is UNSET else encode(final), self._session.clock())
        self._pump()
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: box.stream_closed or box.failure is not None)
        except TimeoutError:
            raise TimeoutError(f"the stream is not closed after {timeout_s} s") from None
        await self.close()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:  # cancellation and the like do not wait for a server that does not answer
            with contextlib.suppress(TimeoutError, HeadwaterError):
                await self.close(limits.PRODUCER_LEAVE_S)

    async def _learn(self) -> Callable[[Any], bytes]:
        self._content_type = await self._stream._known_content_type()
        self._encode = encoder_of(self._content_type)
        return self._encode

    def _pump(self) -> None:
        """Send what is due now, and come back when the next batch will be."""
        loop, box = asyncio.get_running_loop(), self._box
        while (batch := box.take(self._session.clock())) is not None:
            task = loop.create_task(self._send(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        if self._timer is not None:
            self._timer.cancel()
        wait_s = box.wait_s(self._session.clock())
        self._timer = None if wait_s is None else loop.call_later(wait_s, self._pump)

    async def _send(self, batch: PendingBatch) -> None:
        await self._notify(await self._deliver(batch))
        self._pump()

    async def _notify(self, outcome: Outcome) -> None:
        outcome.notify()
        self._box.settled += outcome.messages
        async with self._changed:
            self._changed.notify_all()

    async def _deliver(self, batch: PendingBatch) -> Outcome:
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
        except Exception as error:  # noqa: BLE001  # a sender that died would leave everyone waiting
            return box.broken(batch, error)
        return outcome
