"""The documents of mirrors. Each is deleted together with its mirror.

`Admitted` is a SURL that Notify named and the policy allowed. `Stopped` says that a mirror lacks rows or has rows of
another history: after a restart its follower asks for the rows after its last one, so it would not see the fault again.
"""

from __future__ import annotations

import logging

import msgspec

from headwater.engine import Engine
from headwater.log.commands import WriteDocument, WriteDocuments

log = logging.getLogger("headwater.following")

ADMITTED = "follow/"  # the prefixes of the keys
STOPPED = "stopped/"


class Admitted(msgspec.Struct, frozen=True):
    name: str  # of the local table
    surl: str


def written(admitted: Admitted) -> WriteDocument:
    return WriteDocument(ADMITTED + admitted.name, msgspec.json.encode(admitted))


def forgotten(name: str) -> WriteDocument:
    """The document to delete together with a table, so that it is not followed again."""
    return WriteDocument(ADMITTED + name, None)


async def admit(engine: Engine, admitted: Admitted) -> None:
    await engine.execute(WriteDocuments((written(admitted),)))


async def forget(engine: Engine, name: str) -> None:
    await engine.execute(WriteDocuments((forgotten(name),)))


async def load_admitted(engine: Engine) -> list[Admitted]:
    admissions: list[Admitted] = []
    async for document in engine.all_documents(ADMITTED):
        try:
            admissions.append(msgspec.json.decode(document.data, type=Admitted))
        except msgspec.DecodeError as error:
            log.error("document %r names no SURL and is ignored: %s", document.key, error)
    return admissions


class Stopped(msgspec.Struct, frozen=True):
    stream_id: int  # of the mirror: the fault of a deleted mirror does not matter for the next one
    reason: str


def resolved(name: str) -> WriteDocument:
    """The document to delete together with a mirror."""
    return WriteDocument(STOPPED + name, None)


async def write_stopped(engine: Engine, name: str, stopped: Stopped) -> None:
    await engine.execute(WriteDocuments((WriteDocument(STOPPED + name, msgspec.json.encode(stopped)),)))


async def find_stopped(engine: Engine, name: str, stream_id: int) -> Stopped | None:
    """Why the follower of this mirror stopped, if it did."""
    document = await engine.document(STOPPED + name)
    if document is None:
        return None
    stopped = msgspec.json.decode(document.data, type=Stopped)
    if stopped.stream_id == stream_id:
        return stopped
    await engine.execute(WriteDocuments((resolved(name),)))
    return None
