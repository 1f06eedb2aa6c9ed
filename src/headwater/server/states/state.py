"""The state of one stream in memory: built at the first request for it, then kept current as long as it is requested.

A request names the position up to which everything must be applied, usually the tail when it arrived, so it sees every
append that was acknowledged before. Questions are answered on the event loop between two slices of the stream, so an
answer is the state at one offset. A large slice is folded in a thread, during which no question is answered.

A state at an offset is the same, without what follows that offset.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeVar

from headwater.engine import Engine
from headwater.engine.follower import Extent, Pulled
from headwater.engine.messages import Ended, Reason, Slice, VisibleStream
from headwater.errors import HeadwaterError, InternalError, StateTooLargeError, StoppingError, StreamNotFoundError
from headwater.limits import (
    STATE_BUILDS_AT_ONCE,
    STATE_EAGER_S,
    STATE_INLINE_BYTES,
    STATE_OWN_BYTES,
    STATE_READ_BYTES,
    STATE_SHORT_BUILDS_AT_ONCE,
    STATE_SHORT_BYTES,
    TURNS_S,
)
from headwater.log.offsets import Offset
from headwater.protocol.state.entities import Entities

log = logging.getLogger("headwater.server")

T = TypeVar("T")


class Builds:
    """Limits how many states are built at the same time. Short ones do not wait for long ones, nor states of now for
    those at an offset."""

    def __init__(self) -> None:
        self._short = asyncio.Semaphore(STATE_SHORT_BUILDS_AT_ONCE)
        self._long = asyncio.Semaphore(STATE_BUILDS_AT_ONCE)
        self._past = asyncio.Semaphore(STATE_BUILDS_AT_ONCE)

    def turn(self, size_bytes: int, *, past: bool) -> AbstractAsyncContextManager[None]:
        if past:
            return self._past
        return self._short if size_bytes <= STATE_SHORT_BYTES else self._long


class FoldedFrom(NamedTuple):
    """What the events from a position on are folded into: a snapshot, or nothing."""

    position: int
    is_snapshot: bool

    @classmethod
    def of(cls, stream: VisibleStream, until: int | None) -> FoldedFrom:
        """The one of a state that is built now."""
        for snapshot in reversed(stream.names.snapshots):
            if until is None or snapshot.next <= until:
                return cls(snapshot.next, is_snapshot=True)
        return cls(stream.first, is_snapshot=False)

    def is_left(self, stream: VisibleStream, now: FoldedFrom) -> bool:
        """Whether nothing was trimmed but what this base replaces. Compaction makes a snapshot of what is there, trims
        that, and keeps the snapshot until something behind it is trimmed."""
        if stream.first == self.position:
            return now.is_snapshot or not self.is_snapshot
        return stream.first < self.position


class _Question(NamedTuple):
    """What a request asks, once everything before a position is applied."""

    position: int
    number: int  # in order of arrival
    ask: Callable[[], Any]
    answer: asyncio.Future[Any]


class KeptState(Pulled):
    """The state of a stream, up to `until` or kept current."""

    def __init__(
        self,
        engine: Engine,
        stream: VisibleStream,
        until: int | None,
        builds: Builds,
        folded: Callable[[KeptState], None],
    ) -> None:
        """`folded` is called after each slice; it raises an error if the state has become too large."""
        extent = Extent.LIFE if until is None else Extent.RANGE
        begin = stream.names.begin(stream.first, until)
        super().__init__(engine, "state", stream, begin, bytes_max=STATE_READ_BYTES, until=until, extent=extent)
        self.until = until
        self.kept_as = (stream.id, until)
        self.entities = Entities()
        self.base = FoldedFrom.of(stream, until)
        self.position = begin  # up to which everything is applied
        self.offset: Offset = stream.offset(begin)  # of the position
        self.used_s = 0.0
        self.counted_bytes = 0
        self._builds = builds
        self._folded = folded
        self._questions: list[_Question] = []  # a heap
        self._numbers = itertools.count()
        self._reading: asyncio.Task[None] | None = None
        self._in_thread = False  # a slice is being folded in a thread
        self._answering = False  # more questions are answered in the next turn of the loop
        self._built = False
        self._failure: HeadwaterError | None = None

    @property
    def size_bytes(self) -> int:
        return self.entities.size_bytes + STATE_OWN_BYTES

    @property
    def is_busy(self) -> bool:
        return self._reading is not None or bool(self._questions)

    @property
    def is_over(self) -> bool:
        return self._failure is not None and not self.is_too_large

    @property
    def is_too_large(self) -> bool:
        return isinstance(self._failure, StateTooLargeError)

    def is_at(self, position: int) -> bool:
        """Whether a question would be answered at once."""
        return self._failure is None and not self._in_thread and self.position >= position

    def is_whole(self, stream: VisibleStream) -> bool:
        """Whether a state that is built now would be the same. A snapshot that was made since changes nothing."""
        now = FoldedFrom.of(stream, self.until)
        if not self.base.is_left(stream, now):
            return False
        self.base = max(self.base, now)
        return True

    def open(self) -> None:
        self.follower.open()

    def close(self, error: HeadwaterError) -> None:
        self._failure = error
        self.follower.close()
        self.entities = Entities()
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        for question in self._questions:
            if not question.answer.done():
                question.answer.set_exception(error)
        self._questions.clear()

    async def ask(self, position: int, question: Callable[[], T]) -> T:
        """The answer to a question, which is called once everything before a position is applied."""
        if self._failure is not None:
            raise self._failure
        self.follower.expect(position)
        if self.is_at(position):
            return question()
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._questions, _Question(position, next(self._numbers), question, answer))
        self._begin()
        return await answer

    def _answer(self) -> None:
        """Answer the questions whose position is reached, for a few milliseconds; the rest in the next turn."""
        self._answering = False
        until_s = time.perf_counter() + TURNS_S
        while self._questions and self.is_at(self._questions[0].position):
            question = heapq.heappop(self._questions)
            if question.answer.done():
                continue  # the client has disconnected
            try:
                question.answer.set_result(question.ask())
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                question.answer.set_exception(error)
            if time.perf_counter() >= until_s:
                self._answering = True
                asyncio.get_running_loop().call_soon(self._answer)
                break

    # From the follower

    def take(self, piece: Slice) -> bool:
        if self._reading is not None:
            return super().take(piece)
        if not self._is_eager:
            return False
        if len(piece.data) > STATE_INLINE_BYTES:
            self._begin()
            return False
        try:
            for _ in self.entities.fold(piece.data):
                """All of it: the slice is small."""
            self._applied(piece)
        except HeadwaterError as error:
            self.close(error)
        except Exception:
            log.exception("a state failed")
            self.close(InternalError("the server log has the cause"))
        return True

    def ended(self, reason: Reason) -> None:
        super().ended(reason)
        if isinstance(reason, HeadwaterError):
            self.close(reason)
        elif reason is Ended.DELETED:
            self.close(StreamNotFoundError("the stream was deleted"))
        elif reason is not Ended.REACHED:
            self.close(StoppingError("the server is stopping; try again shortly"))

    # Reading

    @property
    def _is_eager(self) -> bool:
        """Whether it is kept current although no request waits."""
        return self._built and asyncio.get_running_loop().time() - self.used_s < STATE_EAGER_S

    @property
    def _is_wanted(self) -> bool:
        return any(not question.answer.done() for question in self._questions) or self._is_eager

    @property
    def _goal(self) -> int:
        return self.follower.tail if self.until is None else self.until

    def _begin(self) -> None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            lacking_bytes = self.follower.stream.size(self.position, self._goal)
            async with self._builds.turn(lacking_bytes, past=self.until is not None):
                await self._read_on()
        except HeadwaterError as error:
            self.close(error)
        except Exception:
            log.exception("a state failed")
            self.close(InternalError("the server log has the cause"))
        finally:
            self._reading = None

    async def _read_on(self) -> None:
        """Read up to the end, as long as it is wanted. The next request continues where this one stopped."""
        while self.position < self._goal and self._is_wanted:
            piece = await self.next()
            if piece is None:
                return
            await self._fold(piece)
            self._applied(piece)
            del piece  # a large one counts, with the next one, as long as it is referenced
        if self.position >= self._goal:
            self._built = True
        elif not self._is_wanted:
            self._questions.clear()  # their clients have disconnected

    async def _fold(self, piece: Slice) -> None:
        steps = self.entities.fold(piece.data)
        if len(piece.data) <= STATE_INLINE_BYTES:
            for _ in steps:
                await asyncio.sleep(0)
            return
        self._in_thread = True
        try:
            await asyncio.to_thread(self._fold_all, steps)
        finally:
            self._in_thread = False

    def _fold_all(self, steps: Iterator[None]) -> None:
        for _ in steps:
            if self._failure is not None:
                return

    def _applied(self, piece: Slice) -> None:
        self.position, self.offset = piece.next, piece.offset
        self._folded(self)
        if self._questions and not self._answering:
            self._answer()
