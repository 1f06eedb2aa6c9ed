"""The idempotent producer, blocking."""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from headwater import limits
from headwater.client import forking
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

if TYPE_CHECKING:
    from headwater.client.sync.stream import Stream

log = logging.getLogger(__name__)


class Producer(Owned, Unpicklable):
    """An idempotent producer: it appends messages in the background, in order, each exactly once.

    Use it as a context manager or call `close`. `append` waits only while `queue_bytes` of messages are not stored yet.
    A non-retryable error stops the producer: the next call raises it, and the delivery callbacks of all messages that
    were not stored receive it. After `fork()`, only the parent process can use it, and it sends what is queued.

    ```python
    with Client("http://127.0.0.1:4437") as client:
        visits = client.stream("visits")
        visits.create()
        with visits.producer("importer", auto_claim=True) as producer:
            for number in range(1000):
                producer.append({"visit": number})
    ```
    """

    def __init__(
        self, stream: Stream, identity: ProducerIdentity, settings: ProducerSettings, on_delivery: OnDelivery | None
    ) -> None:
        self._client = stream._client
        self._session = stream._session
        self._url = stream.url
        self._content_type = stream._known_content_type()
        self._encode = encoder_of(self._content_type)
        self._process = forking.process()
        self._box = Outbox(identity, settings, self._session.retry, on_delivery)
        self._changed = threading.Condition(threading.Lock())
        self._senders = [
            threading.Thread(target=self._send, name=f"headwater-producer-{number}", daemon=True)
            for number in range(settings.in_flight_max)
        ]
        for sender in self._senders:
            sender.start()
        atexit.register(self._at_exit)

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
        with self._changed:
            return copy.copy(self._box.metrics)

    def append(self, value: Any, on_delivery: OnDelivery | None = None) -> None:
        """Queue one message. `on_delivery` is called when it is stored or has failed, in another thread."""
        self._check_parent()
        box = self._box
        message = self._encode(value)
        with self._changed:
            if not self._is_sender():  # a delivery callback must not wait: it would wait for itself
                while box.full and box.accepts:
                    self._changed.wait()
            box.check()
            if box.add(message, on_delivery, self._session.clock()):
                self._changed.notify()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all appended messages are stored.

        Raises TimeoutError after `timeout_s`; sending continues nevertheless. Do not call it from a delivery callback:
        it would wait for itself.
        """
        self._check_parent()
        box = self._box
        if self._is_sender():
            raise RuntimeError("a delivery callback cannot wait for deliveries")
        with self._changed:
            target = box.metrics.messages
            box.flushing += 1
            try:
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: box.settled >= target, timeout_s):
                    raise TimeoutError(f"messages not stored after {timeout_s} s")
            finally:
                box.flushing -= 1
            if box.failure is not None:
                raise box.failure

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and stop the producer; later appends raise an error. The stream stays open.

        Raises TimeoutError after `timeout_s`. Messages that are not stored by then fail; their callbacks are called.
        In a forked process it has no effect: the parent sends and closes.
        """
        if not self._is_here():
            return
        with self._changed:
            self._box.close()
            self._changed.notify_all()
        if self._is_sender():
            return  # called from a delivery callback: queued messages are still sent
        try:
            self.flush(timeout_s)
        except BaseException:
            self._give_up()
            raise
        finally:
            with self._changed:
                self._box.stop()
                self._changed.notify_all()
            atexit.unregister(self._at_exit)

    def close_stream(self, final: Any = UNSET, timeout_s: float | None = None) -> None:
        """Close the stream after all appended messages, with `final` as its last message if given. Then stop.

        A retry does not repeat the close. A second call has no effect.
        """
        self._check_parent()
        box = self._box
        message = None if final is UNSET else self._encode(final)
        with self._changed:
            box.finish(message, self._session.clock())
            self._changed.notify_all()
            if self._is_sender():
                return
            if not self._changed.wait_for(lambda: box.state is not OutboxState.FINISHING, timeout_s):
                raise TimeoutError(f"the stream is not closed after {timeout_s} s")
            box.check_finished()
        self.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:  # after Ctrl-C, do not wait for a server that does not respond
            with contextlib.suppress(TimeoutError, HeadwaterError):
                self.close(limits.PRODUCER_LEAVE_S)

    def _at_exit(self) -> None:
        """At exit, send the queued messages of a producer that was not closed."""
        try:
            self.close()
        except HeadwaterError as error:
            log.error("messages were lost at exit: %s", error)

    def _check_parent(self) -> None:
        # A second process with the same id and epoch would number other messages alike, and the server drop them.
        self._check_process("what is queued is sent there. Make a producer of this process: stream.producer()")

    def _is_sender(self) -> bool:
        return threading.current_thread() in self._senders

    def _give_up(self) -> None:
        with self._changed:
            outcome = self._box.give_up(ClientError("the producer was closed before everything was stored"))
        self._notify(outcome)

    def _send(self) -> None:
        box, clock = self._box, self._session.clock
        while True:
            with self._changed:
                while (batch := box.take(clock())) is None:
                    if box.stopped:
                        return
                    self._changed.wait(box.wait_s(clock()))
            self._notify(self._deliver(batch))

    def _notify(self, outcome: BatchOutcome) -> None:
        outcome.notify()
        with self._changed:
            self._box.settled += outcome.messages
            self._changed.notify_all()

    def _deliver(self, batch: PendingBatch) -> BatchOutcome:
        box, session = self._box, self._session
        try:
            try:
                sent = self._client._run(deliver(session, self._url, self._content_type, box, batch))
            except HeadwaterError as error:
                with self._changed:
                    outcome = box.failed(batch, error, session.clock(), session.chance())
            else:
                with self._changed:
                    return box.stored(batch, sent)
            if outcome.report is not None and session.on_error is not None:
                session.on_error(outcome.report)
        except Exception as error:  # noqa: BLE001  # if a sender died, `flush` would wait forever
            with self._changed:
                return box.broken(batch, error)
        return outcome
