"""Snapshots of active views: streams with the live rows of a table at a position.

With a snapshot, a view can be built again, for example after a restart, without reading the history. Snapshots are
internal: their paths begin with a control character and are not listed. A snapshot is complete once it is closed. Its
path contains the table, the position and the SeqNo up to which rows are applied. It expires if nobody reads it for a
while, so that snapshots of deleted tables are removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headwater.engine import Engine
from headwater.engine.messages import Read, VisibleStream
from headwater.errors import StreamNotFoundError
from headwater.limits import ACTIVE_SNAPSHOT_RECORD_BYTES, ACTIVE_SNAPSHOT_TTL_S, LIST_PAGE_MAX
from headwater.log.commands import Append, Create, Delete
from headwater.log.content import ContentKind
from headwater.log.offsets import BEGINNING, Offset

_PREFIX = "\x02active/"
_TYPE = "text/sequence"


class ActiveSnapshot(NamedTuple):
    path: str
    position: int  # up to which the rows of the table are applied
    last_seqno: int


def _directory(table_id: int) -> str:
    return f"{_PREFIX}{table_id}/"


async def find(engine: Engine, table: VisibleStream) -> ActiveSnapshot | None:
    """The newest complete snapshot of a table. The others are deleted. All rows of one from before the beginning of the
    table are trimmed."""
    complete = [_parsed(stream.path) for stream in await _streams(engine, table.id) if stream.closed]
    usable = [snapshot for snapshot in complete if table.first <= snapshot.position <= table.tail]
    newest = max(usable, key=_position, default=None)
    await delete_all(engine, table.id, but="" if newest is None else newest.path)
    return newest


def _position(snapshot: ActiveSnapshot) -> int:
    return snapshot.position


def _parsed(path: str) -> ActiveSnapshot:
    position, last_seqno = path.rpartition("/")[2].split("-")
    return ActiveSnapshot(path, int(position), int(last_seqno))


class SnapshotReader:
    """Reads the rows of a snapshot in pieces."""

    def __init__(self, engine: Engine, snapshot: ActiveSnapshot) -> None:
        self._engine = engine
        self._path = snapshot.path
        self._offset: Offset = BEGINNING

    async def read(self, bytes_max: int) -> bytes:
        """The next rows; none at the end."""
        reply = await self._engine.read(Read(self._path, self._offset, bytes_max=bytes_max))
        self._offset = reply.stream.offset(reply.next)
        return reply.data


async def write(engine: Engine, table_id: int, position: int, last_seqno: int, rows: list[bytes]) -> ActiveSnapshot:
    """Write a snapshot and delete the older ones."""
    path = f"{_directory(table_id)}{position}-{last_seqno}"
    await engine.execute(
        Create(
            path=path,
            now_ms=engine.now_ms(),
            content_type=_TYPE,
            kind=ContentKind.MIRROR,
            ttl_s=ACTIVE_SNAPSHOT_TTL_S,
        )
    )
    for record in _records(rows):
        await engine.execute(Append(path, engine.now_ms(), record, _TYPE))
    await engine.execute(Append(path, engine.now_ms(), b"", close=True))
    await delete_all(engine, table_id, but=path)
    return ActiveSnapshot(path, position, last_seqno)


def _records(rows: list[bytes]) -> Iterator[bytes]:
    first, size_bytes = 0, 0
    for number, row in enumerate(rows):
        size_bytes += len(row)
        if size_bytes >= ACTIVE_SNAPSHOT_RECORD_BYTES:
            yield b"".join(rows[first : number + 1])
            first, size_bytes = number + 1, 0
    if first < len(rows):
        yield b"".join(rows[first:])


async def delete_all(engine: Engine, table_id: int, *, but: str = "") -> None:
    await _delete(engine, [stream.path for stream in await _streams(engine, table_id) if stream.path != but])


async def _streams(engine: Engine, table_id: int) -> list[VisibleStream]:
    """The streams of all snapshots of a table."""
    streams: list[VisibleStream] = []
    after: str | None = ""
    while after is not None:
        page = await engine.page(_directory(table_id), after, LIST_PAGE_MAX)
        streams += page.streams
        after = page.next_after
    return streams


async def _delete(engine: Engine, paths: list[str]) -> None:
    for path in paths:
        try:
            await engine.execute(Delete(path, engine.now_ms()))
        except StreamNotFoundError:
            continue  # it expired
