"""SURLs that Notify named and the policy allowed: a durable document for each, until its mirror is deleted."""

from __future__ import annotations

import logging

import msgspec

from headwater.engine import Engine
from headwater.limits import LIST_PAGE_MAX
from headwater.log.commands import WriteDocument, WriteDocuments

log = logging.getLogger("headwater.following")

PREFIX = "follow/"  # of the keys of these documents


class Admitted(msgspec.Struct, frozen=True):
    name: str  # of the local table
    surl: str


def written(admitted: Admitted) -> WriteDocument:
    return WriteDocument(PREFIX + admitted.name, msgspec.json.encode(admitted))


def forgotten(name: str) -> WriteDocument:
    """The document to delete together with a table, so that it is not followed again."""
    return WriteDocument(PREFIX + name, None)


async def admit(engine: Engine, admitted: Admitted) -> None:
    await engine.execute(WriteDocuments((written(admitted),)))


async def forget(engine: Engine, name: str) -> None:
    await engine.execute(WriteDocuments((forgotten(name),)))


async def load_admitted(engine: Engine) -> list[Admitted]:
    found: list[Admitted] = []
    after = ""
    while page := await engine.documents(PREFIX, after, LIST_PAGE_MAX):
        after = page[-1].key
        for document in page:
            try:
                found.append(msgspec.json.decode(document.data, type=Admitted))
            except msgspec.DecodeError as error:
                log.error("document %r names no SURL and is ignored: %s", document.key, error)
    return found
