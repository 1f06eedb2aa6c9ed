"""All views of a server, each with a task that keeps it current."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable

import msgspec

from headwater.engine import Engine
from headwater.engine.messages import VisibleStream
from headwater.errors import (
    ConfigurationError,
    ConflictError,
    HeadwaterError,
    TooManyViewsError,
    ViewSourceNotFoundError,
)
from headwater.limits import VIEWS_BEHIND_AT_ONCE
from headwater.log.commands import Create, Reply, WriteDocument, WriteDocuments
from headwater.log.events import Keeper
from headwater.server.tables.active import ActiveViews
from headwater.server.views.definition import PREFIX, Definition, ViewDocument, ViewProgress, decode, encode, shown
from headwater.server.views.view import ABSENT, View, ViewGoneError, ViewStatus

log = logging.getLogger("headwater.views")


class Views:
    """`active` are the active views of tables, which have the live keys to delete when a view is emptied."""

    def __init__(self, engine: Engine, active: ActiveViews) -> None:
        self._engine = engine
        self._active = active
        self._views: dict[str, View] = {}  # by the path of the target
        self._tasks: dict[View, asyncio.Task[None]] = {}
        self._creating = asyncio.Lock()
        self._turns = asyncio.Semaphore(VIEWS_BEHIND_AT_ONCE)

    # Life

    async def start(self) -> None:
        """Start the tasks of existing views. Call it before the first request."""
        async for document in self._engine.all_documents(PREFIX):
            try:
                self._begin(document.key, decode(document.data))
            except msgspec.DecodeError as error:
                log.error("document %r is no view and is ignored: %s", document.key, error)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def status(self, is_shown: Callable[[Definition], bool] = lambda _: True) -> list[ViewStatus]:
        shown = [view.status() for view in self._views.values() if is_shown(view.definition)]
        return sorted(shown, key=lambda status: status.view)

    # Requests

    def holds(self, path: str) -> bool:
        """Whether there is a view at a path, or one that has expired and left its document behind."""
        return path in self._views

    async def create(self, command: Create, definition: Definition | None) -> Reply:
        """Create a view, or something else at a path where there may be a view."""
        async with self._creating:
            known = self._views.get(command.path)
            stream = None if known is None else await self._stream_at(command.path)
            if known is not None and stream is not None and definition is None:
                return await self._engine.execute(command)  # it may be a plain stream that another server has created
            if known is not None and stream is not None:
                if known.definition != definition:
                    raise ConfigurationError(f"{shown(command.path)} is a view of {known.definition.described}")
                keeper = Keeper(known.key, shown(known.definition.source))
                return await self._engine.execute(msgspec.structs.replace(command, closed=stream.closed, keeper=keeper))
            left_over = () if known is None else (WriteDocument(known.key, None),)
            command = msgspec.structs.replace(command, documents=left_over)
            if definition is None:
                reply = await self._engine.execute(command)
            else:
                reply = await self._create(command, definition)
            if known is not None:
                self._end(known)
            return reply

    async def _create(self, command: Create, definition: Definition) -> Reply:
        source = await self._source_of(definition)
        if len(self._views) >= self._engine.limits.views_max:
            await self.forget_gone()
        if len(self._views) >= self._engine.limits.views_max:
            raise TooManyViewsError(f"a server may have {self._engine.limits.views_max} views (views_max)")
        key, view = PREFIX + uuid.uuid4().hex, ViewDocument(definition, ViewProgress(source))
        documents = (*command.documents, WriteDocument(key, encode(view), expected=0))
        keeper = Keeper(key, shown(definition.source))
        reply = await self._engine.execute(msgspec.structs.replace(command, documents=documents, keeper=keeper))
        if reply.existed:
            raise ConfigurationError(f"{shown(command.path)} is a view whose document cannot be read")
        self._begin(key, view)
        return reply

    async def _source_of(self, definition: Definition) -> int:
        """The id of the source. Raises an error if it cannot be a source."""
        path = definition.source
        while path in self._views and path != definition.target:
            path = self._views[path].definition.source
        if path == definition.target:
            raise ConflictError(f"{shown(definition.source)} is made from this view, or is the view itself")
        try:
            source = await self._engine.info(definition.source)
        except ABSENT:
            raise ViewSourceNotFoundError(f"{shown(definition.source)} does not exist") from None
        fault = definition.fault_of(source)
        if fault is not None:
            raise ConflictError(fault)
        return source.id

    async def _stream_at(self, path: str) -> VisibleStream | None:
        try:
            return await self._engine.info(path)
        except ABSENT:
            return None

    def documents_of(self, path: str) -> tuple[WriteDocument, ...]:
        """The documents to write together with the deletion of a path."""
        view = self._views.get(path)
        return () if view is None else (WriteDocument(view.key, None),)

    def deleted(self, path: str) -> None:
        """Handle the deletion of a path and its documents."""
        view = self._views.get(path)
        if view is not None:
            self._end(view)

    async def forget_gone(self) -> None:
        """Forget views whose targets are gone: they have expired, or another server has deleted them. Otherwise they
        would only be noticed with the next row of their sources."""
        views = [view for view in self._views.values() if view.target_id]
        targets = await asyncio.gather(*(self._stream_at(view.definition.target) for view in views))
        for view, target in zip(views, targets, strict=True):
            is_gone = target is None or target.id != view.target_id
            if is_gone and self._views.get(view.definition.target) is view and await self._delete_document(view):
                self._end(view)

    # Tasks

    def _begin(self, key: str, document: ViewDocument) -> None:
        view = View(self._engine, self._active, self._turns, key, document)
        self._views[document.definition.target] = view
        task = self._tasks[view] = asyncio.create_task(self._run(view))
        task.add_done_callback(lambda _: self._tasks.pop(view, None))

    async def _run(self, view: View) -> None:
        try:
            await view.run()
        except ViewGoneError:
            if await self._delete_document(view):
                self._forget(view)

    async def _delete_document(self, view: View) -> bool:
        try:
            await self._engine.execute(WriteDocuments((WriteDocument(view.key, None),)))
        except HeadwaterError as error:  # it is deleted when the path is used again, or at the next start
            log.warning("the document of a view that is gone is left over: %s", error)
            return False
        return True

    def _end(self, view: View) -> None:
        self._forget(view)
        task = self._tasks.get(view)
        if task is not None:
            task.cancel()

    def _forget(self, view: View) -> None:
        if self._views.get(view.definition.target) is view:
            del self._views[view.definition.target]
