"""One followed SURL: requests, waits and failures. `TableFollowing` interprets responses; the mirror stores the rows.

| what happens                                        | what follows                                               |
|-----------------------------------------------------|------------------------------------------------------------|
| no connection, connection lost, 404, 429, 5xx       | retried without limit, with growing waits                  |
| a response that lacks rows or is cut off            | the same a few times, then every FOLLOW_REFUSED_S          |
| no table, an invalid row, a redirect, others        | reported, retried every FOLLOW_REFUSED_S                   |
| a local table that cannot be written to             | reported, retried every FOLLOW_REFUSED_S                   |
| fewer rows than before, as during a restore         | the same a few times, then every FOLLOW_REFUSED_S          |
| another schema                                      | reported, the follower stops; the mirror stays as it is    |
| another history, a row that comes too late          | the same, also after a restart, until the mirror is deleted|
| 410: rows were removed before they were mirrored    | the mirror deletes what the table has no more, continues   |
| the remote table is closed                          | the mirror is closed, and the follower stops               |
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import random
import sys
from collections.abc import Callable

import msgspec

from headwater import limits
from headwater.backoff import Backoff
from headwater.engine import Engine
from headwater.errors import (
    ClientError,
    HeadwaterError,
    HistoryChangedError,
    OffsetTrimmedError,
    OutboundError,
    ProtocolError,
    RowOrderError,
    TargetAnswerError,
    TargetUnreachableError,
    is_retryable,
)
from headwater.outbound import CheckedUrl, OutboundClient, StreamedAnswer
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.tables.content_type import MEDIA_TYPE
from headwater.protocol.tables.following import TableFollowing, is_final
from headwater.protocol.tables.headers import FIRST_SEQNO, parse_first_seqno
from headwater.protocol.tables.repairing import changes_between
from headwater.protocol.tables.rows import Row
from headwater.protocol.trace_context import TraceContext
from headwater.server.following.documents import Stopped, find_stopped, write_stopped
from headwater.server.following.handshake import Handshake
from headwater.server.following.mirror import Mirror, open_mirror
from headwater.server.observing.tracing import next_header

log = logging.getLogger("headwater.following")

# After these, continuing would mix the rows of two histories, or leave rows out.
# These are not seen again after a restart, which asks for the rows after the last one only.
_LASTING = (HistoryChangedError, RowOrderError)
_OK = 200
_NOT_FOUND = 404  # the table may be created later
_GONE = 410


class FollowerState(enum.Enum):
    FOLLOWING = "following"
    RETRYING = "retrying"  # no response yet, or the last request failed
    STOPPED = "stopped"


class FollowerStatus(msgspec.Struct, frozen=True):
    name: str
    surl: str  # without its query, which may hold a secret
    state: FollowerState
    last_seqno: int
    remote_last_seqno: int | None  # None: not known
    lag_rows: int | None  # the difference of the two
    last_error: str | None
    since: str  # when the state began
    notify: str  # the result of the handshake


class Follower:
    def __init__(
        self,
        engine: Engine,
        client: OutboundClient,
        name: str,
        surl: CheckedUrl,
        nurl: str | None = None,
        entropy: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.surl = surl
        self._engine = engine
        self._client = client
        self._entropy = entropy
        self._backoff = Backoff(limits.RETRY_FIRST_S, limits.RETRY_MAX_S, jitter=0.5)
        self._woken = asyncio.Event()
        self._trace: TraceContext | None = None  # of the Notify that causes the next request
        self._handshake = Handshake(client, surl, nurl, self._woken.set)
        self._receiving: asyncio.Timeout | None = None  # of the current request
        self._heard_at = 0.0  # when the last rows arrived
        self._state = FollowerState.RETRYING
        self._since_ms = engine.now_ms()
        self._last_error: str | None = None
        self._mirror: Mirror | None = None
        self._remote_last_seqno: int | None = None

    def wake(self, trace: TraceContext | None = None) -> None:
        """The remote table may have new rows: request them at once.

        A response that is held open delivers them. If it does not, its connection may be dead and is closed.
        """
        self._trace = trace
        self._woken.set()
        now, receiving = asyncio.get_running_loop().time(), self._receiving
        if receiving is not None and receiving.when() is None and now - self._heard_at > limits.FOLLOW_NOTIFIED_S:
            receiving.reschedule(now + limits.FOLLOW_NOTIFIED_S)

    @property
    def stopped(self) -> bool:
        return self._state is FollowerState.STOPPED

    def status(self) -> FollowerStatus:
        last = self._last_seqno()
        remote = None if self._remote_last_seqno is None else max(last, self._remote_last_seqno)
        return FollowerStatus(
            self.name,
            self.surl.shown,
            self._state,
            last,
            remote,
            None if remote is None else remote - last,
            self._last_error,
            format_instant(self._since_ms),
            self._handshake.status,
        )

    def _last_seqno(self) -> int:
        return 0 if self._mirror is None else self._mirror.last_seqno

    async def run(self) -> None:
        """Follow until the remote table is closed, or until it is no longer the table that was mirrored."""
        try:
            await self._run()
        finally:
            await self._handshake.close()

    async def _run(self) -> None:
        failures, reached = 0, -1  # reached: the last row at the previous failure
        while True:
            try:
                stopped = await self._follow_from_mirror()
            except HeadwaterError as error:
                if is_final(error):
                    await self._stop(error)
                    return
                failures = failures + 1 if self._last_seqno() == reached else 1
                reached = self._last_seqno()
                self._note(FollowerState.RETRYING, error)
                wait_s = self._backoff.wait_s(failures, self._entropy()) if error.retryable else limits.FOLLOW_REFUSED_S
            except Exception as error:  # a bug; the mirror is consistent, so retry
                log.exception("following %s into table %r failed", self.surl.shown, self.name)
                self._note(FollowerState.RETRYING, error)
                wait_s = limits.FOLLOW_REFUSED_S
            else:
                self._note(FollowerState.STOPPED, None if stopped is None else stopped.reason)
                return
            await self._pause(wait_s)

    async def _follow_from_mirror(self) -> Stopped | None:
        """Follow until the end. Returns why the follower of this mirror stopped earlier, if it did."""
        self._mirror = mirror = await open_mirror(self._engine, self.name)
        try:
            stopped = await find_stopped(self._engine, self.name, mirror.id)
            if stopped is None and not mirror.closed:
                await self._follow(mirror)
            return stopped
        finally:
            await mirror.abandon()

    async def _stop(self, error: HeadwaterError) -> None:
        """Stop after a final error, durably if a restart would not see it again."""
        if not isinstance(error, _LASTING) or self._mirror is None:
            self._note(FollowerState.STOPPED, error)
            return
        advice = f"to follow the table again from its beginning, delete its mirror: headwater table delete {self.name}"
        stopped = Stopped(self._mirror.id, f"{error}; {advice}")
        while True:
            try:
                await write_stopped(self._engine, self.name, stopped)
            except HeadwaterError as refusal:
                log.error("table %r: the reason why its follower stopped could not be stored: %s", self.name, refusal)
                self._note(FollowerState.STOPPED, stopped.reason)
                await asyncio.sleep(limits.FOLLOW_REFUSED_S)
            else:
                self._note(FollowerState.STOPPED, stopped.reason)
                return

    async def _follow(self, mirror: Mirror) -> None:
        """Retry errors of the remote server; raise errors of the mirror."""
        following = TableFollowing(mirror.last_seqno, table=mirror.table, last_row=mirror.last_row)
        loop = asyncio.get_running_loop()
        while not following.ended:
            asked_at = loop.time()
            try:
                whole = await self._request(following, mirror)
                wait_s = following.finish(loop.time() - asked_at) if whole else 0.0
            except (OutboundError, ClientError, OffsetTrimmedError) as error:
                error.url = error.url or self.surl.shown
                self._handshake.lost()
                await _settle(following, mirror)  # the rows before the fault are valid
                if following.has_lost_nothing(error):
                    continue
                if isinstance(error, OffsetTrimmedError) and error.first_seqno is not None and mirror.last_seqno:
                    await self._repair(mirror, following, error.first_seqno)
                    continue
                failures = following.failed(error, sys.maxsize)
                self._note(FollowerState.RETRYING, error)
                # Give a lagging replica time to catch up, even after a Notify.
                wait_s = max(self._backoff.wait_s(failures, self._entropy()), error.retry_after_s or 0.0)
                await self._pause(wait_s, wakeable=not isinstance(error, ProtocolError))
            else:
                await _settle(following, mirror)
                await self._pause(wait_s)
        await mirror.close()

    async def _repair(self, mirror: Mirror, following: TableFollowing, first_seqno: int) -> None:
        """Give the mirror what it lacks of rows that were removed before they were mirrored."""
        log.warning("%s into table %r: rows before %d were removed", self.surl.shown, self.name, first_seqno)
        live: list[Row] = []
        snapshot, size_bytes = TableFollowing(snapshot=True, gaps=True, table=mirror.table), 0
        async with self._client.stream(
            "GET",
            self._url(0, "&view=active", held=False),
            headers={"accept": MEDIA_TYPE},
            idle_s=limits.FOLLOW_IDLE_S + limits.FOLLOW_SILENCE_S,
        ) as answer:
            self._check_status(answer)
            snapshot.begin(answer.headers)
            async with contextlib.aclosing(aiter(answer)) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    size_bytes += len(piece)
                    if size_bytes > limits.FOLLOW_REPAIR_BYTES_MAX:
                        raise HistoryChangedError(
                            f"rows before {first_seqno} were removed from the table before they were mirrored, and it "
                            f"has more than {limits.FOLLOW_REPAIR_BYTES_MAX} bytes of live rows to compare with"
                        )
                    live += snapshot.feed(piece)
            live += snapshot.end()
            snapshot.finish()
        last, keys = await mirror.live_keys()
        if rows := changes_between(keys, last, live, first_seqno):
            await mirror.add(rows)
            await mirror.flush()
        following.continue_after(first_seqno - 1)

    async def _request(self, following: TableFollowing, mirror: Mirror) -> bool:
        """Send one request. Returns whether the response was complete.

        A failed append ends the request, and so does a Notify after which no row arrives.
        """
        try:
            async with asyncio.timeout(None) as self._receiving:
                with mirror.on_failure(self._give_up):
                    await self._receive(following, mirror)
        except TimeoutError:
            await mirror.flush()  # raises the error of a failed append
            return False
        finally:
            self._receiving = None
        return True

    def _give_up(self) -> None:
        if self._receiving is not None and not self._receiving.expired():
            self._receiving.reschedule(asyncio.get_running_loop().time())

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if self._receiving is not None and self._receiving.when() is not None:
            self._receiving.reschedule(None)

    async def _receive(self, following: TableFollowing, mirror: Mirror) -> None:
        trace, self._trace = self._trace, None
        async with self._client.stream(
            "GET",
            self._url(following.since_id),
            headers={"accept": MEDIA_TYPE, **next_header(trace)},
            idle_s=limits.FOLLOW_IDLE_S + limits.FOLLOW_SILENCE_S,
        ) as answer:
            self._check_status(answer)
            following.begin(answer.headers)
            self._remote_last_seqno = following.last_seqno
            if mirror.table is None and following.table is not None:
                await mirror.create(following.table)
            self._note(FollowerState.FOLLOWING)
            self._handshake.answered(answer.headers)
            try:
                async with contextlib.aclosing(aiter(answer)) as pieces:  # type: ignore[type-var]
                    async for piece in pieces:
                        if rows := following.feed(piece):
                            self._heard()
                            await mirror.add(rows)
                        if following.is_done():
                            return
            except TargetUnreachableError as error:
                if error.how != "timeout":  # on a table without appends, silence is not a failure
                    raise
            if rows := following.end():
                await mirror.add(rows)

    def _url(self, since_id: int, view: str = "", *, held: bool = True) -> str:
        surl = str(self.surl)
        hold_s, since = (limits.FOLLOW_HOLD_S, f"since_id={since_id}&") if held else (0, "")
        query = f"{since}timeout={hold_s:g}&idle={limits.FOLLOW_IDLE_S:g}{view}"
        return f"{surl}{'&' if '?' in surl else '?'}{query}"

    def _check_status(self, answer: StreamedAnswer) -> None:
        if answer.status == _OK:
            return
        if answer.status == _GONE and FIRST_SEQNO in answer.headers:
            first_seqno = parse_first_seqno(answer.headers) or 1
            trimmed = OffsetTrimmedError(f"rows before {first_seqno} were removed", first_seqno=first_seqno)
            trimmed.url = self.surl.shown
            raise trimmed
        error = TargetAnswerError(f"answered {answer.status}")
        asked_s = answer.headers.get("retry-after", "").strip()
        if asked_s.isdecimal() and asked_s.isascii():  # dates are not supported
            error.retry_after_s = min(float(asked_s[:9]), limits.FOLLOW_REFUSED_S)
        error.retryable = answer.status == _NOT_FOUND or is_retryable(answer.status)
        error.url = self.surl.shown
        raise error

    async def _pause(self, wait_s: float, *, wakeable: bool = True) -> None:
        if not wakeable:
            await asyncio.sleep(wait_s)
        elif wait_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
        self._woken.clear()

    def _note(self, state: FollowerState, error: Exception | str | None = None) -> None:
        said = None if error is None else str(error) or type(error).__name__
        if (state, said) == (self._state, self._last_error):
            return
        if state is not self._state:
            self._state, self._since_ms = state, self._engine.now_ms()
        self._last_error = said
        level = {FollowerState.RETRYING: logging.WARNING, FollowerState.STOPPED: logging.ERROR}.get(state, logging.INFO)
        if state is FollowerState.STOPPED and said is None:
            level, said = logging.INFO, "the table is closed"
        log.log(level, "%s into table %r: %s%s", self.surl.shown, self.name, state.value, f": {said}" if said else "")


async def _settle(following: TableFollowing, mirror: Mirror) -> None:
    """Wait until the mirror has all accepted rows. Continuing without them would leave rows out."""
    await mirror.flush()
    if mirror.last_seqno != following.position and not following.continues_elsewhere:
        raise RuntimeError(f"the mirror ends with row {mirror.last_seqno}, and rows up to {following.position} came")
