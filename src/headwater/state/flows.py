"""How a StreamDB starts, continues after its stream was created again, and publishes snapshots.

Flows are generators, as in the client: they yield requests, and a shell, blocking or asyncio, performs them and sends
back the result or throws the error. A path of None means the stream that the database follows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import msgspec

from headwater import limits
from headwater.client.flows import StreamInfo
from headwater.errors import (
    HeadwaterError,
    InvalidOffsetError,
    OffsetGoneError,
    OffsetTrimmedError,
    ServerError,
    StreamNotFoundError,
)
from headwater.positions import BEGINNING, Position, is_original
from headwater.protocol.state.events import StateEvent
from headwater.state.bootstrap import SNAPSHOTS, RawState, SnapshotFold, Start, newest_first, snapshot_path
from headwater.state.following import Following

T = TypeVar("T")


class ListStreams(msgspec.Struct, frozen=True):
    """Get the StreamInfo of every stream whose path starts with the prefix."""

    prefix: str


class Head(msgspec.Struct, frozen=True):
    """Get the StreamInfo of a stream."""

    path: str | None


class ReadEvents(msgspec.Struct, frozen=True):
    """Read a stream of events up to the current tail or an offset, and pass them to `take`."""

    path: str | None
    take: Callable[[list[Any]], None]
    offset: str = BEGINNING
    until: str | None = None


class Publish(msgspec.Struct, frozen=True):
    """Create a stream of these events and close it."""

    path: str
    events: Iterable[StateEvent]


class OffsetAt(msgspec.Struct, frozen=True):
    """Get the offset of the first record at or after a time, of the stream that the database follows."""

    time: datetime
    path: None = None


class FollowStream(msgspec.Struct, frozen=True):
    """Follow the stream from the position of the database until the stream or the read ends, or the database is closed.
    Returns whether it was not closed."""


Wish: TypeAlias = ListStreams | Head | ReadEvents | Publish | OffsetAt | FollowStream
Flow: TypeAlias = Generator[Wish, Any, T]


def run(following: Following, path: str | None) -> Flow[None]:
    """Choose a start and follow the stream. If the checkpoint or snapshot is of another stream, read it all."""
    at = following.settings.at
    following.until = (yield from _offset_at(at)) if isinstance(at, datetime) else at
    following.begin((yield from _start(following, path)))
    try:
        is_complete = yield FollowStream()
    except HeadwaterError as error:
        if not following.must_restart(error):
            raise
        following.begin(None)
        is_complete = yield FollowStream()
    if is_complete:
        following.reach()


def _offset_at(time: datetime) -> Flow[str]:
    """The offset of the state at a time. OffsetTrimmedError if the data of that time was removed."""
    offset: str = yield OffsetAt(time)
    info: StreamInfo = yield Head(None)
    if offset == info.first_offset and not is_original(offset):
        error = OffsetTrimmedError(f"data before {offset} was trimmed, so the state before {time} is not known")
        error.first_offset = offset
        raise error
    return offset


def _start(following: Following, path: str | None) -> Flow[Start | None]:
    """Choose the start. If the stream ends before that offset, it was created again (not all servers detect that)."""
    start = following.loaded() or (yield from _start_from_snapshot(following, path))
    if start is None:
        return None
    info: StreamInfo = yield Head(None)
    return start if start.position.offset <= info.tail_offset else None


def _start_from_snapshot(following: Following, path: str | None) -> Flow[Start | None]:
    if path is None or not following.settings.snapshots:
        return None
    definition = following.definition
    snapshot = yield from _newest_snapshot(path, lambda fold: fold.texts(definition) is not None, following.until)
    if snapshot is None:
        return None
    offset, fold = snapshot
    return Start(Position(offset), texts=fold.texts(definition) or {})


def _newest_snapshot(
    path: str, is_good: Callable[[SnapshotFold], bool], not_after: str | None = None
) -> Flow[tuple[str, SnapshotFold] | None]:
    """The newest complete and valid snapshot, if the server can list streams."""
    try:
        infos: list[StreamInfo] = yield ListStreams(f"{path}{SNAPSHOTS}")
        snapshots = [each for each in newest_first(infos, path) if not_after is None or each[1] <= not_after]
        for name, offset in snapshots[: limits.STATE_SNAPSHOTS_TRIED]:
            fold = SnapshotFold()
            yield ReadEvents(name, fold.apply)
            if fold.is_whole and is_good(fold):
                return offset, fold
    except HeadwaterError as error:
        if error.retryable or isinstance(error, ServerError):
            raise
    return None


def publish_snapshot(path: str | None, offset: str) -> Flow[str]:
    """Write the state at an offset as a snapshot, unless it exists. Returns its path."""
    if path is None:
        raise ValueError("the stream is not below the client's root, where its snapshots would be")
    target = snapshot_path(path, offset)
    try:
        info: StreamInfo = yield Head(target)
        if info.closed:
            return target
    except StreamNotFoundError:
        pass
    state = yield from _state_at(path, offset)
    yield Publish(target, state.events(offset))
    return target


def _state_at(path: str, offset: str) -> Flow[RawState]:
    """Compute the state at an offset from the newest snapshot and the events after it, or from the whole stream."""
    snapshot = yield from _newest_snapshot(path, lambda fold: True, not_after=offset)
    if snapshot is not None:
        begin, fold = snapshot
        try:
            yield ReadEvents(None, fold.state.apply, begin, offset)
        except (OffsetGoneError, InvalidOffsetError):
            pass  # a snapshot of an earlier stream with this path
        else:
            return fold.state
    state = RawState()
    yield ReadEvents(None, state.apply, until=offset)
    return state
