"""Durable storage of NURLs: a document for each, and for each table a table of its NURLs, `{name}/notify`.

A `+` row means that a NURL was advertised; a `-` row has the reason why it is no longer called. Rows and documents are
written together. The table of NURLs is created with its first row. If it is older than its table, it belongs to an
earlier table that was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from headwater.engine import Engine
from headwater.engine.messages import StreamInfo
from headwater.errors import HeadwaterError, StreamNotFoundError
from headwater.limits import LIST_PAGE_MAX
from headwater.log.commands import Append, Create, Delete, WriteDocument, WriteDocuments
from headwater.log.content import ContentKind
from headwater.protocol.tables.content_type import TableType, format_table_type
from headwater.protocol.tables.paths import nurls_log_path
from headwater.server.notify.nurl import PREFIX, Nurl, decode, encode

log = logging.getLogger("headwater.notify")

NURLS_TYPE = format_table_type(TableType(schema="nurls", version=1))


class Registry:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def load(self) -> list[Nurl]:
        """All NURLs, grouped by table."""
        found: list[Nurl] = []
        after = ""
        while page := await self._engine.documents(PREFIX, after, LIST_PAGE_MAX):
            after = page[-1].key
            for document in page:
                try:
                    found.append(decode(document.data))
                except msgspec.DecodeError as error:
                    log.error("document %r is no NURL and is ignored: %s", document.key, error)
        return found

    async def add(self, path: str, nurls: Iterable[Nurl]) -> None:
        rows = [f"+\t{nurl.name}\t{nurl.url}" for nurl in nurls]
        await self._append(path, rows, [WriteDocument(nurl.key, encode(nurl)) for nurl in nurls])

    async def remove(self, path: str, nurls: Iterable[Nurl], reason: str) -> None:
        rows = [f"-\t{nurl.name}\t{reason}" for nurl in nurls]
        await self._append(path, rows, [WriteDocument(nurl.key, None) for nurl in nurls])

    async def update(self, nurls: Iterable[Nurl]) -> None:
        await self._engine.execute(WriteDocuments(tuple([WriteDocument(nurl.key, encode(nurl)) for nurl in nurls])))

    async def _append(self, path: str, rows: list[str], documents: list[WriteDocument]) -> None:
        to, body, now_ms = nurls_log_path(path), "\n".join(rows).encode(), self._engine.now_ms()
        try:
            await self._engine.execute(Append(to, now_ms, body, NURLS_TYPE, documents=tuple(documents)))
        except StreamNotFoundError:
            await self._engine.execute(
                Create(
                    path=to,
                    now_ms=now_ms,
                    content_type=NURLS_TYPE,
                    kind=ContentKind.ROWS,
                    body=body,
                    documents=tuple(documents),
                )
            )

    async def forget(self, path: str, nurls: Iterable[Nurl]) -> None:
        """Delete the NURLs of a deleted table, and the table of its NURLs."""
        documents = tuple([WriteDocument(nurl.key, None) for nurl in nurls])
        if documents:
            await self._engine.execute(WriteDocuments(documents))
        await self.clear_left_over(path)

    async def clear_left_over(self, path: str) -> None:
        """Delete the table of NURLs if it belongs to an earlier table that was deleted."""
        table = await self._found(path)
        nurls = await self._found(nurls_log_path(path))
        if nurls is not None and (table is None or nurls.created_ms < table.created_ms):
            try:
                await self._engine.execute(Delete(nurls.path, self._engine.now_ms()))
            except StreamNotFoundError:
                return

    async def _found(self, path: str) -> StreamInfo | None:
        try:
            return await self._engine.info(path)
        except HeadwaterError as error:
            if error.status in (404, 410):
                return None
            raise
