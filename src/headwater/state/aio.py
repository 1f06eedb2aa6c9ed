"""AsyncStreamDB for asyncio: a task of its own follows the stream."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from headwater import limits
from headwater.client import AsyncStream, ProducerTuple
from headwater.client.effects import Progress
from headwater.client.reading import LiveMode
from headwater.errors import ClientError, HeadwaterError
from headwater.state import flows
from headwater.state.checkpoints import save
from headwater.state.database import LOG, OnBadEvent, Transaction
from headwater.state.definitions import StateDefinition
from headwater.state.following import EVENTS, FollowedState, Following, database_of, settings_of
from headwater.state.tables import Change

R = TypeVar("R")

log = logging.getLogger(__name__)


class _ChangeQueue:
    """One who iterates over changes: what waits for it, up to a limit."""

    def __init__(self, wanted: set[str]) -> None:
        self.waiting: deque[Change[Any]] = deque()
        self.news = asyncio.Event()
        self.lost = False
        self.end: Callable[[], None] = lambda: None
        self._wanted = wanted

    def note(self, change: Change[Any]) -> None:
        if change.collection not in self._wanted or self.lost:
            return
        if len(self.waiting) >= limits.STATE_CHANGES_WAITING_MAX:
            self.waiting.clear()
            self.lost = True
        else:
            self.waiting.append(change)
        self.news.set()


class AsyncStreamDB(FollowedState):
    """The current state of a stream of state events: collections as mappings that stay current.

    `preload` reads up to the end of the stream, from the checkpoint file or from a snapshot if there is one, and from
    then on changes arrive by themselves (unless `live` is False). Collections are attributes: `db.users["1"]`.
    """

    def __init__(
        self,
        stream: AsyncStream,
        definition: StateDefinition,
        *,
        live: LiveMode = True,
        checkpoint: str | Path | None = None,
        checkpoint_every_s: float = limits.STATE_CHECKPOINT_EVERY_S,
        snapshots: bool = True,
        on_bad_event: OnBadEvent = LOG,
        on_error: Callable[[Exception], Any] | None = None,
        txids_kept: int = limits.STATE_TXIDS_KEPT,
    ) -> None:
        self.stream = stream
        self.definition = definition
        self._changed = asyncio.Condition()
        settings = settings_of(live, checkpoint, checkpoint_every_s, snapshots, on_error)
        self._database = database_of(definition, on_bad_event, txids_kept)
        self._following = Following(stream.url, definition, settings, self._database)
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._over = False
        self._watches: set[_ChangeQueue] = set()
        self._saved_s = time.monotonic()
        self.error = None

    async def preload(self, timeout_s: float | None = None) -> None:
        """Wait until the state is that of the end of the stream. What went wrong is raised here."""
        if self._task is None and not self._closing:
            self._task = asyncio.create_task(self._run())
        await self._wait(lambda: self._following.ready, timeout_s, "not up to date")
        if not self._following.ready or self.error is not None:
            self._check()

    async def _wait(self, until: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: until() or self.error is not None or self._is_over())
        except TimeoutError:
            raise TimeoutError(f"{what} after {timeout_s} s") from None

    def changes(self, *collections: str) -> AsyncIterator[Change[Any]]:
        """Changes of these collections, or of all, from now on, until the stream or the database ends.

        Who falls too far behind is told so by an error rather than by memory running out.
        """
        watch = _ChangeQueue(set(collections or self._database.tables))
        watch.end = self._database.on_change(watch.note)
        self._watches.add(watch)
        return self._watched(watch)

    async def _watched(self, watch: _ChangeQueue) -> AsyncIterator[Change[Any]]:
        try:
            while True:
                while watch.waiting:
                    yield watch.waiting.popleft()
                if watch.lost:
                    raise ClientError(f"more than {limits.STATE_CHANGES_WAITING_MAX} changes were waiting")
                if self.error is not None:
                    raise self.error
                if self._is_over():
                    return
                watch.news.clear()
                await watch.news.wait()
        finally:
            watch.end()
            self._watches.discard(watch)

    def _is_over(self) -> bool:
        return self._closing or self._over

    async def await_txid(self, txid: str, timeout_s: float = limits.STATE_AWAIT_TXID_S) -> None:
        """Wait until an event with this transaction id is in the state."""
        seen = self._database.has_seen
        with self._database.expecting(txid):
            await self._wait(lambda: seen(txid), timeout_s, f"transaction {txid} did not arrive")
            if not seen(txid):
                self._check()

    @contextlib.asynccontextmanager
    async def transaction(self, timeout_s: float = limits.STATE_TRANSACTION_S) -> AsyncIterator[Transaction]:
        """Changes that are shown at once, appended together at the end of the block, and waited for.

        If anything fails they are not shown any more. After a TimeoutError they may still arrive by the stream.
        """
        transaction = self._begin()
        try:
            yield transaction
            with self._database.expecting(transaction.txid):
                await self._append(transaction)
                if transaction.events:
                    await self.await_txid(transaction.txid, timeout_s)
        finally:
            self._database.settle(transaction.txid)

    def action(
        self,
        optimistic: Callable[..., Any],
        commit: Callable[..., Any] | None = None,
        *,
        timeout_s: float = limits.STATE_TRANSACTION_S,
    ) -> Callable[..., Awaitable[None]]:
        """A function that shows a change at once and makes it real.

        `optimistic(transaction, ...)` says what to show. `commit(transaction, ...)` has it written to the stream with
        `transaction.txid` by whoever is in charge; without it the events are appended as they are. The function
        returns when they came back through the stream. If that fails nothing is shown any more.
        """

        async def act(*args: Any, **options: Any) -> None:
            transaction = self._begin()
            try:
                optimistic(transaction, *args, **options)
                with self._database.expecting(transaction.txid):
                    if commit is None:
                        await self._append(transaction)
                    else:
                        done = commit(transaction, *args, **options)
                        if inspect.isawaitable(done):
                            await done
                    if transaction.events:
                        await self.await_txid(transaction.txid, timeout_s)
            finally:
                self._database.settle(transaction.txid)

        return act

    async def save_checkpoint(self) -> bool:
        """Save the state to the checkpoint file now; False if there is nothing new to save."""
        found = self._checkpoint()
        if found is None:
            return False
        path, data, here = found
        await asyncio.to_thread(save, path, data)
        self._following.saved_at = here
        self._saved_s = time.monotonic()
        return True

    async def publish_snapshot(self) -> AsyncStream:
        """Write the state of the stream, all its types, as a snapshot from which others begin.

        It is made of the newest snapshot and the events after it, or of the whole stream, so that values are in it as
        they were written and not as our schemas have them. A snapshot that is there already is left alone.
        """
        flow = flows.publish_snapshot(self.stream.path, self._following.snapshot_offset())
        return self.stream.client.stream(await self._drive(flow))

    async def close(self) -> None:
        """Stop following, and save a last checkpoint if there is a file for it."""
        self._closing = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._notify()
        if self._settings.checkpoint is not None:
            await self.save_checkpoint()

    async def __aenter__(self) -> AsyncStreamDB:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # The task

    async def _run(self) -> None:
        try:
            await self._drive(flows.run(self._following, self.stream.path))
        except Exception as error:  # noqa: BLE001  # told to whoever asks next
            await self._fail(error)
        finally:
            self._over = True
            await self._notify()

    async def _follow(self) -> None:
        following = self._following
        reader = self.stream.read(type=EVENTS, offset=following.position, live=self._settings.live)
        async with reader:
            async for batch in reader.batches():
                following.apply(batch)
                await self._notify()
                await self._maybe_save()

    async def _notify(self) -> None:
        for watch in self._watches:
            watch.news.set()
        async with self._changed:
            self._changed.notify_all()

    async def _maybe_save(self) -> None:
        """Save a checkpoint if it is time. One that fails is logged and tried again: the state is good without it."""
        if self._settings.checkpoint is None:
            return
        if time.monotonic() - self._saved_s >= self._settings.checkpoint_every_s:
            self._saved_s = time.monotonic()
            try:
                await self.save_checkpoint()
            except OSError as error:
                log.warning("the checkpoint %s was not saved: %s", self._settings.checkpoint, error)

    async def _drive(self, flow: flows.Flow[R]) -> R:
        progress: Progress[R] = Progress(flow)  # type: ignore[arg-type]
        wish: Any = progress.go()
        while wish is not None:
            outcome: Any
            try:
                outcome = await self._perform(wish)
            except HeadwaterError as error:
                outcome = error
            wish = progress.go(outcome)
        return progress.result

    async def _perform(self, wish: flows.Wish) -> Any:
        if isinstance(wish, flows.Follow):
            return await self._follow()
        if isinstance(wish, flows.ListStreams):
            return [info async for info in self.stream.client.list(wish.prefix)]
        stream = self.stream if wish.path is None else self.stream.client.stream(wish.path)
        if isinstance(wish, flows.Head):
            return await stream.head()
        if isinstance(wish, flows.ReadEvents):
            async with stream.read(type=EVENTS, offset=wish.offset, until=wish.until) as reader:
                async for batch in reader.batches():
                    wish.take(batch.items)
            return None
        await stream.create()
        async with stream.producer("snapshot", auto_claim=True) as producer:
            for event in wish.events:
                await producer.append(event)
        return await stream.close()

    async def _append(self, transaction: Transaction) -> None:
        """In one request, which may be sent again because it is numbered."""
        if transaction.events:
            await self.stream.append_many(transaction.events, producer=ProducerTuple(transaction.txid, 0, 0))

    async def _fail(self, error: Exception) -> None:
        self.error = error
        await self._notify()
        if self._settings.on_error is not None:
            self._settings.on_error(error)

    def _begin(self) -> Transaction:
        self._check()
        if self._task is None:
            raise ClientError("preload the database first: nothing would ever come back through the stream")
        return self._database.begin(uuid.uuid4().hex)
