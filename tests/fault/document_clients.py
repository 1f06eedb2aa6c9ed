"""Document clients of a simulated server: each conditional write adds a number."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator

from headwater.engine import Engine
from headwater.errors import HeadwaterError, UnknownOutcomeError
from headwater.log.commands import Command, Reply, WriteDocument, WriteDocuments
from tests.fault.oracle import BrokenPromiseError, JointWrite, KnownDocument
from tests.fault.world import World


class DocumentClients:
    def __init__(self, world: World, engine: Engine, ask: Callable[[Command], Awaitable[Reply]]) -> None:
        self._world = world
        self._engine = engine
        self._ask = ask

    @contextlib.contextmanager
    def writing(self, *documents: KnownDocument) -> Iterator[None]:
        for document in documents:
            document.asking += 1
        try:
            yield
        finally:
            if not self._world.disk.crashed:
                for document in documents:
                    document.asking -= 1

    async def extend(self, document: KnownDocument, number: int) -> WriteDocument | None:
        """A write that adds a number to the current document."""
        incarnation, before = document.incarnation, document.data
        stored = await self._engine.document(document.key)
        if document.incarnation != incarnation or self._world.disk.crashed:
            return None
        document.check(stored, before)
        data = f"{number}\n".encode() if stored is None else stored.data + f"{number}\n".encode()
        return WriteDocument(document.key, data, 0 if stored is None else stored.version)

    def extended(self, document: KnownDocument, write: WriteDocument) -> None:
        data = write.data or b""
        if not (data.startswith(document.data) or document.data.startswith(data)):
            raise BrokenPromiseError(f"document {document.key}: one of two writes was lost")
        document.data = max(document.data, data, key=len)

    async def write(self, key: str) -> None:
        document = self._world.documents[key]
        if document.may_be_deleted:
            return
        if len(document.data) > 40:
            await self._delete(document)
            return
        others = [other for other in self._world.documents.values() if other is not document]
        other = self._world.random.choice(others)
        documents = (document,) if other.may_be_deleted or self._world.random.random() < 0.5 else (document, other)
        number = self._world.next_number()
        with self.writing(*documents):
            writes = [await self.extend(one, number) for one in documents]
            if None in writes:
                return
            incarnations = tuple((one, one.incarnation) for one in documents)
            self._world.joint.append(JointWrite(number, (), incarnations))
            try:
                await self._ask(WriteDocuments(tuple(write for write in writes if write is not None)))
            except HeadwaterError:
                return
            for one, write in zip(documents, writes, strict=True):
                if write is not None:
                    self.extended(one, write)

    async def _delete(self, document: KnownDocument) -> None:
        if document.asking:
            return
        document.may_be_deleted = True
        try:
            await self._ask(WriteDocuments((WriteDocument(document.key, None),)))
        except UnknownOutcomeError:
            return
        except HeadwaterError:
            document.may_be_deleted = False
            return
        document.deleted()
