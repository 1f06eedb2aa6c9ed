"""The engine: one writer that decides and commits, and readers that see what became durable.

Writers decide on the newest state, which may hold records still on their way to the store. Whatever is answered
from such a state, an error included, waits until those records are durable: nobody learns of a change that a
crash could undo. Readers look only at the durable part.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec

from headwater.engine.clock import Clock, SteadyClock
from headwater.engine.committer import Answer, Answered, Committer, Entry
from headwater.engine.streams import Stream
from headwater.engine.tails import Subscriber, Tail, Update
from headwater.errors import (
    HeadwaterError,
    InternalError,
    InvalidOffsetError,
    OverloadedError,
    StoppingError,
    StorageFullError,
    StreamGoneError,
    StreamNotFoundError,
)
from headwater.limits import Limits
from headwater.log.model import (
    Append,
    Command,
    Create,
    Expire,
    Reply,
    decide,
    evolve,
    fork_anchor,
    fork_source,
    is_expired,
)
from headwater.log.values import Appended, Created, Deleted, Event, SoftDeleted, StreamState, Touched
from headwater.protocol.streams.cursors import interval_at
from headwater.protocol.streams.offsets import offset_at
from headwater.store.contract import RefusedError, Store, UnalignedReadError

log = logging.getLogger("headwater.engine")

_WITH_BODY = (Append, Create)
_EVICT_STEP = 500
_LARGE_READ_BYTES = 64 * 1024
_WRITING_MS = 50
_RETRY = (("retry-after", "1"),)

Key = TypeVar("Key", str, int)
Load = Callable[[Key], Awaitable[StreamState | None]]


class _View:
    """The newest state of every loaded stream: what decisions are made on."""

    def __init__(self) -> None:
        self.paths: dict[str, Stream] = {}
        self.ids: dict[int, Stream] = {}

    def add(self, stream: Stream) -> None:
        self.paths[stream.state.path] = self.ids[stream.id] = stream

    def remove(self, stream: Stream) -> None:
        del self.ids[stream.id]
        if self.paths.get(stream.state.path) is stream:
            del self.paths[stream.state.path]

    def at(self, path: str) -> StreamState | None:
        stream = self.paths.get(path)
        return None if stream is None else stream.state

    def get(self, stream_id: int) -> StreamState:
        return self.ids[stream_id].state


class Engine:
    def __init__(
        self,
        store: Store,
        limits: Limits | None = None,
        *,
        clock: Clock | None = None,
        entropy: Callable[[], float] = random.random,
        fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.now_ms = (clock or SteadyClock()).now_ms
        self.entropy = entropy
        self._store = store
        self._view = _View()
        self._visible: dict[str, Stream] = {}  # by path, what readers find
        self._fatal = fatal
        self._stopping = False
        self._evicted = 0  # how many streams were let go of
        self._written_ms = 0  # when a batch last became durable
        self._read_turn_s = 0.0  # when the next large read may go
        self._sweeping: asyncio.Task[None] | None = None
        self._loads: set[asyncio.Task[None]] = set()
        self._loading: dict[object, asyncio.Future[StreamState | None]] = {}
        self._committer: Committer | None = None

    # Life

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._committer = Committer(
            self._store,
            backlog_bytes_max=self.limits.commit_backlog_bytes,
            call_soon=loop.call_soon,
            durable=self._publish,
            failed=self._fail,
        )
        self._store.failed = self._stop_for
        await self._store.start()
        if self._store.next_id == 1:
            # A store that never held a stream. Ids are part of offsets, and those of another store at the same URL,
            # in memory or in a directory that was removed, must be recognised as not ours.
            self._store.next_id = max(1, self.now_ms())
        self._sweeping = asyncio.create_task(self._sweep())

    def send_home(self) -> None:
        """Refuse new writes and end every live read."""
        self._stopping = True
        for stream in tuple(self._visible.values()):
            if stream.live_tail is not None:
                stream.live_tail.end()

    async def stop(self) -> None:
        """Finish what was accepted and close the store."""
        self.send_home()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await asyncio.gather(*self._loads, return_exceptions=True)
        if self._committer is not None:
            drained = asyncio.Event()
            self._committer.add(Entry((), (), Reply(), lambda _: drained.set()))
            await drained.wait()
        await self._store.close()

    # Writing

    def submit(self, command: Command, answered: Answered) -> None:
        """Carry out a command; `answered` gets the reply or the error once it is certain."""
        stream = self._view.paths.get(command.path)
        if stream is not None and type(command) is Append:
            self._decide(command, answered)
            return
        task = asyncio.create_task(self._load_and_decide(command, answered))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def execute(self, command: Command) -> Reply:
        """The same for callers that wait."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if future.done():
                return
            if isinstance(answer, HeadwaterError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.submit(command, answered)
        return await future

    def new_id(self) -> int:
        stream_id = self._store.next_id
        self._store.next_id += 1
        return stream_id

    async def _load_and_decide(self, command: Command, answered: Answered) -> None:
        try:
            evicted = None
            while evicted != self._evicted:  # else something needed may have been let go of meanwhile
                evicted = self._evicted
                state = await self._load(command.path)
                if isinstance(command, Create) and command.fork is not None:
                    await self._load(command.fork.source)
                    command = await self._with_record(command)
                while state is not None and state.fork is not None:
                    state = await self._load_id(state.fork.source_id)
        except HeadwaterError as error:
            self._answer_when_certain(command, error, answered)
        except Exception as error:
            log.exception("loading for %s failed", type(command).__name__)
            answered(_internal(error))
        else:
            self._decide(command, answered)

    async def _with_record(self, command: Create) -> Create:
        """A fork with a sub-offset looks into the source's record at its offset: fetch that record."""
        fork, existing = command.fork, self._view.at(command.path)
        if fork is None or (existing is not None and not is_expired(existing, command.now_ms)):
            return command
        source = fork_source(self._view, fork, command.now_ms)
        anchor = fork_anchor(source, fork)
        stream = self._view.ids[source.id]
        await self.check_boundary(stream, anchor)
        if fork.sub_offset:
            record = await self.read(stream, anchor, stream.tail, 1)
            fork = msgspec.structs.replace(fork, record=record)
        # An id of its own time: a fork's must be larger than its source's, whenever that was made.
        return msgspec.structs.replace(command, fork=fork, stream_id=self.new_id())

    def _decide(self, command: Command, answered: Answered) -> None:
        committer = self._committer
        if committer is None or self._stopping:
            answered(StoppingError("the server takes no more writes"))
            return
        if self._store.full:
            answered(StorageFullError(self._store.full, headers=_RETRY))
            return
        stream = self._view.paths.get(command.path)
        if stream is not None:
            stream.used = True
            if stream.live_tail is not None:
                self._renew_if_watched(stream, command.now_ms)
        try:
            size_bytes = len(command.body) if isinstance(command, _WITH_BODY) else 0
            committer.check_room(size_bytes)
            decision = decide(self._view, command)
        except OverloadedError as error:
            answered(error)
            return
        except HeadwaterError as error:
            self._answer_when_certain(command, error, answered)
            return
        except Exception as error:
            log.exception("deciding %s failed", type(command).__name__)
            answered(_internal(error))
            return
        if not decision.events:
            if not isinstance(command, Expire):
                self._touch(stream, command.now_ms)
            self._answer_when_certain(command, decision.reply, answered)
            return
        streams = tuple([self._evolve(event) for event in decision.events])
        committer.add(Entry(decision.events, streams, decision.reply, answered), size_bytes)

    def _answer_when_certain(self, command: Command, answer: Answer, answered: Answered) -> None:
        uncertain = self._is_uncertain(command.path)
        if isinstance(command, Create) and command.fork is not None:
            uncertain = uncertain or self._is_uncertain(command.fork.source)
        if uncertain and self._committer is not None:
            self._committer.add(Entry((), (), answer, answered))
        else:
            answered(answer)

    def _is_uncertain(self, path: str) -> bool:
        """Whether what writers see at a path is not durable yet."""
        stream = self._view.paths.get(path)
        return stream.pending > 0 if stream is not None else path in self._visible

    def _evolve(self, event: Event) -> Stream:
        """Move the newest state on; readers do not see it yet."""
        if isinstance(event, Created):
            state = evolve(None, event)
            if state is None:
                raise RuntimeError("a created stream has a state")
            stream = Stream(state, durable=False)
            self._view.add(stream)
        else:
            stream = self._view.ids[event.id]
            if evolve(stream.state, event) is None:
                self._view.remove(stream)
        stream.pending += 1
        return stream

    def _touch(self, stream: Stream | None, now_ms: int) -> None:
        """Renew a sliding time-to-live. Recorded in steps of a twentieth of it: a crash can cost no more."""
        if stream is None or stream.state.ttl_s is None or stream.gone is not None or self._stopping:
            return
        event = Touched(stream.id, now_ms)
        if now_ms - stream.touched_ms < stream.state.ttl_s * 1000 // 20 or self._store.full:
            evolve(stream.state, event)
        elif self._committer is not None and stream.id in self._view.ids:
            stream.touched_ms = now_ms
            self._committer.add(Entry((event,), (self._evolve(event),), Reply(), None))

    def _renew_if_watched(self, stream: Stream, now_ms: int) -> None:
        """A stream with live readers does not expire, however long they wait."""
        if stream.live_tail is not None and not stream.live_tail.empty:
            self._touch(stream, now_ms)

    # What became durable

    def _publish(self, entries: list[Entry]) -> None:
        news: dict[Stream, list[bytes]] = {}
        self._written_ms = self.now_ms()
        for entry in entries:
            for event, stream in zip(entry.record, entry.streams, strict=True):
                stream.pending -= 1
                if isinstance(event, Appended):
                    stream.tail += len(event.data)
                    stream.closed = stream.closed or event.close
                    if stream.live_tail is not None:
                        news.setdefault(stream, []).append(event.data)
                else:
                    self._publish_life(event, stream)
        for entry in entries:
            _answer(entry, entry.answer)
        for stream, parts in news.items():
            self._tell(stream, b"".join(parts))

    def _publish_life(self, event: Event, stream: Stream) -> None:
        if isinstance(event, Created):
            stream.tail += len(event.data)
            stream.closed = event.closed
            self._visible[event.path] = stream
        elif isinstance(event, SoftDeleted):
            self._bury(stream, _soft_deleted)
        elif isinstance(event, Deleted):
            self._bury(stream, _deleted)
            if self._visible.get(stream.state.path) is stream:
                del self._visible[stream.state.path]

    def _bury(self, stream: Stream, gone: Callable[[], HeadwaterError]) -> None:
        stream.gone = gone
        if stream.live_tail is not None:
            stream.live_tail.end()

    def _tell(self, stream: Stream, data: bytes) -> None:
        if stream.live_tail is None:
            return
        state = stream.state
        stream.live_tail.publish(
            Update(
                state.kind,
                stream.tail - len(data),
                stream.tail,
                next_offset=offset_at(state, stream.tail),
                interval=interval_at(self.now_ms()),
                data=data,
                closed=stream.closed,
            )
        )

    def _fail(self, entries: list[Entry], error: BaseException) -> None:
        if isinstance(error, RefusedError):
            self._undo(entries, error)
            return
        # A write that failed leaves nobody knowing what is durable: nothing built on it may be written any more.
        if self._committer is not None:
            entries = entries + self._committer.withdraw()
        for entry in entries:
            _answer(entry, _internal(error))
        self._stop_for(error)

    def _stop_for(self, error: BaseException) -> None:
        self._stopping = True
        log.critical("no more writes are taken, since what is durable is in doubt: %s", error)
        if self._fatal is not None:
            self._fatal(error)

    def _undo(self, entries: list[Entry], error: RefusedError) -> None:
        """There was no room: put every stream back to what is durable, and say so to all who built on more."""
        if self._committer is not None:
            entries = entries + self._committer.withdraw()
        touched = {stream for entry in entries for stream in entry.streams}
        for stream in touched:
            if self._view.ids.get(stream.id) is stream:
                self._view.remove(stream)
        for stream in touched:
            state = error.durable(stream.id)
            if state is not None:
                stream.state, stream.pending = state, 0
                self._view.add(stream)
        for entry in entries:
            _answer(entry, StorageFullError(str(error), headers=_RETRY))

    # Loading

    async def _load(self, path: str) -> StreamState | None:
        stream = self._view.paths.get(path)
        if stream is not None:
            return stream.state
        if path in self._visible:
            return None  # its deletion is on the way
        return await self._load_once(path, self._store.load)

    async def _load_id(self, stream_id: int) -> StreamState | None:
        stream = self._view.ids.get(stream_id)
        if stream is not None:
            return stream.state
        return await self._load_once(stream_id, self._store.load_id)

    async def _load_once(self, key: Key, load: Load[Key]) -> StreamState | None:
        """Load for everyone who asks meanwhile, so that nobody brings back what another has since changed."""
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.ensure_future(self._load_into_view(key, load))
        return await asyncio.shield(loading)

    async def _load_into_view(self, key: Key, load: Load[Key]) -> StreamState | None:
        try:
            state = await load(key)
            if state is None:
                return None
            known = self._view.ids.get(state.id)
            if known is not None:
                return known.state
            stream = Stream(state, durable=True)
            self._view.add(stream)
            self._visible[state.path] = stream
            if state.soft_deleted:
                stream.gone = _soft_deleted
            return state
        finally:
            del self._loading[key]

    # Reading

    async def find(self, path: str, *, renew: bool) -> Stream:
        """The stream that readers find at a path; reading renews a sliding time-to-live, looking does not."""
        stream = self._visible.get(path)
        if stream is None:
            await self._load(path)
            stream = self._visible.get(path)
            if stream is None:
                raise StreamNotFoundError("no stream at this path")
        stream.used = True
        now_ms = self.now_ms()
        self._renew_if_watched(stream, now_ms)
        self.check_alive(stream, now_ms)
        if renew:
            self._touch(stream, now_ms)
        return stream

    def check_alive(self, stream: Stream, now_ms: int) -> None:
        if stream.gone is not None:
            raise stream.gone()
        if is_expired(stream.state, now_ms):
            if stream.state.forks:
                raise StreamGoneError("the stream expired; forks still read its data")
            raise StreamNotFoundError("the stream expired")

    async def read(self, stream: Stream, start: int, end: int, bytes_max: int) -> bytes:
        """Whole records from `start`, at least one and at most about `bytes_max`, none reaching past `end`."""
        parts: list[bytes] = []
        room = bytes_max
        for owner, stop in _owners(stream.state, start, min(end, stream.tail)):
            try:
                data = await self._store.read(owner, start, stop, room)
            except UnalignedReadError:
                raise InvalidOffsetError("the offset lies inside a record; use one that the server gave") from None
            except LookupError:
                raise _deleted() if stream.gone is None else stream.gone() from None
            if parts and len(data) > room:
                break
            parts.append(data)
            start += len(data)
            room -= len(data)
            if start < stop or room <= 0:
                break
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) >= _LARGE_READ_BYTES:
            await self._give_way(len(data))
        return data

    async def check_boundary(self, stream: Stream, position: int) -> None:
        """Refuse a position inside a record: nothing may be cut there."""
        if 0 < position < stream.tail:
            await self.read(stream, position, stream.tail, 1)

    async def splits(
        self, stream: Stream, start: int, end: int, *, parts: int, step_bytes: int, most: int
    ) -> list[int]:
        """Places between `start` and `end` where a read may begin or end: those that make `parts` of about equal
        size, or, with a step, parts of at most so many bytes unless one record is larger. At most `most` of them."""
        found: list[int] = []
        last = start
        for number in range(1, (most if step_bytes else parts - 1) + 1):
            goal = last + step_bytes if step_bytes else start + (end - start) * number // parts
            if goal >= end:
                break
            place = await self._boundary(stream, last, goal)
            if place <= last and step_bytes:
                place = last + len(await self.read(stream, last, end, 1))
            if last < place < end:
                found.append(place)
                last = place
            elif step_bytes:
                break
        return found

    async def _boundary(self, stream: Stream, start: int, goal: int) -> int:
        """The last place from `start` to `goal` where a record begins; `start` must be one."""
        begin = start
        for owner, stop in _owners(stream.state, start, stream.tail):
            if goal < stop:
                try:
                    return max(begin, await self._store.boundary(owner, goal))
                except LookupError:
                    raise _deleted() if stream.gone is None else stream.gone() from None
            begin = stop
        return begin

    async def _give_way(self, size_bytes: int) -> None:
        """While appends come in, large reads share a bounded rate: they must not crowd out the writers."""
        if self.now_ms() - self._written_ms > _WRITING_MS:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(self._read_turn_s, now_s)
        self._read_turn_s = turn_s + size_bytes / self.limits.read_bytes_per_s_while_writing
        if turn_s > now_s:
            await asyncio.sleep(turn_s - now_s)

    async def page(self, prefix: str, after: str, limit: int) -> tuple[list[Stream], str | None]:
        """A page of streams in path order, and where the next page goes on."""
        states = await self._store.page(prefix, after, limit)
        now_ms = self.now_ms()
        page = []
        for state in states:
            stream = self._visible.get(state.path) or Stream(state, durable=True)
            if stream.gone is None and not state.soft_deleted and not is_expired(state, now_ms):
                page.append(stream)
        return page, states[-1].path if len(states) == limit else None

    async def wait(self, stream: Stream, position: int, timeout_s: float) -> None:
        """Until the stream goes past a position, is closed or gone, or the time is up."""
        if stream.tail > position or stream.closed or stream.gone is not None or self._stopping:
            return
        tail = self._tail_of(stream)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tail.waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            tail.waiters.discard(waiter)
            self._drop_tail(stream)

    def subscribe(self, stream: Stream, subscriber: Subscriber) -> None:
        self._tail_of(stream).subscribers.add(subscriber)

    def unsubscribe(self, stream: Stream, subscriber: Subscriber) -> None:
        if stream.live_tail is not None:
            stream.live_tail.subscribers.discard(subscriber)
            self._drop_tail(stream)

    def _tail_of(self, stream: Stream) -> Tail:
        if stream.live_tail is None:
            stream.live_tail = Tail()
        return stream.live_tail

    def _drop_tail(self, stream: Stream) -> None:
        if stream.live_tail is not None and stream.live_tail.empty:
            self._touch(stream, self.now_ms())
            stream.live_tail = None

    # Housekeeping

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.limits.expiry_sweep_s)
            try:
                await self._evict()
                due = await self._store.due(self.now_ms(), 1000)
                await asyncio.gather(*[self.execute(Expire(path, self.now_ms())) for path in due])
            except HeadwaterError as error:
                log.warning("expiring streams failed, trying again: %s", error)
            except Exception:
                log.exception("housekeeping failed, trying again")

    async def _evict(self) -> None:
        """Let go of streams that nobody used since the last look, if too many are loaded; the store has them."""
        excess = len(self._view.ids) - self.limits.streams_loaded_max
        if excess <= 0:
            return
        for count, stream_id in enumerate(list(self._view.ids)):
            if count % _EVICT_STEP == _EVICT_STEP - 1:
                await asyncio.sleep(0)
            stream = self._view.ids.get(stream_id)
            if stream is None:
                continue
            if stream.used:
                stream.used = False
            elif not stream.pending and stream.live_tail is None and stream.gone is None:
                self._view.remove(stream)
                del self._visible[stream.state.path]
                self._evicted += 1
                excess -= 1
                if excess <= 0:
                    return


def _answer(entry: Entry, answer: Answer) -> None:
    """Answer one; whatever goes wrong with it is not the others' concern."""
    if entry.answered is not None:
        try:
            entry.answered(answer)
        except Exception:
            log.exception("an answer could not be given")


def _deleted() -> HeadwaterError:
    return StreamNotFoundError("the stream was deleted")


def _soft_deleted() -> HeadwaterError:
    return StreamGoneError("the stream was deleted; forks still read its data")


def _owners(state: StreamState, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Who holds the bytes from `start` to `end`: ids, each with where its part ends."""
    for span in state.lineage:
        if start < min(span.end, end):
            yield span.id, min(span.end, end)
            start = span.end
    if start < end:
        yield state.id, end


def _internal(error: BaseException) -> InternalError:
    return InternalError(f"{type(error).__name__} while writing; the server log has the cause")
