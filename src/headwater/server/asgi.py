"""The ASGI edge: the same handlers as an ASGI app, to mount in another application or run under any ASGI server.

    from headwater.server.asgi import app             # everything in memory
    api.mount("/streams", app)                        # streams below /streams/v1/stream/

An app starts its engine with the lifespan of the ASGI server, or at the first request if it gets no lifespan events, as
in a mounted app.

Pages of other origins cannot use the app, unless `allow_origins` names them (`*` for all). With `allow_origins=None`
the application decides, for example with its CORS middleware. `allow_hosts` are the host names to accept; any if None.

`public_url` is the URL of the app for others, including the mount point. It is used in the SURLs of Notify requests and
in the NURLs that followers advertise. Without it, Notify requests use the address at which the NURL was advertised, and
followers do not register for Notify. With `development`, NURLs may be loopback addresses.

`auth` is the path of an auth file (`headwater token add`): requests then need a token, see docs/security.md. Without
it, everyone who can reach the app may do everything, so the application must check access.

`follow` has SURLs to mirror, by the name of the local table. `allow_follow` has prefixes of SURLs that Notify requests
may add. With `development`, SURLs may be loopback addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headwater.errors import (
    HeadwaterError,
    OutOfMemoryError,
)
from headwater.limits import Limits
from headwater.server.access import Access, parse_public_url
from headwater.server.asgi_requests import DisconnectedError, Message, Receive, RequestReader, Scope, Send, peer_of
from headwater.server.default_retention import parse_rules
from headwater.server.dispatch import Dispatcher
from headwater.server.following import parse_policy
from headwater.server.http import COMMON_HEADERS, Feed, Frame, Headers, Request, Response
from headwater.server.memory import fit_memory
from headwater.server.observing import Observer
from headwater.server.observing.configuration import ShownSetting, ShownSettings, shown_limits, shown_value
from headwater.server.opening import OpenService, ServiceOptions, open_service
from headwater.server.problems import problem
from headwater.server.quotas import parse_quotas
from headwater.server.settings import DEFAULT, OPTIONS
from headwater.store.contract import Store
from headwater.store.memory import MemoryStore

_TICK_S = 1.0
_APPLICATION = "application"  # the source of a setting
_NAMES = {"allow_origins": "allow_origin", "allow_hosts": "allow_host", "quotas": "quota"}  # as options of a server


def _shown(limits: Limits, **arguments: Any) -> ShownSettings:
    """What an application has decided."""
    usual, defaults = Limits(), App.__init__.__kwdefaults__ or {}

    def source_of(limit: str) -> str:
        return DEFAULT if getattr(limits, limit) == getattr(usual, limit) else _APPLICATION

    options = [
        ShownSetting(
            name,
            shown_value(value),
            DEFAULT if value == defaults[name] else _APPLICATION,
            OPTIONS[_NAMES.get(name, name)].help,
        )
        for name, value in arguments.items()
    ]
    return ShownSettings(options, shown_limits(limits, source_of))


class App:
    """The server as an ASGI app, to be mounted in an application or run by an ASGI server.

    `store` opens the store; without it everything is kept in memory. `allow_origins` are origins of pages that may use
    the app, `["*"]` all of them; None leaves the decision to the application. `allow_hosts` are the host names that the
    app accepts, None any. `auth` is a file with tokens; without it all requests are allowed. `public_url` is the URL of
    the app for others, including the mount point. `follow` and `allow_follow` name remote tables to mirror.
    `development` allows requests to loopback addresses. `console` serves the console at `/console`.

    ```python
    from headwater.limits import Limits
    from headwater.store.embedded.opening import open_store

    limits = Limits(long_poll_s=20)
    app = App(lambda: open_store(Path("headwater-data"), limits), limits, allow_origins=["https://app.example"])
    ```
    """

    def __init__(
        self,
        store: Callable[[], Store] = MemoryStore,
        limits: Limits | None = None,
        *,
        allow_origins: Iterable[str] | None = (),
        allow_hosts: Iterable[str] | None = None,
        auth: str | Path | None = None,
        public_url: str | None = None,
        follow: Mapping[str, str] | None = None,
        allow_follow: Iterable[str] = (),
        development: bool = False,
        quotas: Iterable[str] = (),
        retain: Iterable[str] = (),
        console: bool = True,
    ) -> None:
        self._limits = fit_memory(limits or Limits())
        self._reader = RequestReader(self._limits)
        allow_origins, allow_hosts = (None if some is None else tuple(some) for some in (allow_origins, allow_hosts))
        allow_follow, quotas, retain = tuple(allow_follow), tuple(quotas), tuple(retain)
        self._access = Access(origins=allow_origins, hosts=allow_hosts)
        self._options = ServiceOptions(
            limits=self._limits,
            policy=parse_policy(follow or {}, allow_follow, development=development),
            prefixes=parse_quotas(quotas),
            retention=parse_rules(retain),
            auth=None if auth is None else Path(auth),
            public_url=None if public_url is None else parse_public_url(public_url),
            development=development,
            console=console,
            settings=_shown(
                self._limits,
                allow_origins=allow_origins,
                allow_hosts=allow_hosts,
                auth=auth,
                public_url=public_url,
                follow=follow,
                allow_follow=allow_follow,
                development=development,
                quotas=quotas,
                retain=retain,
                console=console,
            ),
        )
        self._open_store = store
        self._opened: OpenService | None = None
        self._dispatcher: Dispatcher | None = None
        self._starting: asyncio.Task[Dispatcher] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            raise RuntimeError(f"Headwater serves http, not {scope['type']}")

    # Life

    async def start(self) -> Dispatcher:
        """Start once, at the first request."""
        loop = asyncio.get_running_loop()
        if self._starting is None:
            self._loop, self._starting = loop, asyncio.create_task(self._start())
        elif self._loop is not loop:
            raise RuntimeError("this app was started on another event loop; give each loop an app of its own")
        if self._dispatcher is not None:
            return self._dispatcher
        return await asyncio.shield(self._starting)

    async def _start(self) -> Dispatcher:
        try:
            opened = await open_service(self._options, self._open_store)
            try:
                await opened.announce()
            except BaseException:
                await opened.close()
                raise
        except BaseException:
            self._starting = None  # the next request tries again
            raise
        self._opened, self._dispatcher = opened, Dispatcher(opened.service, self._access)
        return self._dispatcher

    async def stop(self) -> None:
        """Close live reads, make accepted writes durable, and close the store. For apps without lifespan events."""
        if self._starting is not None and not self._starting.done():
            await asyncio.wait((self._starting,))
        opened, self._opened, self._dispatcher, self._starting = self._opened, None, None, None
        if opened is not None:
            await opened.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:  # noqa: BLE001 - reported to the ASGI server, which stops
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # Requests

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        dispatcher = await self.start()
        observer = dispatcher.service.observer
        try:
            request, refusal = await self._reader.receive(scope, receive, dispatcher)
        except DisconnectedError:
            return
        except (HeadwaterError, MemoryError) as error:
            short = OutOfMemoryError("there was no memory for the request; nothing was stored")
            refusal = problem(error if isinstance(error, HeadwaterError) else short, close=True)
            observer.refused(peer_of(scope), refusal)
            await _send(send, refusal, scope)
            return
        if refusal is None:
            await self._respond(dispatcher, request, scope, receive, send)
        else:
            observer.answered(request, refusal)
            await _send(send, refusal, scope)

    async def _respond(
        self, dispatcher: Dispatcher, request: Request, scope: Scope, receive: Receive, send: Send
    ) -> None:
        observer = dispatcher.service.observer
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def respond(response: Response) -> None:
            if not answer.done():
                answer.set_result(response)

        task = dispatcher.dispatch(request, respond)
        leaving = asyncio.ensure_future(_until_disconnected(receive)) if task is not None else None
        try:
            if leaving is not None:
                await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    return
            response = await answer
            observer.answered(request, response)
            if response.feed is None:
                observer.sent_bytes += sum(map(len, response.body))
                await _send(send, response, scope)
            elif leaving is not None:
                await self._feed(response, response.feed, leaving, send, observer)
        finally:
            if task is not None:
                task.cancel()
            if leaving is not None:
                leaving.cancel()

    async def _feed(
        self, response: Response, feed: Feed, leaving: asyncio.Future[None], send: Send, observer: Observer
    ) -> None:
        loop = asyncio.get_running_loop()
        sink = _Sink(self._limits.live_buffer_bytes)
        feed.open(sink, loop.time())  # at once, because a stream that nobody follows may be evicted
        try:
            await send(_head(response))
            while not leaving.done():
                frames, blocked = sink.take()
                if frames:
                    observer.sent_bytes += len(frames)
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
                    if blocked:
                        feed.drained()
                elif sink.ended:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                elif sink.aborted:
                    raise ConnectionAbortedError("the response cannot be completed")
                else:
                    await sink.wait(leaving, _TICK_S)
                    feed.tick(loop.time())
        finally:
            feed.cancel()


class _Sink:
    """Data that a feed wrote and the ASGI server has not taken yet. The feed itself limits its size."""

    def __init__(self, bytes_max: int) -> None:
        self.ended = False
        self.aborted = False
        self._bytes_max = bytes_max
        self._frames = bytearray()
        self._news = asyncio.Event()

    @property
    def blocked(self) -> bool:
        return len(self._frames) >= self._bytes_max

    def write(self, frame: Frame) -> None:
        self._frames += frame.body
        self._news.set()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    def abort(self) -> None:
        self.aborted = True
        self._news.set()

    def take(self) -> tuple[bytes, bool]:
        """Return and release everything written so far, and whether the feed waits for it."""
        blocked = self.blocked
        frames, self._frames = bytes(self._frames), bytearray()
        self._news.clear()
        return frames, blocked

    async def wait(self, leaving: asyncio.Future[None], timeout_s: float) -> None:
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait((news, leaving), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _head(response: Response, extra: Headers = ()) -> Message:
    return {
        "type": "http.response.start",
        "status": response.status,
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in (*COMMON_HEADERS, *response.headers, *extra)
        ],
    }


async def _send(send: Send, response: Response, scope: Scope) -> None:
    body = b"".join(response.body)
    extra: Headers = () if response.status in (204, 304) else (("content-length", str(len(body))),)
    if response.close and scope.get("http_version", "1.1").startswith("1"):  # HTTP/2 has no such header
        extra += (("connection", "close"),)
    await send(_head(response, extra))
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


app = App()
"""An app that keeps everything in memory: `uvicorn headwater.server.asgi:app`."""
