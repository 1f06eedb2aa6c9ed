"""The handlers: from request to command or read, and from reply to response.

A write answers through a callback, without a task of its own: it is the path that must be short. Reads are
coroutines, since they may wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from headwater import limits as bounds
from headwater.engine import Engine, Stream
from headwater.engine.committer import Answer
from headwater.errors import (
    HeadwaterError,
    InternalError,
    InvalidHeaderError,
    InvalidQueryError,
    StreamNotFoundError,
)
from headwater.log.content import ContentKind
from headwater.log.model import Append, Create, Delete, ForkRequest, Reply
from headwater.protocol.streams import headers, offsets
from headwater.protocol.streams.content import check_content_type
from headwater.protocol.streams.cursors import next_cursor
from headwater.protocol.streams.etags import encoded, etag, matched
from headwater.protocol.streams.paths import parse_path, quote_path
from headwater.protocol.streams.reads import Live, ReadQuery, cache_control, parse_query, parse_read, wrap
from headwater.server import compression
from headwater.server.http import PREFLIGHT_HEADERS, Feed, Request, Respond, Response
from headwater.server.problems import method_not_allowed, problem
from headwater.server.routes import ROUTES, STREAM_ROOT, resolve, stream_path

log = logging.getLogger("headwater.server")

_CLOSED = (headers.CLOSED, "true")
_UP_TO_DATE = (headers.UP_TO_DATE, "true")
_NO_STORE = ("cache-control", "no-store")


class Handlers:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writes: dict[str, Callable[[Request, str, Respond], None]] = {
            "create": self._create,
            "append": self._append,
            "delete": self._delete,
        }
        self._reads: dict[str, Callable[[Request, str], Awaitable[Response]]] = {
            "read": self._read,
            "head": self._head,
            "list_streams": self._list_streams,
            "splits": self._splits,
        }

    def dispatch(self, request: Request, respond: Respond) -> asyncio.Task[None] | None:
        """Answer a request through `respond`, at once or later; a task is returned where one must be cancelled."""
        try:
            resource, path = resolve(request)
            routes = ROUTES[resource]
            name = routes.get(request.method)
            if name is None:
                if request.method == "OPTIONS":
                    respond(Response(204, PREFLIGHT_HEADERS))
                    return None
                raise method_not_allowed(request.method, (*routes, "OPTIONS"))
            write = self._writes.get(name)
            if write is not None:
                write(request, path, respond)
                return None
        except HeadwaterError as error:
            respond(problem(error))
            return None
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            respond(problem(InternalError("the server log has the cause")))
            return None
        return asyncio.create_task(self._run(self._reads[name], request, path, respond))

    async def _run(
        self,
        read: Callable[[Request, str], Awaitable[Response]],
        request: Request,
        path: str,
        respond: Respond,
    ) -> None:
        try:
            response = await read(request, path)
        except HeadwaterError as error:
            response = problem(error)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            response = problem(InternalError("the server log has the cause"))
        respond(response)

    # Writes

    def _append(self, request: Request, path: str, respond: Respond) -> None:
        given = request.headers
        producer = headers.parse_producer(given)
        command = Append(
            path,
            self.engine.now_ms(),
            request.body,
            given.get("content-type"),
            producer,
            headers.parse_seq(given),
            headers.parse_closed(given),
        )
        accepted = 200 if producer is not None and command.body else 204

        def answered(answer: Answer) -> None:
            respond(problem(answer) if isinstance(answer, HeadwaterError) else _appended(answer, accepted))

        self.engine.submit(command, answered)

    def _create(self, request: Request, path: str, respond: Respond) -> None:
        given = request.headers
        content_type = given.get("content-type")
        ttl_s, expires_ms = headers.parse_expiry(given)
        command = Create(
            path=path,
            stream_id=self.engine.new_id(),
            now_ms=self.engine.now_ms(),
            content_type=check_content_type(content_type) if content_type else None,
            ttl_s=ttl_s,
            expires_ms=expires_ms,
            closed=headers.parse_closed(given),
            body=request.body,
            fork=_fork_request(request),
        )

        def answered(answer: Answer) -> None:
            respond(problem(answer) if isinstance(answer, HeadwaterError) else _created(answer, request, path))

        self.engine.submit(command, answered)

    def _delete(self, request: Request, path: str, respond: Respond) -> None:
        def answered(answer: Answer) -> None:
            respond(problem(answer) if isinstance(answer, HeadwaterError) else Response(204, (_NO_STORE,)))

        self.engine.submit(Delete(path, self.engine.now_ms()), answered)

    # Reads

    async def _head(self, request: Request, path: str) -> Response:
        stream = await self.engine.find(path, renew=False)
        state = stream.state
        found = [
            ("content-type", state.content_type),
            (headers.NEXT_OFFSET, offsets.offset_at(state, stream.tail)),
            ("etag", etag(state.id, 0, stream.tail, closed=stream.closed)),
            _NO_STORE,
        ]
        if state.ttl_s is not None:
            found.append((headers.TTL, str(state.ttl_s)))
        if state.expires_ms is not None:
            found.append((headers.EXPIRES_AT, headers.format_instant(state.expires_ms)))
        if stream.closed:
            found.append(_CLOSED)
        return Response(200, tuple(found))

    async def _read(self, request: Request, path: str) -> Response:
        query = parse_read(request.query)
        stream = await self.engine.find(path, renew=True)
        position = offsets.resolve(stream.state, query.offset, stream.tail)
        until = None if query.until is None else offsets.resolve(stream.state, query.until, stream.tail)
        if until is not None:
            await self.engine.check_boundary(stream, until)
        if query.live is Live.SSE:
            return await self._feed(path, stream, query, position, until)
        if query.live is Live.LONG_POLL and (until is None or position < until):
            await self.engine.wait(stream, position, self.engine.limits.long_poll_s)
            self.engine.check_alive(stream, self.engine.now_ms())
        return await self._piece(request, stream, query, position, until)

    async def _feed(self, path: str, stream: Stream, query: ReadQuery, position: int, until: int | None) -> Response:
        engine = self.engine
        end = stream.tail if until is None else until
        first = await engine.read(stream, position, end, engine.limits.sse_chunk_bytes)
        found = await engine.find(path, renew=True)  # again: the engine may have let go of it during the read
        if found.id != stream.id:
            raise StreamNotFoundError("the stream was deleted")
        stream = found
        cursor = next_cursor(query.cursor, engine.now_ms(), engine.entropy())
        given = [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
        if stream.state.kind is ContentKind.BINARY:
            given.append((headers.SSE_DATA_ENCODING, "base64"))
        return Response(200, tuple(given), feed=Feed(stream, position, until, cursor, first))

    async def _piece(
        self, request: Request, stream: Stream, query: ReadQuery, position: int, until: int | None
    ) -> Response:
        """One bounded piece of a stream, with all that the reader must know to go on."""
        engine, state = self.engine, stream.state
        tail, closed = stream.tail, stream.closed
        end = tail if until is None else min(until, tail)
        data = await engine.read(stream, position, end, engine.limits.read_chunk_bytes) if position < end else b""
        position_next = position + len(data)
        at_tail = position_next == tail
        closed = closed and at_tail
        found = [(headers.NEXT_OFFSET, offsets.offset_at(state, position_next))]
        if at_tail:
            found.append(_UP_TO_DATE)
        if closed:
            found.append(_CLOSED)
        live = query.live is Live.LONG_POLL
        if live:
            cursor = next_cursor(query.cursor, engine.now_ms(), engine.entropy())
            found.append((headers.CURSOR, str(cursor)))
        if live and not data:
            return Response(204, (*found, _NO_STORE))
        if query.offset == offsets.NOW and not data:
            found += [("content-type", state.content_type), _NO_STORE]
            return Response(200, tuple(found), wrap(state.kind, data))
        tag = etag(state.id, position, position_next, closed=closed)
        caching = "no-store" if query.offset == offsets.NOW else cache_control(state, engine.now_ms(), empty=not data)
        found.append(("cache-control", caching))
        found.append(("vary", "accept-encoding"))
        if_none_match = request.headers.get("if-none-match")
        known = None if if_none_match is None or live else matched(if_none_match, tag)
        if known is not None:
            return Response(304, (*found, ("etag", known)))
        found.append(("content-type", state.content_type))
        return await self._encoded(request, found, tag, wrap(state.kind, data), len(data))

    async def _encoded(
        self,
        request: Request,
        found: list[tuple[str, str]],
        tag: str,
        body: tuple[bytes | memoryview, ...],
        size_bytes: int,
    ) -> Response:
        accepted = request.headers.get("accept-encoding")
        encoding = compression.choose_encoding(accepted) if accepted else None
        if encoding is None or size_bytes < bounds.COMPRESS_BYTES_MIN:
            return Response(200, (*found, ("etag", tag)), body)
        if size_bytes <= self.engine.limits.compress_inline_bytes:
            data = compression.encode(body, encoding)
        else:
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(None, compression.encode, body, encoding)
        found += [("etag", encoded(tag, encoding)), ("content-encoding", encoding)]
        return Response(200, tuple(found), (data,))

    async def _list_streams(self, request: Request, _: str) -> Response:
        query = parse_query(request.query)
        limit = _integer(query, "limit", bounds.LIST_PAGE_DEFAULT, bounds.LIST_PAGE_MAX)
        page, after = await self.engine.page(query.get("prefix", ""), query.get("after", ""), limit)
        body = msgspec.json.encode({"streams": [_listed(stream) for stream in page], "next_after": after})
        return Response(200, (("content-type", "application/json"), _NO_STORE), (body,))

    async def _splits(self, request: Request, _: str) -> Response:
        query = parse_query(request.query)
        stream = await self.engine.find(parse_path(quote_path(query.get("path", ""))), renew=False)
        state = stream.state
        start = offsets.resolve(state, query.get("offset", offsets.BEGINNING), stream.tail)
        end = offsets.resolve(state, query.get("until", offsets.NOW), stream.tail)
        await self.engine.check_boundary(stream, start)
        await self.engine.check_boundary(stream, end)
        if ("parts" in query) == ("bytes" in query):
            raise InvalidQueryError("give parts, how many, or bytes, how large each may be")
        places = await self.engine.splits(
            stream,
            start,
            max(start, end),
            parts=_integer(query, "parts", 1, bounds.SPLITS_MAX),
            step_bytes=_integer(query, "bytes", 0, bounds.PRODUCER_INTEGER_MAX),
            most=_integer(query, "limit", bounds.SPLITS_MAX, bounds.SPLITS_MAX),
        )
        found = {
            "offset": offsets.offset_at(state, start),
            "until": offsets.offset_at(state, end),
            "bytes": max(0, end - start),
            "splits": [offsets.offset_at(state, place) for place in places],
        }
        return Response(200, (("content-type", "application/json"), _NO_STORE), (msgspec.json.encode(found),))


def _fork_request(request: Request) -> ForkRequest | None:
    given = request.headers
    source = given.get(headers.FORKED_FROM)
    sub_offset = headers.parse_sub_offset(given)
    offset = given.get(headers.FORK_OFFSET)
    if source is None:
        if offset is not None:
            raise InvalidHeaderError("Stream-Fork-Offset needs Stream-Forked-From")
        return None
    if offset is not None:
        offsets.check_offset(offset)
    return ForkRequest(stream_path(source, request.mount), offset, sub_offset)


def _appended(reply: Reply, accepted: int) -> Response:
    found = [(headers.NEXT_OFFSET, reply.next_offset)]
    if reply.closed:
        found.append(_CLOSED)
    if reply.producer is not None:
        found.append((headers.PRODUCER_EPOCH, str(reply.producer.epoch)))
        found.append((headers.PRODUCER_SEQ, str(reply.producer.seq)))
    return Response(204 if reply.duplicate else accepted, tuple(found))


def _created(reply: Reply, request: Request, path: str) -> Response:
    found = [("content-type", reply.content_type), (headers.NEXT_OFFSET, reply.next_offset)]
    if reply.closed:
        found.append(_CLOSED)
    if reply.existed:
        return Response(200, tuple(found))
    authority = request.headers.get("host", "localhost")
    location = f"{request.scheme}://{authority}{request.mount}{STREAM_ROOT}{quote_path(path)}"
    return Response(201, (*found, ("location", location)))


def _integer(query: dict[str, str], name: str, default: int, most: int) -> int:
    given = query.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdigit() or len(given) > len(str(most)) or not 1 <= int(given) <= most:
        raise InvalidQueryError(f"{name} must be from 1 to {most}, got {given[:80]!r}")
    return int(given)


def _listed(stream: Stream) -> dict[str, object]:
    state = stream.state
    return {
        "path": state.path,
        "content_type": state.content_type,
        "tail_offset": offsets.offset_at(state, stream.tail),
        "closed": stream.closed,
        "created_at": headers.format_instant(state.created_ms),
        "ttl_seconds": state.ttl_s,
        "expires_at": None if state.deadline_ms is None else headers.format_instant(state.deadline_ms),
    }
