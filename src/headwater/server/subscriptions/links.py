"""The links of a subscription: its streams, and up to where each is acked.

A stream is linked if the subscription names it or its pattern matches, the creator may read it, and it is not a wake
stream. Links by pattern are not stored: only cursors are.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from headwater.engine import Engine
from headwater.engine.messages import VisibleStream
from headwater.errors import HeadwaterError, StreamGoneError, StreamNotFoundError
from headwater.limits import LIST_PAGE_MAX, SUBSCRIPTIONS_PER_TURN
from headwater.positions import BEGINNING
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.subscriptions.patterns import Pattern
from headwater.protocol.tables.paths import LOG_OWN_LAST
from headwater.server.subscriptions.records import CURSORS, MEMBERS, StreamCursor, WakeStream, cursor_key, decode_cursor
from headwater.server.turns import in_turns


class Link(NamedTuple):
    path: str
    is_member: bool  # the subscription names it
    cursor: StreamCursor | None  # None: nothing was acked
    stream: VisibleStream | None  # None: it does not exist

    @property
    def position(self) -> int:
        """Up to where the stream is acked."""
        return 0 if self.stream is None else acked_position(self.stream, self.cursor)

    @property
    def start(self) -> int:
        """Where the data begins that is not acked and still there: what was trimmed is not pending."""
        if self.stream is None or self.position < 0:
            return self.position
        return max(self.position, self.stream.first)

    @property
    def has_earlier_cursor(self) -> bool:
        """Whether the cursor is of an earlier stream at the path."""
        return self.stream is not None and self.cursor is not None and not is_cursor_of(self.stream, self.cursor)

    @property
    def lag_bytes(self) -> int:
        """How much there is to read. What was trimmed before it was read does not count."""
        return 0 if self.stream is None else self.stream.size(self.start, self.stream.tail)

    @property
    def acked_offset(self) -> str:
        if self.stream is None:
            return BEGINNING if self.cursor is None else format_offset(self.cursor)
        return BEGINNING if self._is_unread else format_offset(self.stream.offset(self.position))

    @property
    def _is_unread(self) -> bool:
        """Whether a worker reads the stream from its beginning. If something was trimmed before it was read, the worker
        gets an offset, so that its read is refused and it is told."""
        return self.stream is not None and self.position == self.stream.begin <= 0

    def in_wake(self) -> WakeStream:
        if self.stream is None:
            raise ValueError(f"there is no stream at {self.path!r}")
        acked = None if self._is_unread else self.stream.offset(self.position)
        return WakeStream(self.path, self.is_member, acked, cursor_at(self.stream, self.stream.tail))


def acked_position(stream: VisibleStream, cursor: StreamCursor | None) -> int:
    """The position of a cursor in a stream.

    Without a cursor, and with one of an earlier stream at the path, it is where the stream's own data begins: what a
    fork inherits is history. If the store was restored to a state before the cursor, it is where the data after the
    restore begins. If what follows was replaced by a snapshot, it is where the snapshot begins; if it was trimmed, it
    stays, so that the worker's read is refused and it is told.
    """
    position = _position(stream, cursor)
    return stream.begin if stream.begin < 0 <= position < stream.first else position


def _position(stream: VisibleStream, cursor: StreamCursor | None) -> int:
    names = stream.names
    start = names.lineage[-1].end if names.lineage else min(0, stream.begin)
    if cursor is None or cursor.stream_id not in (0, stream.id):
        return start
    try:
        return names.resolve(stream.tail, cursor)
    except HeadwaterError:
        if not _has_id(stream, cursor):  # it is in a snapshot that is not there any more
            return start
        later = (timeline.start for timeline in names.timelines if timeline.id > cursor.id)
        return min(stream.tail, cursor.position, next(later, stream.tail))


def is_cursor_of(stream: VisibleStream, cursor: StreamCursor) -> bool:
    """Whether a cursor belongs to this stream, and not to an earlier one at its path."""
    return cursor.stream_id == stream.id if cursor.stream_id else _has_id(stream, cursor)


def cursor_at(stream: VisibleStream, position: int) -> StreamCursor:
    offset = stream.offset(position)
    return StreamCursor(offset.id, offset.position, stream.id)


def _has_id(stream: VisibleStream, cursor: StreamCursor) -> bool:
    """Whether the offset is one of the stream's bytes or their timelines, and in no snapshot."""
    names = stream.names
    return cursor.id in (names.stream_id, *[span.id for span in names.lineage], *[one.id for one in names.timelines])


