"""One connection: handles requests in order, one at a time.

Requests that a client sends ahead wait in the pipeline; when it is full, the connection stops reading. If a client does
not read its responses, no more are written. `states` has the state machine.
"""

from __future__ import annotations

import asyncio
import random
from time import perf_counter
from typing import cast

from headwater.errors import HeadwaterError, RequestTimeoutError
from headwater.limits import REFUSED_PAUSE_S, REQUESTS_PER_TURN
from headwater.server.http import Buffer, Feed, Request, Response
from headwater.server.native.parsing import BODY, ENDED, NOTHING, RequestParser, RequestPhase
from headwater.server.native.pipeline import RequestMemory, RequestQueue
from headwater.server.native.shared import Shared
from headwater.server.native.states import (
    ACCEPTED,
    ANSWERED,
    BLOCKED,
    CLOSED,
    EOF,
    FEED,
    HALF_CLOSED,
    HEAD,
    IDLE,
    LAST,
    LINGERING,
    LOST,
    NEVER_S,
    PAUSED,
    READING,
    READING_BODY,
    READING_HEAD,
    REQUEST,
    RESPONDING,
    RESUMED,
    Lifecycle,
)
from headwater.server.native.writing import ResponseWriter
from headwater.server.observing.probes import HEALTH
from headwater.server.problems import problem

_FOR_NOW = frozenset({429, 503})


