"""Durable storage of NURLs: a document for each, and for each table a table of its NURLs, `{name}/notify`.

A `+` row means that a NURL was advertised; a `-` row has the reason why it is no longer called. Rows and documents are
written together. The table of NURLs is created with its first row. If it is older than its table, it belongs to an
earlier table that was deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import msgspec

from headwater.engine import Engine
from headwater.engine.messages import VisibleStream
from headwater.errors import HeadwaterError, StreamFullError, StreamNotFoundError
from headwater.log.commands import Append, Create, Delete, WriteDocument, WriteDocuments
from headwater.log.content import ContentKind
from headwater.protocol.tables.content_type import TableType, format_table_type
from headwater.protocol.tables.paths import nurls_log_path
from headwater.server.notify.nurl import PREFIX, NurlRecord, decode, encode

log = logging.getLogger("headwater.notify")

NURLS_TYPE = format_table_type(TableType(schema="nurls", version=1))


class Registry:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def load(self) -> list[NurlRecord]:
        """All NURLs, grouped by table."""
        records: list[NurlRecord] = []
        async for document in self._engine.all_documents(PREFIX):
            try:
                records.append(decode(document.data))
            except msgspec.DecodeError as error:
                log.error("document %r is no NURL and is ignored: %s", document.key, error)
        return records

    async def add(self, path: str, nurls: Sequence[NurlRecord], known: Sequence[NurlRecord]) -> None:
        """Add NURLs beside those that are `known`. A table of NURLs that is full is replaced by one without the rows of
        NURLs that were removed."""
        documents = tuple([WriteDocument(nurl.key, encode(nurl)) for nurl in nurls])
        to, now_ms = nurls_log_path(path), self._engine.now_ms()
        try:
            await self._engine.execute(Append(to, now_ms, _added(nurls), NURLS_TYPE, documents=documents))
        except StreamNotFoundError:
            await self._create(to, _added(nurls), documents)
        except StreamFullError:
            await self._engine.execute(Delete(to, now_ms))
            try:
                await self._create(to, _added((*known, *nurls)), documents)
            except HeadwaterError:
                await self._create(to, _added(known), ())  # the new ones do not fit
                raise

    async def remove(self, path: str, nurls: Iterable[NurlRecord], reason: str) -> None:
        """Remove NURLs. Neither quotas nor a full disk prevent this."""
        rows = "\n".join(f"-\t{nurl.name}\t{reason}" for nurl in nurls)
        documents = tuple([WriteDocument(nurl.key, None) for nurl in nurls])
        to, now_ms = nurls_log_path(path), self._engine.now_ms()
        try:
            await self._engine.execute(Append(to, now_ms, rows.encode(), NURLS_TYPE, documents=documents, frees=True))
        except StreamNotFoundError:
            await self._engine.execute(WriteDocuments(documents))

    async def update(self, nurls: Iterable[NurlRecord]) -> None:
        await self._engine.execute(WriteDocuments(tuple([WriteDocument(nurl.key, encode(nurl)) for nurl in nurls])))

    async def _create(self, path: str, body: bytes, documents: tuple[WriteDocument, ...]) -> None:
        now_ms, rows = self._engine.now_ms(), ContentKind.ROWS
        await self._engine.execute(
            Create(path=path, now_ms=now_ms, content_type=NURLS_TYPE, kind=rows, body=body, documents=documents)
        )

    async def forget(self, path: str, nurls: Iterable[NurlRecord]) -> None:
        """Delete the NURLs of a deleted table, and the table of its NURLs."""
        documents = tuple([WriteDocument(nurl.key, None) for nurl in nurls])
        if documents:
            await self._engine.execute(WriteDocuments(documents))
        await self.clear_left_over(path)

    async def clear_left_over(self, path: str) -> None:
        """Delete the table of NURLs if it belongs to an earlier table that was deleted."""
        table = await self._stream_at(path)
        nurls = await self._stream_at(nurls_log_path(path))
        if nurls is not None and (table is None or nurls.created_ms < table.created_ms):
            try:
                await self._engine.execute(Delete(nurls.path, self._engine.now_ms()))
            except StreamNotFoundError:
                return

    async def _stream_at(self, path: str) -> VisibleStream | None:
        try:
            return await self._engine.info(path)
        except HeadwaterError as error:
            if error.status in (404, 410):
                return None
            raise


def _added(nurls: Iterable[NurlRecord]) -> bytes:
    return "\n".join(f"+\t{nurl.name}\t{nurl.url}" for nurl in nurls).encode()
