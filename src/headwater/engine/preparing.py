"""Preparation of commands that cannot be decided at once, because a stream must be loaded or a large body parsed.

Large JSON is parsed in a thread, one body at a time. The parser holds the GIL, so a thread alone would still block the
loop. Therefore each parser call is limited in size (`log/json_framing.py`), and the loop runs between two calls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import msgspec

from headwater.engine.catalogue import Catalogue, LoadedStream
from headwater.engine.loading import Loader
from headwater.engine.ordering import Place, ProducerKey, ProducerOrder
from headwater.errors import HeadwaterError, OverloadedError, StreamNotFoundError
from headwater.limits import JSON_STEP_BYTES, RETRY_AFTER_S, Limits
from headwater.log import json_framing
from headwater.log.commands import Append, Command, Create, FramedBody
from headwater.log.content import DEFAULT_CONTENT_TYPE, ContentKind, kind_of
from headwater.log.deciding import NewestStates, fork_anchor, fork_source, is_expired, prefix_bytes

FetchRecord: TypeAlias = Callable[[LoadedStream, int, bool], Awaitable[bytes]]

WITH_BODY = (Append, Create)


class Preparer:
    def __init__(self, catalogue: Catalogue, loader: Loader, limits: Limits, fetch_record: FetchRecord) -> None:
        self._catalogue = catalogue
        self._loader = loader
        self._fetch_record = fetch_record
        self._messages_max = limits.messages_per_append_max
        self._backlog_bytes_max = limits.commit_backlog_bytes
        self._bytes = 0  # size of bodies that are parsed or wait to be parsed
        self._thread = asyncio.Lock()  # held while the thread is used
        self.order = ProducerOrder()

    def must_wait(self, command: Append | Create, kind: ContentKind) -> bool:
        """Whether the body of a command, or of an earlier append of the same producer, must be parsed first."""
        if self.order and self.order.holds_back(_producer_key(command)):
            return True
        return _is_large(command, kind)

    def place_of(self, command: Command) -> Place | None:
        """Take the place of an append that arrives while earlier ones of its producer are not decided."""
        key = _producer_key(command) if isinstance(command, WITH_BODY) else None
        return self.order.enter(key) if key is not None and self.order.holds_back(key) else None

    @contextlib.asynccontextmanager
    async def prepared(
        self, command: Command, states: NewestStates, place: Place | None = None
    ) -> AsyncIterator[Command]:
        """Yield the prepared command. The caller must decide it before it awaits anything. What is read for it is read
        from `states`."""
        await self._loader.load_for(command)
        if isinstance(command, Create) and command.fork is not None:
            command = await self._with_prefix(command, states)
            await self._loader.load_for(command)
        if isinstance(command, WITH_BODY):
            kind = self._kind(command)
            if place is not None or self.must_wait(command, kind):
                key = _producer_key(command)
                if place is None and key is not None:
                    place = self.order.enter(key)
                async with contextlib.nullcontext() if place is None else place:
                    framed = await self._framed(command, kind)
                    await self._loader.load_for(framed)
                    yield framed
                return
        yield command

    def _kind(self, command: Append | Create) -> ContentKind:
        """The kind of the stream of a command, as far as it is known before the decision."""
        if isinstance(command, Append):
            stream = self._catalogue.at(command.path)
        else:
            stream = None if command.fork is None else self._catalogue.at(command.fork.source)
        return kind_of(command.content_type or DEFAULT_CONTENT_TYPE) if stream is None else stream.kind

    async def _framed(self, command: Append | Create, kind: ContentKind) -> Append | Create:
        """The command with its body framed, if it is large."""
        if not _is_large(command, kind):
            return command
        size_bytes = len(command.body)
        if self._bytes and self._bytes + size_bytes > self._backlog_bytes_max:
            raise OverloadedError("too many large bodies are waiting; try again later", retry_after_s=RETRY_AFTER_S)
        self._bytes += size_bytes
        try:
            async with self._thread:
                framed = await asyncio.to_thread(_frame, command, self._messages_max)
        finally:
            self._bytes -= size_bytes
        return msgspec.structs.replace(command, framed=framed)

    async def _with_prefix(self, command: Create, states: NewestStates) -> Create:
        """Compute how much of the source's record at the offset a fork with a sub-offset inherits."""
        fork, existing = command.fork, states.at(command.path)
        if fork is None or (existing is not None and not is_expired(existing, command.now_ms)):
            return command
        source = fork_source(states, fork, command.now_ms)
        anchor = fork_anchor(source, fork, states.timeline)
        stream = self._catalogue.by_id(source.id)
        if stream is None:
            raise StreamNotFoundError("the source was deleted")
        record = await self._fetch_record(stream, anchor, fork.sub_offset > 0)
        if not fork.sub_offset:
            return command
        prefix_bytes = await self._prefix_bytes(source.kind, record, fork.sub_offset)
        fork = msgspec.structs.replace(fork, prefix_bytes=prefix_bytes, source_id=source.id)
        return msgspec.structs.replace(command, fork=fork)

    def is_current(self, command: Command) -> bool:
        """Whether the preparation is still valid: the source of a fork may have been deleted and created again."""
        if not isinstance(command, Create) or command.fork is None or not command.fork.source_id:
            return True
        source = self._catalogue.at(command.fork.source)
        return source is None or source.id == command.fork.source_id

    async def _prefix_bytes(self, kind: ContentKind, record: bytes, sub_offset: int) -> int | None:
        if kind is not ContentKind.JSON or json_framing.is_light(record):
            return prefix_bytes(kind, record, sub_offset)
        async with self._thread:
            return await asyncio.to_thread(prefix_bytes, kind, record, sub_offset)


def _producer_key(command: Append | Create) -> ProducerKey | None:
    if isinstance(command, Create) or command.producer is None:
        return None
    return command.path, command.producer.id


def _is_large(command: Append | Create, kind: ContentKind) -> bool:
    body = command.body
    if len(body) <= JSON_STEP_BYTES or kind is not ContentKind.JSON or command.framed is not None:
        return False
    return not json_framing.is_light(body)


def _frame(command: Append | Create, messages_max: int) -> FramedBody:
    try:
        data, messages = json_framing.framed(command.body, messages_max, may_be_empty=isinstance(command, Create))
    except HeadwaterError as error:
        return FramedBody(b"", error)
    return FramedBody(data, messages=messages)