class Links:
    """The links of one subscription. `sees` tells whether a stream that the pattern matches is linked. A stream that
    `may_read` does not allow the creator any more is shown as if it did not exist."""

    def __init__(
        self,
        engine: Engine,
        life: str,
        pattern: Pattern | None,
        members: Iterable[str],
        sees: Callable[[str], bool],
        may_read: Callable[[str], bool],
    ) -> None:
        self._engine = engine
        self.life = life
        self.pattern = pattern
        self._members = set(members)
        self._sees = sees
        self._may_read = may_read
        self._sorted: list[str] | None = None

    @property
    def members(self) -> list[str]:
        """The streams that the subscription names, in order."""
        if self._sorted is None:
            self._sorted = sorted(self._members)
        return self._sorted

    def is_member(self, path: str) -> bool:
        return path in self._members

    def has_by_pattern(self, path: str) -> bool:
        return self.pattern is not None and self.pattern.matches(path) and self._sees(path)

    def __contains__(self, path: str) -> bool:
        return path in self._members or self.has_by_pattern(path)

    @property
    def member_count(self) -> int:
        return len(self._members)

    def name(self, paths: Iterable[str]) -> None:
        added = sorted(set(paths) - self._members)
        self._members.update(added)
        if self._sorted is not None:
            self._sorted = sorted(self._sorted + added)  # quick: it joins two sorted lists

    def unname(self, path: str) -> None:
        if path in self._members:
            self._members.discard(path)
            if self._sorted is not None:
                at = bisect_left(self._sorted, path)
                self._sorted = self._sorted[:at] + self._sorted[at + 1 :]  # the old one may be in use

    async def find(self, path: str) -> Link:
        """One link, as it is now."""
        document = await self._engine.document(cursor_key(self.life, path))
        cursor = None if document is None else decode_cursor(document.data)
        return Link(path, path in self._members, cursor, await self._readable(path))

    async def _readable(self, path: str) -> VisibleStream | None:
        return await self.stream(path) if self._may_read(path) else None

    async def stream(self, path: str) -> VisibleStream | None:
        try:
            return await self._engine.info(path)
        except (StreamNotFoundError, StreamGoneError):
            return None

    async def after(self, after: str, unlinked: set[str] | None = None) -> AsyncIterator[Link]:
        """All links after a path, in order. Paths that have a cursor but no link, or the cursor of an earlier stream,
        are added to `unlinked`."""
        if self.pattern is None:
            async for path in in_turns(self.members[bisect_right(self.members, after) :], SUBSCRIPTIONS_PER_TURN):
                yield await self.find(path)
            return
        begin: str | None = max(after, LOG_OWN_LAST)
        while begin is not None:
            page = await self._engine.page(self.pattern.prefix, begin, LIST_PAGE_MAX)
            links, cursors = await self._between(begin, page.next_after, page.streams)
            if unlinked is not None:
                unlinked.update(cursors.keys() - {link.path for link in links if not link.has_earlier_cursor})
            for link in links:
                yield link
            begin = page.next_after
            await asyncio.sleep(0)  # a store in memory answers without a turn for others

    async def _between(
        self, after: str, last: str | None, streams: tuple[VisibleStream, ...]
    ) -> tuple[list[Link], dict[str, StreamCursor]]:
        """The links and the cursors of a part of the list of streams."""
        named = self.members[bisect_right(self.members, after) :]
        if last is not None:
            named = named[: bisect_left(named, last + "\0")]
        there = {stream.path: stream for stream in streams if self._may_read(stream.path)}
        paths = {path for path in there if path in self._members or self.has_by_pattern(path)}.union(named)
        cursors = await self._cursors(after, last)
        links = []
        for path in sorted(paths):
            stream = there.get(path)
            if stream is None:  # the pattern does not match it
                stream = await self._readable(path)
            links.append(Link(path, path in self._members, cursors.get(path), stream))
        return links, cursors

    async def _cursors(self, after: str, last: str | None) -> dict[str, StreamCursor]:
        prefix = cursor_key(self.life, "")
        cursors: dict[str, StreamCursor] = {}
        key = prefix + after
        while page := await self._engine.documents(prefix, key, LIST_PAGE_MAX):
            key = page[-1].key
            for document in page:
                path = document.key.removeprefix(prefix)
                if last is not None and path > last:
                    return cursors
                cursors[path] = decode_cursor(document.data)
        return cursors


async def stored_lives(engine: Engine) -> AsyncIterator[str]:
    """The lives of subscriptions that have members or cursors, also of those that were deleted."""
    for prefix in (MEMBERS, CURSORS):
        after = ""
        while page := await engine.documents(prefix, after, 1):
            life = page[0].key.removeprefix(prefix).partition("/")[0]
            yield life
            after = f"{prefix}{life}0"  # "0" follows "/"
