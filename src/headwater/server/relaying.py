"""Requests that the server with the role has to answer, on any server.

Subscriptions, NURLs, followers and views live in one of the servers that share a store. Another one that gets a request
for them passes it on through the store, so that servers need no way to each other:

    REQUESTS            a stream to which each server appends, and which the server with the role follows
    ANSWERS + instance  a stream for each server, which it follows; it expires after the server

Records are MessagePack with their length before them. A request that is not answered within `RELAY_S`, for example
while the role moves, gets 503: nobody knows whether it was executed, as after a lost connection, and the error says so.

The store, its log and its backups must have no credentials. So the first server checks that of a request, and passes on
who the caller is (`Grant`); the second one checks by its rules what that caller may do.

A server that has lost the role, and has not noticed yet, leaves requests to the one that has it: both follow REQUESTS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

import msgspec

from headwater.engine import Engine
from headwater.engine.committer import Answer
from headwater.engine.follower import Pulled
from headwater.engine.messages import VisibleStream
from headwater.errors import HeadwaterError, NotReadyError, OutcomePendingError, StoppingError, StreamNotFoundError
from headwater.limits import (
    RELAY_ANSWERS_TTL_S,
    RELAY_KEPT_S,
    RELAY_READ_BYTES,
    RELAY_S,
    RETRY_AFTER_S,
    RETRY_FIRST_S,
)
from headwater.log.commands import Append, Create
from headwater.log.retention import Retention
from headwater.server.auth.callers import ANYONE
from headwater.server.auth.grants import Grant, grant_of
from headwater.server.http import Headers, Request, Respond, Response
from headwater.server.problems import problem
from headwater.server.roles import Role
from headwater.tasks import Tasks

log = logging.getLogger("headwater.server")

REQUESTS = "\x04requests"
ANSWERS = "\x04answers/"
_TYPE = "application/octet-stream"
_NEVER_READ = {"cookie", "proxy-authorization"}
_CREDENTIALS = {"authorization"} | _NEVER_READ
_LENGTH = struct.Struct("<I")


class _WaitingRequest(NamedTuple):
    """A request that was passed on."""

    respond: Respond
    timer: asyncio.TimerHandle
    method: str


class RelayedRequest(msgspec.Struct, array_like=True):
    """A request as the first server has received it, without credentials."""

    id: str
    instance: str  # of the server that waits for the answer
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    version: str
    scheme: str
    mount: str
    authority: str
    peer: str
    caller: Grant = Grant("")

    def request(self) -> Request:
        return Request(
            self.method,
            self.path,
            self.query,
            self.headers,
            self.body,
            version=self.version,
            scheme=self.scheme,
            mount=self.mount,
            authority=self.authority,
            peer=self.peer,
            relayed_for=self.caller,
        )


class RelayedAnswer(msgspec.Struct, array_like=True):
    """The answer to a request."""

    id: str
    status: int
    headers: Headers
    body: bytes


_request_decoder = msgspec.msgpack.Decoder(RelayedRequest)
_answer_decoder = msgspec.msgpack.Decoder(RelayedAnswer)


class Relay:
    """`dispatch` executes a request at this server."""

    def __init__(self, engine: Engine, instance: str, role: Role) -> None:
        self.dispatch: Callable[[Request, Respond], object] | None = None  # set once there is a dispatcher
        self._engine = engine
        self._instance = instance
        self._role = role
        self._waiting: dict[str, _WaitingRequest] = {}
        self._tasks = Tasks()
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Be ready to pass on requests."""
        await self._requests()
        self._tasks.start(self._follow(await self._answers(), self._answers, self._take_answer))

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tasks.ended()
        for name in list(self._waiting):
            self._give_up(name)

    @property
    def waiting(self) -> int:
        """How many requests wait for their answers."""
        return len(self._waiting)

    # The server that passes on

    def pass_on(self, request: Request, respond: Respond) -> None:
        if request.relayed_for is not None:  # the role has just ended; the other server may take it as well
            respond(_unanswered(request.method))
            return
        name = secrets.token_hex(8)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(RELAY_S, self._give_up, name)
        self._waiting[name] = _WaitingRequest(respond, timer, request.method)
        relayed = RelayedRequest(
            name,
            self._instance,
            request.method,
            request.path,
            request.query,
            _without_credentials(request),
            request.body,
            request.version,
            request.scheme,
            request.mount,
            request.authority,
            request.peer,
            grant_of(request.caller),
        )

        def appended(answer: Answer) -> None:
            if isinstance(answer, HeadwaterError) and (waiting := self._waiting.pop(name, None)) is not None:
                waiting.timer.cancel()
                if isinstance(answer, StreamNotFoundError):  # not the one that the request is about
                    answer = NotReadyError(
                        "the server that does this work has to begin anew; nothing was done",
                        retry_after_s=RETRY_AFTER_S,
                    )
                respond(problem(answer))

        self._engine.submit(self._append(REQUESTS, relayed), appended)

    def _give_up(self, name: str) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.respond(_unanswered(waiting.method))

    def _take_answer(self, data: bytes) -> None:
        answer = _answer_decoder.decode(data)
        waiting = self._waiting.pop(answer.id, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.respond(Response(answer.status, answer.headers, (answer.body,) if answer.body else ()))

    # The server with the role

    async def serve(self) -> None:
        """Execute the requests of others from now on, until `end_serving`."""
        self._serving = self._tasks.start(self._follow(await self._requests(), self._requests, self._execute))

    async def end_serving(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    def _execute(self, data: bytes) -> None:
        relayed = _request_decoder.decode(data)
        if self.dispatch is None or not self._role.is_held:
            return

        def respond(response: Response) -> None:
            answer = RelayedAnswer(relayed.id, response.status, response.headers, b"".join(response.body))
            self._engine.submit(self._append(ANSWERS + relayed.instance, answer), _note)

        self.dispatch(relayed.request(), respond)

    # Both

    async def _follow(
        self, stream: VisibleStream, create: Callable[[], Awaitable[VisibleStream]], take: Callable[[bytes], None]
    ) -> None:
        """Take each record from the end of a stream on. A failure is logged, and what came after it is taken. A stream
        that is gone is created again: it expires while its server hangs, and a restored database may lack it."""
        position = stream.tail
        while True:
            pulled = Pulled(self._engine, "relay", stream, position, bytes_max=RELAY_READ_BYTES)
            try:
                pulled.follower.open()
                while (piece := await pulled.next()) is not None:
                    for data in _records(piece.data):
                        try:
                            take(data)
                        except Exception:
                            log.exception("a request of another server failed")
                    position = pulled.follower.position
            except StoppingError:
                return
            except HeadwaterError as error:
                log.warning("requests of other servers are not taken: %s; trying again", error)
            finally:
                pulled.follower.close()
            await asyncio.sleep(RETRY_FIRST_S)
            with contextlib.suppress(HeadwaterError):
                former, stream = stream, await create()
                if stream.id != former.id:
                    position = stream.first
                else:
                    position = max(position, stream.first) if position <= stream.tail else stream.tail

    async def _requests(self) -> VisibleStream:
        return await self._create(REQUESTS, retention=Retention(seconds=RELAY_KEPT_S))

    async def _answers(self) -> VisibleStream:
        return await self._create(ANSWERS + self._instance, ttl_s=RELAY_ANSWERS_TTL_S)

    async def _create(
        self, path: str, *, ttl_s: int | None = None, retention: Retention | None = None
    ) -> VisibleStream:
        await self._engine.execute(
            Create(path=path, now_ms=self._engine.now_ms(), content_type=_TYPE, ttl_s=ttl_s, retention=retention)
        )
        return await self._engine.info(path)

    def _append(self, path: str, record: RelayedRequest | RelayedAnswer) -> Append:
        data = msgspec.msgpack.encode(record)
        return Append(path, self._engine.now_ms(), _LENGTH.pack(len(data)) + data, _TYPE)


def _without_credentials(request: Request) -> dict[str, str]:
    """The headers that the other server needs. On routes that anyone may call, for whom there is no caller, the
    credential is the short-lived token of a wake, and their handler checks it."""
    left_out = _NEVER_READ if request.caller is ANYONE else _CREDENTIALS
    return {name: value for name, value in request.headers.items() if name not in left_out}


def _unanswered(method: str) -> Response:
    detail = "the server that does this work has not answered"
    if method in ("GET", "HEAD"):
        return problem(NotReadyError(detail, retry_after_s=RETRY_AFTER_S))
    return problem(OutcomePendingError(f"{detail}; it may have done what was asked", retry_after_s=RETRY_AFTER_S))


def _note(answer: Answer) -> None:
    if isinstance(answer, HeadwaterError) and not isinstance(answer, StreamNotFoundError):
        log.info("an answer for another server was not stored: %s", answer)


def _records(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        yield data[position : position + length]
        position += length
