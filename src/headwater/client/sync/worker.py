# Made by `python -m tools.twins` from aio/worker.py: change that one.
"""A worker of subscriptions, blocking."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from headwater import limits
from headwater.client import subscriptions
from headwater.client.session import Session, may_succeed
from headwater.client.subscriptions import AckResult
from headwater.client.sync.background import WorkerBackground
from headwater.client.working import (
    Agenda,
    FunctionFailedError,
    WakeEvent,
    WorkerSettings,
    WorkOutcome,
    WorkReport,
)
from headwater.errors import (
    AlreadyClaimedError,
    FencedError,
    ForbiddenError,
    ForkedError,
    HeadwaterError,
    InvalidAckError,
    InvalidSubscriptionError,
    NoPendingWorkError,
    OffsetGoneError,
    ProtocolError,
    StreamClosedError,
    SubscriptionNotFoundError,
    WakeTokenError,
)
from headwater.positions import BEGINNING

if TYPE_CHECKING:
    from headwater.client.sync.client import Client
    from headwater.client.sync.stream import Stream
    from headwater.client.sync.subscription import Claim

log = logging.getLogger("headwater.client")

_LOST = (FencedError, WakeTokenError, SubscriptionNotFoundError)


class Worker(WorkerBackground):
    """A worker that claims subscriptions when they have pending events and calls a function with these.

    Every event is processed at least once. Within a stream, events are processed in order, and none after one that
    follows it was acked. If the function raises an error, the claim is released, and tried again after a backoff, by
    this worker or another one. `stop` ends the worker after the current call. After `fork()`, only the parent process
    can use it: a child that the function forks has to end itself with `os._exit`.

    ```python
    def process(batch):
        print(batch.stream, batch.messages)

    with Client("http://127.0.0.1:4437") as client:
        client.stream("wake/mail").create()
        client.stream("mail/1").create()
        client.subscription("mail").create(pattern="mail/*", wake_stream="wake/mail")
        client.stream("mail/1").append({"to": "ada"})
        worker = client.subscription("mail").worker(process)
        worker.run_once()
    ```
    """

    def __init__(
        self,
        client: Client,
        session: Session,
        function: Callable[[Any], Any],
        settings: WorkerSettings,
        *,
        subscription: str | None = None,
        wake_stream: str | None = None,
    ) -> None:
        super().__init__(function)
        self._client = client
        self._session = session
        self._settings = settings
        self._subscription = subscription  # None: all that wake through the wake stream
        self._wake_stream = wake_stream
        self._agenda = Agenda(session.chance)
        self._recheck_s = 0.0
        self._has_list = True
        self._held: Claim | None = None
        self._processed = 0  # messages of the claim that is held
        self._begun = False

    @property
    def name(self) -> str:
        """The name of the worker: who holds the lease."""
        return self._settings.name

    def run(self, *, signals: bool = False) -> None:
        """Work until `stop` is called. Raises an error that a retry does not help against.

        With `signals`, SIGTERM and SIGINT stop the worker, as `stop` does.
        """
        self._start()
        with self._signals(wanted=signals):
            stream = self._open_wake_stream()
            tail = stream.head().tail_offset
            self._survey(stream)
            self._begin(lambda: self._follow(stream, tail), self._keep_lease)
            try:
                while (subscription := self._next(stream)) is not None:
                    self._serve(subscription)
            finally:
                self.stop()
                self._end()
        if self._failure is not None:
            raise self._failure

    def run_once(self, *, signals: bool = False) -> bool:
        """Claim the subscription once and process its pending events.

        Returns False if it has none, or if another worker has it, or if the worker was stopped before all of them were
        processed. Raises the error of the function.
        """
        if self._subscription is None:
            raise ValueError("run_once needs a worker of one subscription")
        self._start()
        with self._signals(wanted=signals):
            self._begin(self._keep_lease)
            try:
                return self._serve(self._subscription, once=True)
            finally:
                self.stop()
                self._end()

    def _start(self) -> None:
        self._check_process("it works there. Make a worker of this process")
        if self._begun:
            raise RuntimeError("a worker runs once; make another one")
        self._begun = True

    # Which subscriptions have pending events

    def _open_wake_stream(self) -> Stream:
        path = self._wake_stream
        if self._subscription is not None:
            path = (self._client.subscription(self._subscription).get()).wake_stream
        if path is None:
            raise ValueError(f"the subscription {self._subscription!r} has a webhook, not a wake stream")
        self._wake_stream = path
        return self._client.stream(path)

    def _survey(self, stream: Stream) -> None:
        """Note the subscriptions that may have pending events: at the start, and about once a minute."""
        self._recheck_s = self._session.clock() + limits.WORK_RECHECK_S * (0.5 + self._session.chance())
        if self._subscription is not None:
            self._note(self._subscription)
        elif self._has_list:
            try:
                for status in self._client.subscriptions():
                    if status.wake_stream == self._wake_stream and status.pending_count and status.holder is None:
                        self._note(status.id)
            except (ProtocolError, ForbiddenError):  # another server, or a token that may not list
                self._has_list = False
                reader = stream.read(offset=BEGINNING)
                for message in reader:
                    self._wake(message)

    def _note(self, subscription: str) -> None:
        with self._lock:
            self._agenda.add(subscription, self._session.clock())

    def _wake(self, message: object) -> None:
        try:
            event = msgspec.convert(message, WakeEvent)
        except msgspec.ValidationError as error:
            log.warning("worker %s: %s has a message that is not a wake event: %s", self.name, self._wake_stream, error)
            return
        if self._subscription in (None, event.subscription_id):
            with self._lock:
                self._agenda.wake(event, self._session.clock())

    def _follow(self, stream: Stream, offset: str) -> None:
        """Follow the wake stream from an offset until the worker ends."""
        while not self._stopping:
            reader = self._reader = stream.read(offset=offset, live=True)
            if self._is_stopping():  # the reader before it was closed, but not this one
                return
            try:
                with reader:
                    for batch in reader.batches():
                        for message in batch.items:
                            self._wake(message)
                        self._news.set()
                if not self._stopping:
                    raise StreamClosedError(
                        f"the wake stream {self._wake_stream!r} is closed, so nothing wakes workers"
                    )
            except OffsetGoneError:  # the wake stream was created again, so events were lost
                offset = stream.head().tail_offset
                self._recheck_s = 0.0
                self._news.set()

    def _next(self, stream: Stream) -> str | None:
        """Wait for the next subscription to claim; None if the worker ends."""
        while not self._stopping and self._failure is None:
            self._news.clear()
            now_s = self._session.clock()
            if now_s >= self._recheck_s:
                self._recheck(stream)
            with self._lock:
                subscription = self._agenda.take(now_s)
                wait_s = self._agenda.wait_s(now_s)
            if subscription is not None:
                return subscription
            until_recheck_s = self._recheck_s - now_s
            if not self._stopping and self._failure is None:
                self._news.wait(until_recheck_s if wait_s is None else min(wait_s, until_recheck_s))
        return None

    def _recheck(self, stream: Stream) -> None:
        try:
            self._survey(stream)
        except HeadwaterError as error:
            if not may_succeed(error):
                raise
            log.warning("worker %s: cannot look for pending events: %s", self.name, error)

    # One claim

    def _serve(self, subscription: str, *, once: bool = False) -> bool:
        """Claim a subscription and process its events. Returns whether all were processed."""
        claim = self._claim(subscription, once=once)
        if claim is None:
            return False
        self._held, self._processed = claim, 0
        self._beats.set()
        try:
            self._report("claimed", claim)
            return self._work_on(claim)
        except _LOST as error:
            with self._lock:
                self._agenda.lost(subscription)
            self._report("lease lost", claim, error)
        except ForkedError:
            raise
        except (FunctionFailedError, HeadwaterError) as error:
            reason = error.__cause__ if isinstance(error, FunctionFailedError) else error
            if once and reason is not None:
                self._release(claim)
                raise reason from None
            self._fail(claim, reason)
        except BaseException:
            self._release(claim, attempts_max=1)
            raise
        finally:
            self._held = None
            self._beats.set()
        return False

    def _claim(self, subscription: str, *, once: bool) -> Claim | None:
        """Claim a subscription; None if it cannot be claimed now."""
        try:
            claim = self._client.subscription(subscription).claim(self.name)
        except (AlreadyClaimedError, NoPendingWorkError) as error:
            generation = error.generation if isinstance(error, AlreadyClaimedError) else None
            with self._lock:
                self._agenda.taken(subscription, generation)
            return None
        except HeadwaterError as error:
            if once or not self._is_passed_over(subscription, error):
                raise
            return None
        with self._lock:
            self._agenda.claimed(subscription, claim.generation)
        return claim

    def _is_passed_over(self, subscription: str, error: HeadwaterError) -> bool:
        """Whether the worker goes on after a claim that failed: with other subscriptions, or with this one later."""
        report = WorkReport("refused", subscription, self.name, error=error)
        if isinstance(error, (SubscriptionNotFoundError, ForbiddenError, InvalidSubscriptionError)):
            if self._subscription is not None:
                return False
            with self._lock:
                self._agenda.forget(subscription)
        elif may_succeed(error):
            with self._lock:
                delay_s = self._agenda.failed(subscription, self._session.clock())
            report = WorkReport("failed", subscription, self.name, error=error, delay_s=delay_s)
        else:
            return False
        log.warning("worker %s: %s", self.name, report)
        self._hand_out(self._settings.on_report, report)
        return True

    def _work_on(self, claim: Claim) -> bool:
        """Call the function with the events of a claim. Returns whether all were processed and acked."""
        if self._settings.per == "wake":
            self._call_function(claim)
            self._processed = claim.delivered_count
            result: AckResult | None = self._ack(claim, claim.delivered, done=True)
        else:
            result = self._work_on_batches(claim)
        if result is None:
            self._release(claim)
            self._report("handed over", claim)
            return False
        if result.next_wake and not claim.delivered:  # the events cannot be read; do not claim them in a loop
            self._fail(claim, ProtocolError("events are pending, but none were read"), release=False)
            return False
        with self._lock:
            self._agenda.done(claim.subscription, self._session.clock(), again=result.next_wake is not False)
        self._report("done", claim)
        return True

    def _work_on_batches(self, claim: Claim) -> AckResult | None:
        """Call the function with each batch and ack it. None if the worker was stopped before the end."""
        with contextlib.closing(claim.batches(self._settings.message_type)) as batches:
            for batch in batches:
                if self._stopping:
                    return None
                if batch.messages:
                    self._call_function(batch)
                    self._processed += len(batch.messages)
                if batch.position.skip:  # a part of a response; the server has no offset for it
                    continue
                result = self._ack(claim, {batch.stream: batch.offset}, done=batch.is_last)
                if batch.is_last:
                    return result
        return claim.ack({}, done=True)

    def _ack(self, claim: Claim, acks: Mapping[str, str], *, done: bool) -> AckResult:
        """Ack what was processed. Streams that were deleted meanwhile, perhaps by the function, are left out: the
        server refuses all acks of a request if it refuses one."""
        try:
            return claim.ack(acks, done=done)
        except InvalidAckError:
            there = self._client._run(subscriptions.existing(self._session, acks))
            if len(there) == len(acks):
                raise
        return claim.ack(there, done=done)

    def _fail(self, claim: Claim, reason: BaseException | None, *, release: bool = True) -> None:
        with self._lock:
            delay_s = self._agenda.failed(claim.subscription, self._session.clock())
        if release:
            self._release(claim)
        self._report("failed", claim, reason, delay_s)

    def _release(self, claim: Claim, *, attempts_max: int | None = None) -> None:
        """Release a claim. If that fails, its lease ends later."""
        if not self._is_here():  # a child process that the function has forked; the parent goes on
            return
        try:
            self._client._run(subscriptions.release(self._session, claim._key, attempts_max=attempts_max))
        except HeadwaterError as error:
            log.warning("worker %s: %s could not be released: %s", self.name, claim.subscription, error)

    def _report(
        self, outcome: WorkOutcome, claim: Claim, error: BaseException | None = None, delay_s: float = 0.0
    ) -> None:
        report = WorkReport(outcome, claim.subscription, self.name, claim.generation, self._processed, error, delay_s)
        if error is None:
            log.debug("worker %s: %s", self.name, report)
        else:
            is_of_function = not isinstance(error, HeadwaterError)
            log.warning("worker %s: %s", self.name, report, exc_info=error if is_of_function else None)
        self._hand_out(self._settings.on_report, report)

    # Heartbeats

    def _keep_lease(self) -> None:
        """Send heartbeats while a claim is held, until the worker ends."""
        while True:
            self._beats.clear()
            claim = self._held
            if claim is None and self._stopping:
                return
            wait_s = None if claim is None else claim._heartbeat_wait_s()
            if claim is not None and wait_s is None:
                self._interrupt_call()
            if claim is None or wait_s is None or wait_s > 0:
                self._beats.wait(wait_s)
            else:
                self._beat(claim)

    def _beat(self, claim: Claim) -> None:
        try:
            claim.heartbeat()
        except _LOST as error:
            if claim is self._held:
                claim._fence()
                log.warning("worker %s: %s: the lease is lost: %s", self.name, claim.subscription, error)
        except HeadwaterError as error:
            claim._fail_heartbeat()
            log.warning("worker %s: %s: heartbeat failed: %s", self.name, claim.subscription, error)
