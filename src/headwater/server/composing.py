"""Composes: appends that take their data from streams of the same server.

The sources are read in small steps, the data is checked and framed in a thread as that of a large body, and then an
ordinary append is decided. So a compose is one record, it is a duplicate, is refused or fills a quota as any append,
and nothing behind the wire knows of it. Its data is as large as a body may be, and of few composes at a time.

The sources are read before the append is decided. A repeated compose may find them deleted, trimmed, grown or made
again. So whatever is wrong with what they have now, the engine is asked first whether the append would be a duplicate.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.engine.committer import Answer
from headwater.engine.messages import Read, VisibleStream
from headwater.engine.ordering import Place
from headwater.errors import (
    BodyTooLargeError,
    ComposeSourceGoneError,
    ComposeSourceNotFoundError,
    ContentTypeError,
    EmptyBodyError,
    HeadwaterError,
    InvalidComposeError,
    InvalidHeaderError,
    InvalidOffsetError,
    OffsetGoneError,
    OverloadedError,
    ProtocolError,
    StreamGoneError,
    StreamNotFoundError,
    UnsupportedMediaTypeError,
)
from headwater.log.commands import Append, Reply
from headwater.log.content import media_type
from headwater.log.offsets import Offset
from headwater.protocol.encodings import ZSTD
from headwater.protocol.inflating import Inflater
from headwater.protocol.streams import headers
from headwater.protocol.streams.composing import COMPOSE_TYPE, ZSTD_TYPE, SourceRange, parse_composition
from headwater.protocol.streams.offsets import parse_offset
from headwater.server.auth.scopes import Action
from headwater.server.http import Request
from headwater.server.references import stream_path


class NamedRange(NamedTuple):
    """A range of a source, resolved as far as possible without reading it."""

    name: str  # in errors
    path: str
    offset: Offset | None
    until: Offset | None


class SourceData(msgspec.Struct):
    """The bytes of a range, as they are stored."""

    name: str
    data: bytes
    is_compressed: bool

    def inflated(self, bytes_max: int) -> bytes:
        """The bytes that were compressed. This is done in steps, because a few bytes can expand to very many."""
        inflater, pieces, left = Inflater(ZSTD), list[bytes](), bytes_max
        try:
            for piece in inflater.feed(self.data):
                pieces.append(piece)
                left -= len(piece)
                if left < 0:
                    raise too_large(bytes_max)
            inflater.finish()
        except ProtocolError as error:
            fault = f"{self.name} is of {ZSTD_TYPE}, but its data is not zstd or not complete"
            raise InvalidComposeError(fault) from error
        return b"".join(pieces)


Accepts: TypeAlias = Callable[[VisibleStream, str], None]  # raises an error if data of a type cannot be appended
Build: TypeAlias = Callable[[VisibleStream, Append, list[SourceData]], Append]  # runs in a thread


def too_large(bytes_max: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the data of a compose may have {bytes_max} bytes, as a body (body_bytes_max); compose it in several appends"
    )


def requested_sources(request: Request, target: str) -> list[NamedRange]:
    """The ranges that a request names, if its caller may read them."""
    return [
        _named_range(request, target, number, source)
        for number, source in enumerate(parse_composition(request.body), 1)
    ]


def _named_range(request: Request, target: str, number: int, source: SourceRange) -> NamedRange:
    name = f"source {number} ({source.stream[:200]})"
    try:
        path = stream_path(source.stream, request.mount)
        offset = parse_offset(source.offset)
        until = None if source.until is None else parse_offset(source.until)
    except (InvalidHeaderError, InvalidOffsetError) as error:
        raise type(error)(f"{name}: {error.detail}") from None
    if source.until is not None and (until is None or not until.id):
        raise InvalidOffsetError(f"{name}: until must be an offset from the server, or absent")
    if path == target:
        raise InvalidComposeError(f"{name} is the target; a stream cannot be composed of itself")
    request.caller.require(Action.READ, path)
    return NamedRange(name, path, offset, until)


class Composer:
    """Composes of all clients, a few at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(bounds.COMPOSES_AT_ONCE)
        self._waiting = 0

    def compose(
        self, engine: Engine, draft: Append, sources: Sequence[NamedRange], accepts: Accepts, build: Build
    ) -> Coroutine[Any, Any, Reply]:
        """Append the data of the sources. Called when the request arrives: later appends of the producer come after it.

        `draft` is the append without its data.
        """
        producer = draft.producer
        place = None if producer is None else engine.order.enter((draft.path, producer.id))
        return self._compose(engine, place, self._prepared(engine, draft, sources, accepts, build), draft)

    async def _compose(
        self, engine: Engine, place: Place | None, preparation: Coroutine[Any, Any, Append], draft: Append
    ) -> Reply:
        try:
            async with self._slot():
                try:
                    command = await preparation
                except HeadwaterError:
                    target = await engine.info(draft.path)
                    repeated = msgspec.structs.replace(_of(target, draft), only_repeats=True, body=b" ")
                    reply = await self._decided(engine, place, repeated)
                    if not reply.duplicate:
                        raise
                    return reply
                return await self._decided(engine, place, command)
        finally:
            preparation.close()
            if place is not None:
                place.leave()

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._waiting >= bounds.COMPOSES_WAITING_MAX:
            raise OverloadedError("too many composes are waiting; try again later", retry_after_s=bounds.RETRY_AFTER_S)
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    async def _prepared(
        self, engine: Engine, draft: Append, sources: Sequence[NamedRange], accepts: Accepts, build: Build
    ) -> Append:
        target = await engine.info(draft.path)
        draft = _of(target, draft)
        contents, left = [], engine.limits.body_bytes_max
        for source in sources:
            contents.append(await _read(engine, source, target, accepts, left))
            left -= len(contents[-1].data)
        if not any(one.data for one in contents):
            raise EmptyBodyError("the sources have no data in these ranges")
        return await asyncio.to_thread(build, target, draft, contents)

    async def _decided(self, engine: Engine, place: Place | None, command: Append) -> Reply:
        """Decide a command in the order of its producer, and wait for its answer."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answered(result: Answer) -> None:
            if answer.done():
                return
            if isinstance(result, HeadwaterError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        if place is None:
            engine.submit(command, answered)
        else:
            async with place:
                with place.deciding():
                    engine.submit(command, answered)
        return await answer


def _of(target: VisibleStream, command: Append) -> Append:
    """The command for the stream that was looked at: another one may be created in its place."""
    return msgspec.structs.replace(command, content_type=target.content_type, stream_id=target.id)


async def _read(
    engine: Engine, source: NamedRange, target: VisibleStream, accepts: Accepts, bytes_max: int
) -> SourceData:
    """The bytes of a range, at most about `bytes_max`, if they can be appended to the target."""
    offset, until, pieces, size = source.offset, source.until, list[bytes](), 0
    is_compressed = False
    while True:
        try:
            reply = await engine.read(Read(source.path, offset, until, bounds.COMPOSE_READ_BYTES))
        except HeadwaterError as error:
            raise _refusal(source, error) from None
        if not pieces:
            is_compressed = _is_compressed(source, reply.stream, target, accepts)
            until = until or reply.stream.offset(reply.stream.tail)
        pieces.append(reply.data)
        size += len(reply.data)
        if size > bytes_max:
            raise too_large(engine.limits.body_bytes_max)
        if not reply.data or reply.next in (reply.until, reply.stream.tail):
            return SourceData(source.name, b"".join(pieces), is_compressed)
        offset = reply.stream.offset(reply.next)


def _is_compressed(source: NamedRange, stream: VisibleStream, target: VisibleStream, accepts: Accepts) -> bool:
    """Whether the data of a source has to be decompressed. Refuse a source of another content type."""
    try:
        accepts(target, stream.content_type)
    except (ContentTypeError, UnsupportedMediaTypeError, InvalidHeaderError) as error:
        if media_type(stream.content_type) == ZSTD_TYPE:
            return True
        raise ContentTypeError(f"{source.name} is {stream.content_type}: {error.detail}") from None
    return False


def _refusal(source: NamedRange, error: HeadwaterError) -> HeadwaterError:
    """The error of reading a source, which names it."""
    detail = f"{source.name}: {error.detail}"
    if isinstance(error, StreamNotFoundError):
        return ComposeSourceNotFoundError(detail)
    if isinstance(error, StreamGoneError | OffsetGoneError):
        return ComposeSourceGoneError(detail)
    return InvalidOffsetError(detail) if isinstance(error, InvalidOffsetError) else error


def check_no_compose(content_type: str) -> None:
    """Refuse a stream that could not be appended to, because its content type says how an append is sent."""
    if media_type(content_type) == COMPOSE_TYPE:
        raise InvalidHeaderError(f"{COMPOSE_TYPE} is the type of a request, not of a stream")


def accepted_posts(content_type: str) -> tuple[str, str]:
    """The header that says what can be posted, by which clients recognise a server that composes."""
    return headers.ACCEPT_POST, f"{content_type}, {COMPOSE_TYPE}"
