"""Snapshots of streams that tests write themselves."""

from __future__ import annotations

from itertools import count

import msgspec

from headwater.engine import Engine
from headwater.engine.messages import FindRecords
from headwater.limits import SNAPSHOT_PREFIX
from headwater.log.commands import Append, Compact, Create
from headwater.log.content import ROWS, ContentKind
from headwater.log.offsets import Offset

_numbers = count()


async def compact(engine: Engine, path: str, records: list[bytes], position: int, **more: int) -> None:
    """Replace the front of a stream up to a position by records."""
    stream = await engine.info(path)
    hidden = f"{SNAPSHOT_PREFIX}{path}/{next(_numbers)}"
    kind = ContentKind.MIRROR if stream.kind >= ROWS else stream.kind
    await engine.execute(Create(path=hidden, now_ms=engine.now_ms(), content_type=stream.content_type, kind=kind))
    for record in records:
        await engine.execute(Append(hidden, engine.now_ms(), record, stream.content_type))
    snapshots = stream.names.snapshots
    command = Compact(
        path=path,
        now_ms=engine.now_ms(),
        stream_id=stream.id,
        snapshot_path=hidden,
        next=position,
        newest=snapshots[-1].id if snapshots else 0,
        first=stream.first,
    )
    await engine.execute(msgspec.structs.replace(command, **more))


async def offsets_of(engine: Engine, path: str) -> list[Offset]:
    """The offsets of all record boundaries of a stream as a new reader gets them."""
    reply = await engine.records(FindRecords(path, limit=10_000))
    return [reply.stream.offset(place) for place in (reply.start, *[record.position for record in reply.records])]
