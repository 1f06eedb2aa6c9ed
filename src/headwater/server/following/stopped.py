"""Mirrors that lack rows or have rows of another history: a durable document for each, until the mirror is deleted.

After a restart a follower asks for the rows after its last one, so it would not see the fault again.
"""

from __future__ import annotations

import msgspec

from headwater.engine import Engine
from headwater.log.commands import WriteDocument, WriteDocuments

PREFIX = "stopped/"  # of the keys of these documents


class Stopped(msgspec.Struct, frozen=True):
    stream_id: int  # of the mirror: the fault of a deleted mirror does not matter for the next one
    reason: str


def resolved(name: str) -> WriteDocument:
    """The document to delete together with a mirror."""
    return WriteDocument(PREFIX + name, None)


async def write_stopped(engine: Engine, name: str, stopped: Stopped) -> None:
    await engine.execute(WriteDocuments((WriteDocument(PREFIX + name, msgspec.json.encode(stopped)),)))


async def find_stopped(engine: Engine, name: str, stream_id: int) -> Stopped | None:
    """Why the follower of this mirror stopped, if it did."""
    document = await engine.document(PREFIX + name)
    if document is None:
        return None
    stopped = msgspec.json.decode(document.data, type=Stopped)
    if stopped.stream_id == stream_id:
        return stopped
    await engine.execute(WriteDocuments((resolved(name),)))
    return None
