"""The writer: decides commands on the newest states, commits the records, and publishes durable records to readers.

A reply or error that depends on a state that is not durable yet is held until that state is durable, so that no client
learns of a change that a crash could undo.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedDocument, LoadedStream, loaded_stream, replaced
from headwater.engine.committer import Answer, Answered, Committer, PendingRecord, passed_to_store
from headwater.engine.loading import Loader
from headwater.engine.messages import Ended, News, PathWatch, Slice
from headwater.engine.ordering import Place, ProducerOrder
from headwater.engine.preparing import WITH_BODY, FetchRecord, Preparer
from headwater.engine.readings import HeldError, Readings, UnknownStateError
from headwater.engine.sharing import Sharing
from headwater.errors import (
    HeadwaterError,
    InternalError,
    OutcomePendingError,
    OutOfMemoryError,
    ServerError,
    StoppingError,
    StorageFullError,
    StreamGoneError,
    StreamNotFoundError,
    TooManyStreamsError,
    UnavailableError,
    UnknownOutcomeError,
)
from headwater.limits import Limits
from headwater.log.commands import (
    Append,
    Command,
    Compact,
    Create,
    Delete,
    Expire,
    Reply,
    Retain,
    Trim,
    WriteDocuments,
)
from headwater.log.content import ROWS
from headwater.log.deciding import Decision, NewestStates, decide, is_expired
from headwater.log.events import (
    DOCUMENT_EVENTS,
    Appended,
    Compacted,
    Created,
    Deleted,
    Event,
    Retained,
    SoftDeleted,
    Touched,
    Trimmed,
)
from headwater.log.quotas import Quotas, Usage
from headwater.log.retention import Retention
from headwater.log.state import Document, StreamState, evolve, evolve_document, extend, replace_front
from headwater.store.contract import (
    Expects,
    Key,
    NoMemoryError,
    NotStoredError,
    OutdatedError,
    RefusedError,
    Store,
    shared,
)
from headwater.tasks import Tasks

log = logging.getLogger("headwater.engine")


class Writer:
    """The one writer of the log: from a command to its record, its answer and what readers see, or back if the store
    refuses the batch."""

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        loader: Loader,
        limits: Limits,
        now_ms: Callable[[], int],
        fatal: Callable[[BaseException], None],
        fetch_record: FetchRecord,
        fence: Callable[[], HeadwaterError | None] | None,
        make_room: Callable[[], Awaitable[bool]],
        usage: Usage | None,
        default_retention: Callable[[str], Retention | None],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._loader = loader
        self._now_ms = now_ms
        self._fatal = fatal
        self._fence = fence  # returns an error while the server may not take writes; None: it always may
        self._default_retention = default_retention
        self._make_room = make_room  # deletes some expired streams; returns whether there were any
        self._limits = limits
        self.usage = usage or None  # None: nothing is counted
        self._quotas = Quotas(limits.streams_max, limits.stream_bytes_max, self.usage) or None
        self._preparer = Preparer(catalogue, loader, limits, fetch_record)
        self._queues = self._preparer.order.queues  # of producers whose appends wait to be decided
        self.committer = Committer(
            store,
            backlog_bytes_max=limits.commit_backlog_bytes,
            durable=self._publish_shared if store.shared else self._publish,
            failed=self._fail,
        )
        self._refusing: Callable[[], HeadwaterError] | None = None  # if set, commands are refused with this error
        self._postponed: list[tuple[Command, Answered]] = []  # free space, and wait until a batch is rolled back
        self._next_id = 1
        self._tasks = Tasks()
        # The batches during which another database took over.
        self._superseded: Sequence[list[PendingRecord]] = ()
        store_of_many = shared(store)
        # None: this server is the only one.
        self.sharing = (
            None
            if store_of_many is None
            else Sharing(
                store_of_many,
                catalogue,
                now_ms,
                self._decide_again,
                self.renew,
                self._note_compactable,
                self.stop_for,
                self.committer,
            )
        )
        self.written_ms = 0  # time of the last commit
        self.watch: PathWatch = NOBODY
        self.compactable: Callable[[str, int, int], None] | None = None  # told of streams whose retention says so

    @property
    def refusing(self) -> str | None:
        """Why commands are refused at present; None if they are not."""
        return None if self._refusing is None else self._refusing().detail

    # Start and stop

    def start(self) -> None:
        # Ids are part of offsets. After a restore, or with another store at the same URL, offsets of lost streams must
        # not match new streams. So ids start from the clock in microseconds, which advances faster than ids are used.
        self._next_id = max(self._store.next_id, self._store.timeline + 1, self._now_ms() * 1000)
        self._catalogue.timeline = self._store.timeline
        self._catalogue.count = self._store.streams

    def drain(self) -> None:
        """Refuse new commands and end all live reads."""
        self._refusing = _stopping
        self.end_live_reads()

    def end_live_reads(self) -> None:
        for stream in self._catalogue.all_visible():
            if stream.live is not None:
                stream.live.end(Ended.DRAINING)

    async def finish(self) -> None:
        """Wait until all accepted commands are durable and have their replies."""
        await self._tasks.ended()
        if self.sharing is not None:
            await self.sharing.stop()
        drained = asyncio.Event()
        self.committer.add(PendingRecord((), (), None, (), Reply(), lambda _: drained.set()))
        await drained.wait()

    def stop_for(self, error: BaseException) -> None:
        """Refuse all further commands, because the store has failed."""
        self._refusing = _stopping
        log.critical("the store failed, all further writes are refused: %s", error)
        self._fatal(error)

    # Deciding

    @property
    def order(self) -> ProducerOrder:
        """The order of appends that are not decided yet."""
        return self._preparer.order

    def submit(self, command: Command, answered: Answered) -> None:
        if type(command) is Append and not command.documents:
            stream = self._catalogue.newest(command.path)
            if stream is not None and not (
                (self._queues or len(command.body) > bounds.JSON_STEP_BYTES)
                and self._preparer.must_wait(command, stream.state.kind)
            ):
                self._decide(command, stream, answered)
                return
        self._tasks.start(self._prepare_and_decide(command, answered, self._preparer.place_of(command)))

    async def _prepare_and_decide(self, command: Command, answered: Answered, place: Place | None = None) -> None:
        states = self._newest_states()
        try:
            while not await self._decide_if_current(command, answered, states, place):
                states = self._newest_states()  # prepare it again
        except HeldError as error:
            error.restoration.add(command, answered)
        except HeadwaterError as error:
            if self._refusing is not None:  # the states that were read may be rolled back
                self._refuse(command, answered, self._refusing())
            else:
                self._answer_error(command, error, answered, states)
        except Exception as error:
            log.exception("failed to prepare %s", type(command).__name__)
            answered(_undecided(error))
        finally:
            if place is not None:
                place.leave()

    def _newest_states(self) -> NewestStates:
        """What a command is decided on."""
        return self._catalogue if self.sharing is None else self.sharing.readings()

    async def _decide_if_current(
        self, command: Command, answered: Answered, states: NewestStates, place: Place | None
    ) -> bool:
        timeline = self._catalogue.timeline
        self.renew_if_watched(_source(self._catalogue, command), self._now_ms())
        if self.sharing is not None and isinstance(command, Create):
            command = msgspec.structs.replace(command, stream_id=await self.sharing.reserve_id())
        async with self._preparer.prepared(command, states, place) as prepared:
            if timeline != self._catalogue.timeline or not self._preparer.is_current(prepared):
                return False
            self.renew_if_watched(_source(self._catalogue, command), self._now_ms())
            stream = None
            if not isinstance(prepared, WriteDocuments):
                stream = self._catalogue.newest(prepared.path)
                # After a client was told that the stream has expired, no client may read it again.
                prepared = msgspec.structs.replace(prepared, now_ms=max(prepared.now_ms, self._now_ms()))
            self._decide(prepared, stream, answered)
        return True

    def _decide(self, command: Command, stream: LoadedStream | None, answered: Answered) -> None:
        """Decide a command whose streams are loaded; `stream` is the one at its path."""
        is_restricted = self._refusing is not None or self._store.full or self._fence is not None
        if is_restricted and self._refused(command, answered):
            return
        if stream is not None:
            stream.used = True
            if stream.live is not None:
                self.renew_if_watched(stream, self._now_ms())
        size_bytes = len(command.body) if type(command) is Append or isinstance(command, WITH_BODY) else 0
        if type(command) is Create:
            command = self._with_id(command)
        states = self._catalogue if self.sharing is None else self.sharing.readings()
        try:
            self.committer.check_room(size_bytes)
            limits = self._limits
            decision = decide(states, command, limits.messages_per_append_max, limits.producers_per_stream_max)
            if self._quotas is not None:
                self._check_quotas(self._quotas, command, decision)
        except (HeadwaterError, HeldError, UnknownStateError) as error:
            self._answer_error(command, error, answered, states)
        except Exception as error:
            log.exception("failed to decide %s", type(command).__name__)
            answered(_undecided(error))
        else:
            if not decision.events:
                if stream is not None and not isinstance(command, Expire | Retain | Trim | Compact):
                    self.renew(stream, self._now_ms())
                self._answer_when_certain(command, decision.reply, answered, states)
            elif self.sharing is None:
                self._accept(decision, stream, answered, size_bytes, command, None)
            else:
                self._accept_shared(decision, stream, answered, size_bytes, command, states)

    def _with_id(self, command: Create) -> Create:
        """A create with the id of the stream and the default retention of its path."""
        default = None if command.retention is not None else self._default_retention(command.path)
        stream_id = command.stream_id
        if self.sharing is None:
            stream_id = self._next_id
            self._next_id += 1
        return msgspec.structs.replace(command, stream_id=stream_id, default_retention=default)

    def _check_quotas(self, quotas: Quotas, command: Command, decision: Decision) -> None:
        if not _frees(command):
            quotas.check(self._catalogue, decision.events)

    def _refused(self, command: Command, answered: Answered) -> bool:
        """Refuse or postpone a command, unless such commands are accepted at present."""
        if self._refusing is not None:
            self._refuse(command, answered, self._refusing())
            return True
        refusal = None if self._fence is None else self._fence()
        if self._store.full and not _frees(command):
            refusal = _full(self._store.full)
        if refusal is not None:
            answered(refusal)
        return refusal is not None

    def _refuse(self, command: Command, answered: Answered, error: HeadwaterError) -> None:
        """Refuse a command, or postpone it if it frees space and a batch is being rolled back."""
        if self._refusing is not _stopping and _frees(command):
            self._postponed.append((command, answered))
        else:
            answered(error)

    def _answer_error(
        self,
        command: Command,
        error: HeadwaterError | HeldError | UnknownStateError,
        answered: Answered,
        states: NewestStates,
    ) -> None:
        """Answer an error of the decision, or decide again later."""
        if isinstance(error, HeldError | UnknownStateError):
            self._put_off(error, command, answered, states)
        elif isinstance(error, ServerError):
            answered(error)
        elif isinstance(error, TooManyStreamsError):
            self._tasks.start(self._decide_with_room(command, error, answered, states))
        elif self.sharing is not None and (path := self._expired_path(command)) is not None:
            self._tasks.start(self._decide_after_expiry(path, command, answered))
        else:
            self._answer_when_certain(command, error, answered, states)

    async def _decide_with_room(
        self, command: Command, error: HeadwaterError, answered: Answered, states: NewestStates
    ) -> None:
        """Decide a create that exceeds a quota again, as long as expired streams can be deleted for it."""
        try:
            has_room = await self._make_room()
        except HeadwaterError:  # for example, the server stops
            has_room = False
        if has_room:
            await self._prepare_and_decide(command, answered)
        else:
            self._answer_when_certain(command, error, answered, states)

    def _accept(
        self,
        decision: Decision,
        stream: LoadedStream | None,
        answered: Answered,
        size_bytes: int,
        command: Command,
        expects: Expects | None,
    ) -> None:
        events = decision.events
        event = events[0]
        if type(event) is Appended and stream is not None and len(events) == 1:
            self._catalogue.apply_append(stream, event)
            commit = PendingRecord(events, (stream.state,), expects, (stream,), decision.reply, answered, command)
        else:
            changed = tuple([self._catalogue.apply(event) for event in events])
            after = tuple([one.state if isinstance(one, LoadedStream) else one.newest for one in changed])
            commit = PendingRecord(events, after, expects, changed, decision.reply, answered, command)
        if self.usage is not None:
            self.usage.note(commit.record, _states(commit))
        self.committer.add(commit, size_bytes)

    def _answer_when_certain(self, command: Command, answer: Answer, answered: Answered, states: NewestStates) -> None:
        """Answer when what the answer was decided on is durable and, in a shared store, current."""
        if isinstance(states, Readings):
            self.committer.add(PendingRecord((), (), states.expects, (), answer, answered, command))
            return
        if isinstance(command, WriteDocuments):
            uncertain = True
        else:
            uncertain = self._catalogue.is_uncertain(command.path)
            if isinstance(command, Create) and command.fork is not None:
                uncertain = uncertain or self._catalogue.is_uncertain(command.fork.source)
        if uncertain:
            self.committer.add(PendingRecord((), (), None, (), answer, answered))
        else:
            answered(answer)

    # In a shared store

    def _accept_shared(
        self,
        decision: Decision,
        stream: LoadedStream | None,
        answered: Answered,
        size_bytes: int,
        command: Command,
        states: NewestStates,
    ) -> None:
        """Accept a decision with all that it was decided on."""
        if not isinstance(states, Readings):
            raise TypeError("the states of a shared store are noted when they are read")
        largest = max(states.newest_id, states.timeline, self._catalogue.deleted_id)
        if isinstance(command, Create) and command.stream_id <= largest:
            self._tasks.start(self._prepare_and_decide(command, answered))  # its id is too old
            return
        states.note(decision.events)
        self._accept(decision, stream, answered, size_bytes, command, states.expects)

    def _put_off(
        self, error: HeldError | UnknownStateError, command: Command, answered: Answered, states: NewestStates
    ) -> None:
        """Decide a command after states were restored, or read again, because they are outdated."""
        if isinstance(error, HeldError):
            error.restoration.add(command, answered)
        elif self.sharing is not None and isinstance(states, Readings):
            self.sharing.restore((), [(command, answered)], (), states.expects)

    def _decide_again(self, command: Command, answered: Answered) -> None:
        """Decide a command that was decided on outdated states, at once if everything that it needs is in memory, so
        that the commands of a client stay in order. A created stream needs a new id, because another one may have been
        created and deleted meanwhile, with a larger one."""
        is_new = isinstance(command, Create) and self._catalogue.newest(command.path) is None
        if not is_new and self._loader.has_all(command) and self._preparer.is_current(command):
            stream = None if isinstance(command, WriteDocuments) else self._catalogue.newest(command.path)
            self._decide(command, stream, answered)
        else:
            self._tasks.start(self._prepare_and_decide(command, answered))

    def _expired_path(self, command: Command) -> str | None:
        """The path of an expired stream that a command needs, and that exists for others, whose clocks may be late. Its
        deletion is stored before anyone is told that it has expired."""
        if isinstance(command, WriteDocuments | Expire):
            return None
        for stream in (self._catalogue.newest(command.path), _source(self._catalogue, command)):
            if stream is not None and not stream.state.soft_deleted and is_expired(stream.state, self._now_ms()):
                return stream.path
        return None

    async def _decide_after_expiry(self, path: str, command: Command, answered: Answered) -> None:
        """Decide a command after a stream was deleted, unless another server has renewed it."""
        expired: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.submit(Expire(path, self._now_ms()), expired.set_result)
        answer = await expired
        if isinstance(answer, HeadwaterError):
            answered(answer)
        else:
            await self._prepare_and_decide(command, answered)

    def _renew_shared(self, stream: LoadedStream, ttl_s: int, now_ms: int) -> None:
        """Renew ahead, so that others, who do not know of later reads, do not delete the stream too early."""
        ahead_ms = ttl_s * 1000 // bounds.TTL_RENEWAL_PARTS
        due_ms = now_ms
        if stream.live is not None and not stream.live.empty:  # it is renewed with each poll
            due_ms += bounds.WATCH_POLL_MS
            ahead_ms = max(ahead_ms, 3 * bounds.WATCH_POLL_MS)
        if due_ms <= stream.state.accessed_ms or not self._may_renew:
            return
        is_newest = self._catalogue.by_id(stream.id) is stream
        if self.sharing is None or not is_newest or self.sharing.is_held(stream):
            return
        expects: dict[Key, int] = {stream.id: stream.state.version}
        event = Touched(stream.id, now_ms + ahead_ms)
        self._catalogue.apply(event)
        self.committer.add(PendingRecord((event,), (stream.state,), expects, (stream,), Reply(), None))

    # Renewing

    def renew(self, stream: LoadedStream, now_ms: int) -> None:
        """Renew a time-to-live. This is stored only after a part of it has passed, which a crash can lose."""
        ttl_s = stream.state.ttl_s
        if ttl_s is None or stream.deleted is not None or self._refusing is _stopping:
            return
        if self.sharing is not None:
            self._renew_shared(stream, ttl_s, now_ms)
            return
        evolve(stream.state, Touched(stream.id, now_ms))
        if now_ms - stream.touched_ms >= ttl_s * 1000 // bounds.TTL_RENEWAL_PARTS:
            self._catalogue.renewals[stream] = None
            self.record_renewals()

    @property
    def _may_renew(self) -> bool:
        """Whether renewals can be stored at present."""
        return self._refusing is None and not self._store.full and (self._fence is None or self._fence() is None)

    def record_renewals(self) -> None:
        """Store renewals; if there is no room, later."""
        renewals = self._catalogue.renewals
        while renewals and self._may_renew:
            stream, _ = renewals.popitem()
            if self._catalogue.by_id(stream.id) is stream:
                stream.touched_ms = stream.state.accessed_ms
                event = Touched(stream.id, stream.touched_ms)
                self._catalogue.apply(event)
                self.committer.add(PendingRecord((event,), (stream.state,), None, (stream,), Reply(), None))

    def renew_if_watched(self, stream: LoadedStream | None, now_ms: int) -> None:
        """Renew a stream with live readers, so that it does not expire."""
        if stream is not None and stream.live is not None and not stream.live.empty:
            self.renew(stream, now_ms)

    # After a commit

    def _publish(self, commits: list[PendingRecord]) -> None:
        updated: dict[LoadedStream, list[bytes]] = {}
        watched: dict[tuple[LoadedStream, News], None] = {}  # once for each stream, however many appends it had
        version = self.watch.version
        self.written_ms = self._now_ms()
        for commit in commits:
            for number, event in enumerate(commit.record):  # faster than zip with strict=True
                changed = commit.changed[number]
                changed.pending -= 1
                if type(changed) is LoadedStream:
                    if type(event) is Appended:
                        if event.close or changed.state.kind >= ROWS:
                            extend(changed, changed.state.kind, event.data, closes=event.close)
                        else:  # as `extend` does it, without the call
                            changed.tail += len(event.data)
                        if changed.live is not None:
                            updated.setdefault(changed, []).append(event.data)
                        if changed.retention is not None and changed.retention.compact:
                            self._note_compactable(changed)
                        if changed.unwatched != version and event.data:
                            watched[changed, News.APPENDED] = None
                    else:
                        self._publish_life(event, changed)
                        watched |= dict.fromkeys([(changed, news) for news in _news(event)])
                elif type(changed) is LoadedDocument:
                    changed.durable = _document(event, changed)
        _answer_all(commits)
        for stream, parts in updated.items():
            _tell(stream, parts, self.written_ms)
        if version:
            self._tell_watch(watched)

    def _publish_shared(self, commits: list[PendingRecord]) -> None:
        if self._is_superseded(commits):  # it is stored, and its states are not in memory any more
            _answer_all(commits)
        else:
            self._publish(commits)
        if self.sharing is not None:
            self.sharing.settle()

    def _tell_watch(self, watched: Iterable[tuple[LoadedStream, News]]) -> None:
        for stream, news in watched:
            version = self.watch.version
            if not self.tell_watch(stream.path, news):
                stream.unwatched = version

    def tell_watch(self, path: str, news: News) -> bool:
        """Tell the `PathWatch` of a stream. Returns whether it may have an interest in it."""
        try:
            return self.watch.note(path, news)
        except Exception:  # the records are durable and answered
            log.exception("the watch of streams failed for %r", path)
            return True

    def _publish_life(self, event: Event, stream: LoadedStream) -> None:
        if isinstance(event, Created):
            stream.last_seqno = event.last_seqno
            extend(stream, event.kind, event.data, closes=event.closed)
            self._catalogue.show(stream)
            self._note_compactable(stream)
        elif isinstance(event, Trimmed | Compacted):
            replace_front(stream, event)
        elif isinstance(event, Retained):
            replace_front(stream, event)
            self._note_compactable(stream)
        elif isinstance(event, SoftDeleted):
            replace_front(stream, event)
            stream.deleted = StreamGoneError
            self._end(stream)
        elif isinstance(event, Deleted):
            stream.deleted = StreamNotFoundError
            self._catalogue.hide(stream)
            self._end(stream)

    def note_compactable(self, state: StreamState) -> None:
        """Another server has changed a stream that is not in memory."""
        self._note_compactable(loaded_stream(state, durable=True))

    def _note_compactable(self, stream: LoadedStream) -> None:
        if self.compactable is not None and stream.retention is not None and stream.retention.compact:
            newest = stream.snapshots[-1].next if stream.snapshots else stream.first
            self.compactable(stream.path, stream.tail - newest, stream.size)

    def _end(self, stream: LoadedStream) -> None:
        if stream.live is not None:
            stream.live.end(Ended.DELETED)

    # After another database took the place of the former one

    def forget_all(self) -> None:
        """Take the timeline of the database that took over, and forget all states: what is in memory may be newer than
        what is there. What waits is refused. A batch in progress is stored or not, which its end tells."""
        log.warning("another database took the place of the former one, or it was restored: a timeline begins")
        self._catalogue.timeline = self._store.timeline
        waiting = self.committer.withdraw()
        self._superseded = self.committer.give_up()
        if self.sharing is not None:
            self.sharing.give_up(replaced())
        self._catalogue.forget_all()
        self._refuse_all(waiting, replaced())

    def _refuse_all(self, commits: list[PendingRecord], error: HeadwaterError) -> None:
        for commit in commits:
            if self.usage is not None:
                self.usage.note(commit.record, _states(commit), -1)
            _answer(commit, error)

    def _is_superseded(self, commits: list[PendingRecord]) -> bool:
        return any(commits is one for one in self._superseded)

    def _end_superseded(self, committed: list[PendingRecord], error: BaseException) -> bool:
        """End a batch of which nothing is in memory any more. False: it is none of these."""
        is_known = isinstance(error, OutdatedError | NotStoredError | UnavailableError | RefusedError)
        if not is_known or not self._is_superseded(committed):
            return False
        refused = passed_to_store(committed)
        if isinstance(error, OutdatedError):
            refused = [refused[index] for index in error.records]
        is_refused = set(map(id, refused))
        self._refuse_all(refused, replaced())
        for commit in committed:
            if id(commit) not in is_refused:
                _answer(commit, commit.answer)
        if self.sharing is not None:
            self.sharing.settle()
        return True

    # After a failed commit

    def _fail(self, committed: list[PendingRecord], error: BaseException) -> None:
        if self._end_superseded(committed, error):
            return
        if isinstance(error, OutdatedError):
            self._take_back(committed, error)
            return
        if self.sharing is not None and isinstance(error, UnavailableError | RefusedError):
            self._refuse_shared(committed, error)
            return
        commits = committed + self.committer.withdraw()
        if isinstance(error, RefusedError):
            self._refusing = lambda: _no_room(error)
            # The store has tried a batch of these alone with the space of its reserve.
            hopeless = all(_may_repeat(commit) for commit in committed if commit.record)
            self._tasks.start(self._roll_back(commits, error, set(map(id, committed)) if hopeless else set()))
            return
        # After a failed write it is unknown which data is durable, so nothing more may be written.
        # What was not passed to the store, and answers that changed nothing, can be repeated.
        written = {id(commit) for commit in committed if commit.record}
        for commit in commits:
            _answer(commit, self._unknown(error) if id(commit) in written else _stopping())
        self.stop_for(error)

    def _unknown(self, error: BaseException) -> HeadwaterError:
        detail = f"{type(error).__name__} while writing; the server log has the cause"
        if self.sharing is not None:  # another server may be asked
            return OutcomePendingError(detail, retry_after_s=bounds.RETRY_AFTER_S)
        return UnknownOutcomeError(detail)

    def _take_back(self, committed: list[PendingRecord], error: OutdatedError) -> None:
        """Another server was faster: decide again what was decided on its states, and publish the rest of a batch."""
        passed = passed_to_store(committed)
        outdated = [passed[index] for index in error.records]
        taken = set(map(id, outdated))
        self._publish_shared([commit for commit in committed if id(commit) not in taken])
        outdated += self.committer.withdraw_sharing(outdated)
        self._restore(outdated, outdated, is_locking=True)

    def _refuse_shared(self, committed: list[PendingRecord], error: UnavailableError | RefusedError) -> None:
        """Nothing of a batch is stored: tell its writers, and restore the states that it has changed."""
        commits = passed_to_store(committed)
        commits += self.committer.withdraw_sharing(commits)
        again: list[PendingRecord] = []
        if isinstance(error, RefusedError) and not all(_may_repeat(commit) for commit in committed if commit.record):
            again = [commit for commit in commits if _may_repeat(commit)]
        repeated = set(map(id, again))
        for commit in commits:
            if id(commit) not in repeated:
                _answer(commit, _unavailable(error) if isinstance(error, UnavailableError) else _no_room(error))
        for commit in committed:
            if not commit.expects:  # it only waited for the batch
                _answer(commit, commit.answer)
        self._restore(commits, again)

    def _restore(self, commits: list[PendingRecord], again: list[PendingRecord], *, is_locking: bool = False) -> None:
        """Restore what records have changed, then decide the commands of some of them."""
        if self.usage is not None:
            for commit in commits:
                self.usage.note(commit.record, _states(commit), -1)
        if self.sharing is not None:
            repeated = [(one.command, one.answered) for one in again if one.command and one.answered]
            renewed = [one.changed[0] for one in commits if one.command is None and one.changed]
            self.sharing.restore(commits, repeated, renewed, is_locking=is_locking)

    async def _roll_back(self, commits: list[PendingRecord], refused: RefusedError, hopeless: set[int]) -> None:
        """The disk is full: restore the durable states, then send the error to the writers of the dropped records.

        Commands that free space are decided again, except those in `hopeless` (ids of commits).
        """
        changed = dict.fromkeys(one for commit in commits for one in commit.changed)
        if self.usage is not None:
            for commit in commits:
                self.usage.note(commit.record, _states(commit), -1)
        try:
            await self._loader.roll_back(
                [one for one in changed if isinstance(one, LoadedStream)],
                [one for one in changed if isinstance(one, LoadedDocument)],
            )
        except Exception as error:  # noqa: BLE001 - the durable states are unknown
            self.stop_for(error)
        else:
            self._catalogue.count = self._store.streams
            if self._refusing is not _stopping:
                self._refusing = None
        postponed, self._postponed = self._postponed, []
        for commit in commits:
            if not _may_repeat(commit) or id(commit) in hopeless:
                _answer(commit, _no_room(refused))
            elif commit.command is not None and commit.answered is not None:
                self.submit(commit.command, commit.answered)
        for command, answered in postponed:
            self.submit(command, answered)


class _Nobody:
    """A watch without interest in any stream."""

    version = 0

    def note(self, path: str, news: News) -> bool:
        return False


NOBODY = _Nobody()


def _news(event: Event) -> tuple[News, ...]:
    """What an event that is no append means for a `PathWatch`."""
    if isinstance(event, Created):
        return (News.CREATED, News.APPENDED) if event.data else (News.CREATED,)
    return (News.DELETED,) if isinstance(event, Deleted | SoftDeleted) else ()


def _states(commit: PendingRecord) -> Callable[[int], StreamState]:
    """The states of the streams of a record, by id."""
    return {one.id: one.state for one in commit.changed if isinstance(one, LoadedStream)}.__getitem__


def _frees(command: Command) -> bool:
    """Whether a command is accepted whatever is full: it removes something, says what is to be removed, or closes a
    stream, which adds no data."""
    if type(command) is Append:  # first, because these are frequent
        return command.frees or (command.close and not command.body and not command.documents)
    if isinstance(command, WriteDocuments):
        return all(document.data is None for document in command.documents)
    return isinstance(command, Delete | Expire | Trim | Retain | Compact)


def _source(catalogue: Catalogue, command: Command) -> LoadedStream | None:
    """The source stream of a fork."""
    fork = command.fork if isinstance(command, Create) else None
    return None if fork is None else catalogue.newest(fork.source)


def _tell(stream: LoadedStream, parts: list[bytes], now_ms: int) -> None:
    """Notify live readers of appended data. Large appends are not joined, because copying them takes long."""
    start = stream.tail - sum(map(len, parts))
    while parts and stream.live is not None:
        count, size = 1, len(parts[0])
        while count < len(parts) and size + len(parts[count]) <= bounds.UPDATE_BYTES_MAX:
            size += len(parts[count])
            count += 1
        data, parts = b"".join(parts[:count]), parts[count:]
        end = start + size
        state = stream.state
        stream.live.publish(
            Slice(
                state.id,
                state.kind,
                start,
                end,
                state.offset(end),
                data,
                stream.closed and not parts,
                now_ms,
                last_seqno=stream.last_seqno,
            )
        )
        start = end


def _answer_all(commits: Iterable[PendingRecord]) -> None:
    """Send the replies of a batch, as `_answer` does, without a call for each."""
    for commit in commits:
        if commit.answered is not None:
            try:
                commit.answered(commit.answer)
            except Exception:
                log.exception("failed to send a reply")


def _answer(commit: PendingRecord, answer: Answer) -> None:
    """Send one reply. An exception in the callback must not affect other replies."""
    if commit.answered is not None:
        try:
            commit.answered(answer)
        except Exception:
            log.exception("failed to send a reply")


def _document(event: Event, loaded: LoadedDocument) -> Document | None:
    """The document after a durable event. Later events may not be durable yet."""
    if not isinstance(event, DOCUMENT_EVENTS):
        raise TypeError(f"{type(event).__name__} is not an event of a document")
    return evolve_document(loaded.durable, event)


def _stopping() -> HeadwaterError:
    return StoppingError("the server accepts no more writes", retry_after_s=bounds.RETRY_AFTER_S)


def _may_repeat(commit: PendingRecord) -> bool:
    """Whether a record frees space and has a command, so that it is decided again after there was no room."""
    return commit.command is not None and commit.answered is not None and _frees(commit.command)


def _unavailable(error: UnavailableError) -> HeadwaterError:
    return UnavailableError(str(error), retry_after_s=bounds.RETRY_AFTER_S)


def _no_room(refused: RefusedError) -> HeadwaterError:
    return OutOfMemoryError(str(refused)) if isinstance(refused, NoMemoryError) else _full(str(refused))


def _full(reason: str) -> HeadwaterError:
    return StorageFullError(reason, retry_after_s=bounds.RETRY_AFTER_S)


def _undecided(error: Exception) -> HeadwaterError:
    """The error for a command that was not decided, so that nothing of it is stored."""
    if isinstance(error, MemoryError):
        return OutOfMemoryError("there was no memory for the write; nothing was stored")
    return _internal(error)


def _internal(error: BaseException) -> HeadwaterError:
    return InternalError(f"{type(error).__name__} while writing; the server log has the cause")
