"""The engine: one writer and many readers over a store. Its interface is messages.

writer         commands: decide, commit, publish
reader         reads, live readers
catalogue      the streams and documents in memory
housekeeping   expiry, retention and eviction
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable

from headwater import limits as bounds
from headwater.engine.catalogue import Catalogue, LoadedStream, replaced
from headwater.engine.clock import Clock, SteadyClock
from headwater.engine.committer import Answer, Answered
from headwater.engine.follower import SharedSlices
from headwater.engine.fronts import Fronts
from headwater.engine.housekeeping import Housekeeping
from headwater.engine.large_reads import LargeReads
from headwater.engine.live import LiveReaders
from headwater.engine.loading import Loader
from headwater.engine.messages import (
    FindFront,
    FindRecords,
    FindRow,
    FindSplits,
    FrontReply,
    PathWatch,
    Read,
    ReadMore,
    ReadReply,
    RecordsReply,
    RowReply,
    SplitsReply,
    StreamDetails,
    VisiblePage,
    VisibleStream,
)
from headwater.engine.ordering import ProducerOrder
from headwater.engine.ranges import Ranges
from headwater.engine.reader import DurableReader
from headwater.engine.recounting import Recounter, counted
from headwater.engine.reporting import Busiest, EngineReport, Sampler
from headwater.engine.retaining import Retainer
from headwater.engine.rows import Rows
from headwater.engine.tails import Subscriber
from headwater.engine.watching import Watcher
from headwater.engine.writer import NOBODY, Writer
from headwater.errors import HeadwaterError
from headwater.limits import LIST_PAGE_MAX, Limits
from headwater.log.commands import Command, Reply
from headwater.log.content import ContentKind
from headwater.log.offsets import Offset
from headwater.log.quotas import Prefixes, Usage
from headwater.log.retention import Retention
from headwater.log.state import Document
from headwater.store.contract import SharedStore, Store, shared


def _ignore(_: BaseException) -> None:
    """The default callback for a failed store: does nothing, because every write reports the failure."""


def _always() -> bool:
    """By default, this server is the only one."""
    return True


def _keep_all(_: str) -> Retention | None:
    """By default, nothing is trimmed."""
    return None


class Engine:
    """The interface to all parts of the engine. Most of its methods are one line."""

    def __init__(
        self,
        store: Store,
        limits: Limits | None = None,
        *,
        clock: Clock | None = None,
        fatal: Callable[[BaseException], None] = _ignore,
        fence: Callable[[], HeadwaterError | None] | None = None,
        usage: Usage | None = None,
        default_retention: Callable[[str], Retention | None] = _keep_all,
        may_sweep: Callable[[], bool] = _always,
    ) -> None:
        """`usage` has the quotas of prefixes and tokens. `default_retention` is that of a new stream at a path which is
        created without one. `may_sweep`: whether this server deletes what has expired and trims what is due; of those
        that share a store, one does."""
        self._usage = usage = Usage(Prefixes(())) if usage is None else usage
        self.limits = limits = limits or Limits()
        among = shared(store)
        self._clock = clock or (
            SteadyClock(store.latest) if among is None else SteadyClock(store.latest, wall=among.wall_s)
        )
        self.now_ms = self._clock.now_ms
        self._store = store
        self._catalogue = catalogue = Catalogue()
        loader = Loader(store, catalogue)
        self._writer = Writer(
            store,
            catalogue,
            loader,
            limits,
            self.now_ms,
            fatal,
            self._fetch_record,
            fence,
            self._make_room,
            usage,
            default_retention,
        )
        # Execute a command. `answered` is called with the reply or the error as soon as it is final.
        self.submit: Callable[[Command, Answered], None] = self._writer.submit
        self._large = large = LargeReads(limits.large_read_bytes_max)
        self._live = LiveReaders(catalogue, self._writer, large, self.now_ms)
        self.slices = SharedSlices(self.now_ms)  # of live readers
        self._reader = DurableReader(
            store, catalogue, loader, self._writer, self._live, large, limits, self.now_ms, self.execute
        )
        self._ranges = Ranges(store, self._reader)
        self._rows = Rows(self._reader)
        self._fronts = Fronts(self._reader, self._ranges)
        self._sampler = Sampler(catalogue)
        self._retainer = Retainer(
            self._reader,
            self._ranges,
            self._rows,
            self.now_ms,
            self.execute,
            lambda: self._housekeeping.grace_ms(),
        )
        self._housekeeping = Housekeeping(
            store, catalogue, self._live, limits, self.now_ms, self.execute, self._retainer.trim_due, may_sweep
        )
        self._watcher = self._watched(among)
        self._recounter = None if among is None else Recounter(among, catalogue, usage)
        self._giving_up: asyncio.TimerHandle | None = None

    def _watched(self, store: SharedStore | None) -> Watcher | None:
        """What tells of the changes of other servers; None if there are none."""
        sharing = self._writer.sharing
        if store is None or sharing is None:
            return None
        store.on_replaced(self._forget_all)
        watcher = Watcher(store, self._catalogue, sharing.freshness, self._live, self._writer, self.now_ms)
        self._live.joined = watcher.look
        return watcher

    def _forget_all(self) -> None:
        """Another database took the place of the former one."""
        self._writer.forget_all()
        self.slices.clear()
        self._large.forget()
        self._live.end_all(replaced())

    async def _fetch_record(self, stream: LoadedStream, position: int, wanted: bool) -> bytes:
        return await self._reader.fetch_record(stream, position, wanted)

    async def _make_room(self) -> bool:
        return await self._housekeeping.make_room()

    # Start and stop

    async def start(self) -> None:
        await self._store.start(self._writer.stop_for, self._clock.moment)
        self._writer.start()
        if self._usage:
            self._usage.take(await counted(self._store, self._usage))
        if self._watcher is not None:
            await self._watcher.start()
        if self._recounter is not None:
            self._recounter.start()
        self._housekeeping.start()

    def drain(self) -> None:
        """Refuse new writes and end all live reads."""
        self._live.drain()
        self._writer.drain()

    def end_live_reads(self) -> None:
        """End all live reads and accept no more. Writes go on."""
        self._live.drain()
        self._writer.end_live_reads()

    async def stop(self) -> None:
        """Commit all accepted writes and close the store."""
        self.drain()
        self.give_up_soon()
        await self._housekeeping.stop()
        if self._recounter is not None:
            await self._recounter.stop()
        if self._watcher is not None:
            await self._watcher.stop()
        await self._writer.finish()
        if self._giving_up is not None:
            self._giving_up.cancel()
        await self._store.close()

    def give_up_soon(self) -> None:
        """Wait only for some time for the outcome of a batch, because the server stops."""
        among = shared(self._store)
        if among is not None and self._giving_up is None:
            self._giving_up = asyncio.get_running_loop().call_later(bounds.POSTGRES_STOP_S, among.give_up)

    async def relieve(self) -> None:
        """Free memory: drop data that can be loaded again."""
        self._store.relieve()
        await self._catalogue.evict(len(self._catalogue) // 2, 0)

    @property
    def is_shared(self) -> bool:
        """Whether other servers use the store too."""
        return self._store.shared

    @property
    def usage(self) -> Usage:
        """The quotas of prefixes and tokens, and what they use."""
        return self._usage

    # Writing

    def fenced(self, refusal: Callable[[], HeadwaterError | None]) -> Engine:
        """The same engine for work that may be taken away: commands are refused while `refusal` returns an error."""
        fenced, submit = copy.copy(self), self.submit

        def submit_fenced(command: Command, answered: Answered) -> None:
            error = refusal()
            if error is None:
                submit(command, answered)
            else:
                answered(error)

        fenced.submit = submit_fenced
        return fenced

    async def execute(self, command: Command) -> Reply:
        """Execute a command and wait for its reply."""
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

    async def retain(self, path: str, changes: tuple[tuple[str, int | bool | None], ...]) -> Reply:
        """Change fields of the retention of a stream or table."""
        return await self._retainer.retain(path, changes)

    async def trim(
        self, path: str, *, before: Offset | None = None, at_ms: int | None = None, seqno: int | None = None
    ) -> Reply:
        """Remove the records before an offset, a time or, of a table, before a row."""
        return await self._retainer.trim(path, before=before, at_ms=at_ms, seqno=seqno)

    # Reading

    @property
    def timeline(self) -> int:
        """A number that grows with each restore of the store to an earlier state; 0 if there was none."""
        return self._catalogue.timeline

    async def info(self, path: str) -> VisibleStream:
        return await self._reader.info(path)

    async def details(self, path: str) -> StreamDetails:
        return await self._reader.details(path)

    def loaded(self, path: str) -> VisibleStream | None:
        """A stream as readers see it, if it is in memory and no other server can have changed it. This does not renew
        its time-to-live."""
        stream = None if self._store.shared else self._catalogue.visible(path)
        return None if stream is None else stream.info()

    @property
    def order(self) -> ProducerOrder:
        """The order of a producer's appends, for wires that cannot submit an append at once."""
        return self._writer.order

    def framing(self, path: str) -> tuple[int, str, ContentKind] | None:
        """The id, content type and kind of a stream, which never change, if it is in memory and no other server can
        have replaced it."""
        stream = None if self._store.shared else self._catalogue.visible(path)
        return None if stream is None else (stream.id, stream.state.content_type, stream.state.kind)

    def read(self, message: Read) -> Awaitable[ReadReply]:
        return self._reader.read(message)

    def hold(self, data: bytes) -> object:
        """Count large data that is sent to readers, with the large records, as long as the returned object exists."""
        return self._large.hold(
            -id(data), 0, len(data), data
        )  # no stream has such an id, nor another object while it exists

    def read_more(self, message: ReadMore) -> Awaitable[ReadReply]:
        return self._reader.read_more(message)

    async def page(self, prefix: str, after: str, limit: int) -> VisiblePage:
        """A page of streams in path order."""
        return await self._reader.page(prefix, after, limit)

    async def splits(self, message: FindSplits) -> SplitsReply:
        return await self._ranges.splits(message)

    async def records(self, message: FindRecords) -> RecordsReply:
        return await self._ranges.records(message)

    async def front(self, message: FindFront) -> FrontReply:
        return await self._fronts.find(message)

    async def find_row(self, message: FindRow) -> RowReply:
        return await self._rows.find(message)

    async def document(self, key: str) -> Document | None:
        return await self._reader.document(key)

    async def documents(self, prefix: str, after: str, limit: int) -> list[Document]:
        """A page of documents in the order of their keys."""
        return await self._reader.documents(prefix, after, limit)

    async def all_documents(self, prefix: str) -> AsyncIterator[Document]:
        """The documents whose keys begin with a prefix, read page by page."""
        after = ""
        while page := await self.documents(prefix, after, LIST_PAGE_MAX):
            for document in page:
                yield document
            after = page[-1].key

    # Reports

    def report(self) -> EngineReport:
        """A copy of all measurements and the current state."""
        committer = self._writer.committer
        commits, (backlog_records, backlog_bytes) = committer.measures, committer.backlog
        return EngineReport(
            streams=self._catalogue.count,
            streams_loaded=len(self._catalogue),
            streams_retained=self._catalogue.retained,
            documents_loaded=self._catalogue.documents_loaded,
            trims=self._retainer.trims.copy(),
            commit_sizes=commits.sizes.copy(),
            commit_seconds=commits.seconds.copy(),
            commit_failures=commits.failures,
            outdated_records=commits.outdated,
            committed_bytes=commits.accepted_bytes,
            backlog_records=backlog_records,
            backlog_bytes=backlog_bytes,
            subscribers=dict(self._live.kinds),
            waiting=self._live.waiting,
            refusing=self._writer.refusing,
            full=self._store.full,
            store=self._store.report(),
        )

    async def busiest(self, limit: int, *, by_size: bool = False) -> Busiest:
        """The streams in memory with the highest append rates, or the largest ones."""
        return await self._sampler.busiest(limit, by_size=by_size)

    def watch(self, watch: PathWatch | None) -> None:
        """Tell `watch` of all durable changes of streams from now on; None: nobody."""
        self._writer.watch = NOBODY if watch is None else watch

    def note_compactable(self, note: Callable[[str, int, int], None] | None) -> None:
        """Call `note` with the path of a stream that is to be compacted whenever it was created or changed: how many of
        its bytes are newer than its last snapshot, and how many a new reader gets."""
        self._writer.compactable = note

    # Live readers: for `StreamFollower`

    def follow(self, stream_id: int, subscriber: Subscriber) -> VisibleStream:
        return self._live.follow(stream_id, subscriber)

    def unfollow(self, stream_id: int, subscriber: Subscriber) -> None:
        self._live.unfollow(stream_id, subscriber)