class Connection(Lifecycle, asyncio.BufferedProtocol):
    """One client connection: requests from the transport to the dispatcher, and responses and feeds back in order."""

    __slots__ = (
        "_advancing",
        "_crowded",
        "_feed",
        "_finishing",
        "_held",
        "_holds",
        "_keep_alive",
        "_parser",
        "_pause_s",
        "_pipeline",
        "_reading",
        "_refusal",
        "_request",
        "_rest",
        "_shared",
        "_task",
        "_transport",
        "_writer",
        "peer",
    )

    _transport: asyncio.Transport  # from `connection_made` on
    _writer: ResponseWriter

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.clock)
        self._shared = shared
        self._pipeline = RequestQueue(shared.limits)
        self._parser = RequestParser(shared.limits, self._pipeline.append, shared.known)
        self._held = RequestMemory(shared.requests, shared.ahead)  # of the requests in the pipeline and in the parser
        self._holds = False  # whether there is any
        self._rest: Buffer = b""  # received, and not parsed yet
        self._crowded = False  # the client sends many small pieces: it waits for its turn
        self._refusal: tuple[Request, Response] | None = None  # of the head in the parser
        self._reading = True  # False while the transport is paused
        self._advancing = False
        self._request: Request | None = None  # the current request
        self._keep_alive = True  # after the current request
        self._pause_s = REFUSED_PAUSE_S  # if the request is refused
        self._task: asyncio.Task[None] | None = None  # the handler, if it can be cancelled
        self._feed: Feed | None = None  # the response, if it stays open
        self._finishing = 0  # requests that had begun to arrive when the server began to stop, and are completed

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._transport.set_write_buffer_limits(high=self._shared.limits.write_buffer_bytes)
        self._writer = ResponseWriter(self._transport, self._shared, self._end_feed)
        peer = transport.get_extra_info("peername")
        self.peer: str = peer[0] if peer else ""
        self._shared.add(self)
        self._shared.accepted += 1
        error = self._shared.connection_refusal(self)
        if error is not None:
            self._shared.refused.add(self)
            self._refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything now: if it waited for the garbage collector, bodies could add up to gigabytes."""
        self._move(LOST)
        self._shared.forget(self)
        self._release()
        self._writer.close()
        self._request = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._feed is not None:
            self._feed.cancel()
            self._feed = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """All connections share one receive buffer, because received bytes are parsed at once."""
        return self._shared.received

    def buffer_updated(self, nbytes: int) -> None:
        state = self._state
        if state is LINGERING or state is CLOSED:
            return
        received = self._shared.received[:nbytes]
        request = self._parser.repeated(received)
        if request is None:
            self._parse(received)
        elif state is IDLE and not self._pipeline and not self._holds:
            self._begin(request, True)
            if self._state is RESPONDING and self._reading:
                return  # the usual case: one request, now in progress
        else:
            self._pipeline.append((request, True))
        self._advance()

    def _parse(self, data: Buffer) -> None:
        parser = self._parser
        rest = parser.feed(data)
        if parser.phase is BODY and not parser.head_accepted:
            self._check_head()
        if parser.crowded and parser.error is None:
            self._rest = bytes(rest)  # a copy, because the buffer is shared
            self._crowded = True
            self._shared.parsing.ask(self._parse_on)

    def _parse_on(self) -> None:
        """Continue after a step with many small pieces, when the others had their turn and the pipeline has room."""
        self._crowded = False
        if self._state is LINGERING or self._state is CLOSED:
            return
        rest, self._rest = self._rest, b""
        if rest and self._pipeline.full:
            self._rest = rest  # `_adjust_reading` asks for another turn
        elif rest:
            self._parse(rest)
        self._advance()

    def _check_head(self) -> None:
        """Refuse a request before its body is read: without access to its route, for example."""
        head = self._parser.head()
        head.peer = self.peer
        if self._shared.tls is not None:
            head.scheme = "https"
        response = self._shared.dispatcher.check_head(head)
        if response is None:
            self._parser.accept_head(self._shared.dispatcher.body_bytes_max(head))
        else:
            self._refusal = head, response
            self._parser.fail(HeadwaterError("refused"))

    def eof_received(self) -> bool:
        """The client has closed its sending side. Its requests are still completed. A feed ends now: otherwise it would
        keep the connection of a client that has disconnected until the next write fails."""
        if self._state is LINGERING or self._state is CLOSED:
            return False  # closes the transport
        self._parser.end()
        self.drain()
        return True

    def pause_writing(self) -> None:
        self._writer.pause(self._clock.now_s)
        self._move(PAUSED)

    def resume_writing(self) -> None:
        self._writer.resume()
        self._move(RESUMED)
        if self._feed is not None:
            self._feed.drained()
        else:
            self._advance()

    # Requests in order

    def _advance(self) -> None:
        """Start the requests that wait, then continue reading. It is a loop, because handlers may respond at once."""
        if self._advancing:
            return
        self._advancing = True
        begun = 0
        try:
            while self._pipeline and self._state in READING and begun < REQUESTS_PER_TURN:
                begun += 1
                request, keep_alive = self._pipeline.popleft()
                self._begin(request, keep_alive)
        finally:
            self._advancing = False
        if self._pipeline or self._parser.phase is not NOTHING or self._holds:
            self._hold()
        elif self._state is RESPONDING and self._reading and not self._crowded:
            return  # the usual case: one request, now in progress
        self._adjust_reading()
        if self._state not in READING:
            if self._parser.phase is ENDED:
                self.drain()
        elif self._pipeline:
            asyncio.get_running_loop().call_soon(self._advance)  # let other connections run
        else:
            self._read_on()

    def _adjust_reading(self) -> None:
        """Read while the pipeline has room, also to notice that the client has disconnected."""
        full = self._pipeline.full
        if self._rest and not full and not self._crowded:
            self._crowded = True
            self._shared.parsing.ask(self._parse_on)
        waits = full or self._crowded or bool(self._rest)
        if self._reading == waits and self._state is not CLOSED and self._state is not LINGERING:
            self._reading = not self._reading
            (self._transport.resume_reading if self._reading else self._transport.pause_reading)()

    def _begin(self, request: Request, keep_alive: bool) -> None:
        if self._state is IDLE:  # as `_move` does it, without the call
            self._state, self._deadline_s = RESPONDING, NEVER_S
        else:
            self._move(REQUEST)
        shared = self._shared
        request.peer = self.peer
        if shared.tls is not None:
            request.scheme = "https"
        self._request = request
        self._keep_alive = keep_alive
        if shared.observer.is_timed():
            request.began_s = perf_counter()
        try:
            if shared.draining:
                self._check_begun()
            if shared.responses.exhausted:
                shared.check_serving(request)
        except HeadwaterError as error:
            self._respond(problem(error))
            return
        if not shared.turn.begin() and request.path not in HEALTH:
            self._pause_s = shared.turn.retry_s
            self._respond(shared.turn.refusal())
            return
        task = shared.dispatcher.dispatch(request, self._respond)
        if self._state is RESPONDING:  # otherwise it has its response
            self._task = task

    def _check_begun(self) -> None:
        """The server stops: refuse the current request unless it had begun to arrive before. After the last one the
        connection is closed."""
        self._keep_alive = self._keep_alive and bool(self._pipeline or self._finishing > 1)
        if not self._finishing:
            raise self._shared.stopping()
        self._finishing -= 1

    def _hold(self) -> None:
        """Account for the requests that wait. If all connections together hold too much, drop the incomplete one."""
        parser, waiting = self._parser, self._pipeline.held_bytes
        fits = self._held.hold(waiting + parser.head_bytes + len(self._rest), parser.body_bytes)
        if not fits or (self._shared.is_short and parser.body_bytes):
            parser.fail(self._shared.too_many_bytes())
            self._rest = b""
            self._held.hold(waiting, 0)
        self._holds = bool(self._held)

    def _respond(self, response: Response) -> None:
        request = self._request
        if request is None:
            return  # the connection was lost meanwhile
        self._task = None
        if request.began_s or response.status >= 300:
            self._shared.observer.answered(request, response)
        else:
            self._shared.successes[request.route] += 1
        keep_alive = self._keep_alive and not response.close
        if response.feed is None:
            self._writer.write_response(response, head_only=request.method == "HEAD", keep_alive=keep_alive)
            self._answered(keep_alive, for_now=response.status in _FOR_NOW and request.peer == self.peer)
            return
        self._move(FEED)
        chunked = request.version == "1.1"
        self._keep_alive = keep_alive and chunked  # without chunks, the end of the connection ends the body
        self._writer.begin_body(response, chunked=chunked, keep_alive=keep_alive)
        self._feed = feed = response.feed
        feed.open(self._writer, self._clock.now_s)
        if self._feed is feed and (self._parser.phase is ENDED or self._shared.draining):
            feed.finish()

    def _hold_back(self) -> None:
        """Start no other request for a moment, so that a client that ignores Retry-After cannot keep the server busy.
        Connections of trusted proxies are not held back. The pause has jitter, so that connections that were refused
        together do not return together."""
        self._move(PAUSED)
        asyncio.get_running_loop().call_later(self._pause_s * random.uniform(1.0, 1.5), self._go_on)
        self._pause_s = REFUSED_PAUSE_S

    def _go_on(self) -> None:
        if self._state is BLOCKED and not self._writer.blocked:
            self._move(RESUMED)
            self._advance()

    def _end_feed(self) -> None:
        self._feed = None
        self._writer.watch(self._clock.now_s)
        self._answered(self._keep_alive)

    def _answered(self, keep_alive: bool, *, for_now: bool = False) -> None:
        """`for_now`: the request was refused and may be retried later."""
        self._request = None
        if not keep_alive:
            self._end(linger=True)
            return
        if self._state is RESPONDING:  # as `_move` does it, without the call
            clock = self._clock
            self._state, self._deadline_s = IDLE, clock.now_s + clock.idle_s
        else:
            self._move(ANSWERED)
        if self._writer.blocked:
            self._move(PAUSED)
        elif for_now and not self._shared.draining:
            self._hold_back()
        elif self._pipeline or self._parser.phase is not NOTHING or not self._reading:
            self._advance()

    def _read_on(self) -> None:
        """No request waits: set the state by the part of the next request that has arrived."""
        parser = self._parser
        if parser.error is not None:
            self._refuse(parser.error)
            return
        if parser.phase is ENDED:
            self._end(linger=False)
            return
        if self._shared.draining and parser.phase is BODY and not self._finishing:
            self._refuse(self._shared.stopping())
            return
        if parser.phase is RequestPhase.HEAD:
            self._move(HEAD)
        elif parser.phase is RequestPhase.BODY:
            self._await_body(parser.body_bytes)
            if parser.take_expectation():
                self._writer.write_continue()

    # The end

    def _refuse(self, error: HeadwaterError) -> None:
        """Respond with an error and close, because the start of the next request is unknown."""
        if self._refusal is None:
            response = problem(error, close=True)
            self._shared.observer.refused(self.peer, response)
            self._writer.write_response(response, head_only=False, keep_alive=False)
        else:
            request, response = self._refusal
            self._shared.observer.answered(request, response)
            self._writer.write_response(response, head_only=request.method == "HEAD", keep_alive=False)
        self._end(linger=True)

    def _end(self, *, linger: bool) -> None:
        """Write nothing more, and close. If the client may still be sending, discard its data for a moment: closing at
        once would reset the connection before the client has read its last response."""
        linger = linger and self._parser.phase is not ENDED
        self._move(LAST)
        self._release()
        self._writer.watch(self._clock.now_s)
        if not linger:
            self._transport.close()
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._writer.write_eof()

    def _release(self) -> None:
        """Drop all requests that have not been started."""
        self._pipeline.clear()
        self._parser.close()
        self._refusal = None
        self._rest = b""
        self._held.hold(0, 0)
        self._holds = False

    def stop(self) -> None:
        """The server stops: complete the requests that have begun to arrive, and end a live read. The next request is
        refused with 503. The connection stays open for it, because the client may be sending it now."""
        begun = self._crowded or self._parser.phase in (RequestPhase.HEAD, RequestPhase.BODY)
        self._finishing = len(self._pipeline) + begun
        if self._feed is not None:
            self._feed.finish()

    def close_when_idle(self) -> None:
        """Close the connection after the requests that have begun to arrive; now, if there are none."""
        if not self._finishing:
            self._keep_alive = False
        idle = self._state is IDLE or self._state is ACCEPTED
        if (idle and self._parser.phase is NOTHING) or (self._state is BLOCKED and not self._pipeline):
            self._end(linger=False)

    def give_up(self) -> None:
        """The server has waited long enough: refuse a request that has not arrived."""
        if self._state is READING_HEAD or self._state is READING_BODY:
            self._refuse(self._shared.stopping())

    @property
    def has_given_up(self) -> bool:
        return self._state is LINGERING

    def drain(self) -> None:
        """Complete the requests that wait and accept no more: the client has finished sending."""
        if not self._pipeline:
            self._keep_alive = False
        if self._feed is not None:
            self._feed.finish()
        elif self._state is BLOCKED and not self._pipeline:
            self._end(linger=False)
        elif self._state in READING:
            self._advance()
        elif self._state is RESPONDING and self._parser.phase is ENDED:
            self._move(EOF)

    def abort(self) -> None:
        self._transport.abort()

    # Time

    def tick(self, now_s: float) -> None:
        if self._feed is not None and not self._writer.blocked:
            self._feed.tick(now_s)
        stalled = self._writer.stalled(now_s)
        if stalled and (self._writer.blocked or self._state is LINGERING or self._state is IDLE):
            self.abort()
        elif self._state is LINGERING and self._writer.unread_bytes:
            self._deadline_s = now_s + self._shared.limits.linger_s
        elif now_s >= self._deadline_s and not self._crowded:  # otherwise it is waiting for the server
            self._expire()

    def _expire(self) -> None:
        if self._state is READING_HEAD or self._state is READING_BODY:
            self._refuse(RequestTimeoutError("the rest of the request did not arrive in time"))
        elif self._state is LINGERING or self._state is HALF_CLOSED:
            self.abort()
        else:
            self._end(linger=False)
