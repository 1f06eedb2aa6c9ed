"""The client of a server, asyncio."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import httpx

from headwater import limits
from headwater.client import flows, tables
from headwater.client import nurls as notifying
from headwater.client import subscriptions as subscribing
from headwater.client.aio.follow import AsyncFollow
from headwater.client.aio.stream import AsyncStream
from headwater.client.aio.subscription import AsyncSubscription
from headwater.client.aio.table import AsyncTable
from headwater.client.aio.transport import AsyncTransport
from headwater.client.aio.webhooks import AsyncWebhookVerifier
from headwater.client.aio.worker import AsyncWorker
from headwater.client.effects import (
    Batch,
    Emit,
    Flow,
    Report,
    RunningFlow,
)
from headwater.client.flows import StreamInfo
from headwater.client.following import StreamFollowing
from headwater.client.forking import Pools
from headwater.client.restarting import OnGone
from headwater.client.session import Retry, Session, Setting, Timeouts
from headwater.client.subscriptions import SubscriptionStatus
from headwater.client.tables import TableInfo
from headwater.client.transport import POOL, tls_context
from headwater.client.working import WorkerSettings, WorkReport, worker_name
from headwater.errors import HeadwaterError
from headwater.positions import Position
from headwater.protocol.tables.content_type import TableType

R = TypeVar("R")
T = TypeVar("T")


class AsyncClient:
    """A client of a Durable Streams server, for one event loop. Close it when done.

    `token` is sent as a bearer token. If it is a function, the client calls it for the first token, and again
    after every 401. `headers` and `params` (of the query) are sent with every request; a value that is a function is
    called before each request. Token, headers and params are only sent to this server, not to another one that a URL or
    a redirect leads to. `tls` is the context with the certificates to trust and to present. `on_error` is called before
    every retry; if it raises, the operation fails with that exception. All of these functions may be coroutine
    functions.

    After `fork()`, the child process opens its own connections. A pickled client has its settings, including the token,
    and opens its own connections where it is unpickled.

    ```python
    async with AsyncClient("http://127.0.0.1:4437", token="a token") as client:
        prices = client.stream("prices")
        await prices.create()
        await prices.append({"sku": "tea", "eur": 4.20})
    ```
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:4437",
        *,
        token: str | Callable[[], str | Awaitable[str]] | None = None,
        headers: Mapping[str, Setting] | None = None,
        params: Mapping[str, Setting] | None = None,
        on_error: Callable[[Report], Awaitable[None] | None] | None = None,
        retry: Retry = Retry(),
        timeouts: Timeouts = Timeouts(),
        tls: ssl.SSLContext | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        if tls is not None and http is not None:
            raise ValueError("with http, set tls on the httpx client instead")
        self._session = Session(url, headers, params, token, retry, timeouts, on_error)
        self._has_own_settings = tls is not None or http is not None
        self._pools = Pools(lambda: httpx.AsyncClient(limits=POOL, verify=tls or tls_context()), http)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request, including the token but not headers that are functions."""
        return self._session.fixed_headers()

    def stream(
        self,
        path: str,
        *,
        content_type: str | None = None,
        headers: Mapping[str, Setting] | None = None,
        params: Mapping[str, Setting] | None = None,
    ) -> AsyncStream:
        """Return a handle for a stream, given its path on this server or its full URL. Sends no request.

        `headers` and `params` are sent with every request of the handle, in addition to those of the client.
        """
        session = self._session.with_settings(headers, params)
        return AsyncStream(self, session.url_of(path), content_type, session)

    async def list(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> AsyncIterator[StreamInfo]:
        """Iterate over the streams whose path starts with the prefix, ordered by path."""
        after: str | None = None
        while True:
            page = await self._run(flows.list_page(self._session, prefix, after, page_size))
            for info in page.streams:
                yield info
            after = page.next_after
            if after is None:
                return

    @overload
    def follow(self, streams: Mapping[str, str | Position], *, on_gone: OnGone = ...) -> AsyncFollow[Any]: ...

    @overload
    def follow(
        self, streams: Mapping[str, str | Position], *, type: type[T], on_gone: OnGone = ...
    ) -> AsyncFollow[T]: ...

    @overload
    def follow(
        self, streams: Mapping[str, str | Position], *, type: Any, on_gone: OnGone = ...
    ) -> AsyncFollow[Any]: ...

    def follow(
        self,
        streams: Mapping[str, str | Position],
        *,
        type: Any = Any,  # noqa: A002
        on_gone: OnGone = "raise",
    ) -> AsyncFollow[Any]:
        """Follow many streams of this server over one connection, each from its own offset or position.

        "-1" is the beginning of a stream, "now" its tail. `type` and `on_gone` are as in `read`, for all of them. This
        is an extension of Headwater.
        """
        return AsyncFollow(self, StreamFollowing(self._session, streams, type, on_gone))

    def table(
        self,
        name: str,
        *,
        table_type: TableType | None = None,
        headers: Mapping[str, Setting] | None = None,
        params: Mapping[str, Setting] | None = None,
    ) -> AsyncTable:
        """Return a handle for a table, given its name on this server or any SURL. Sends no request.

        With a `table_type`, reads ask for that schema and version, and fail if the table has another one. `headers`
        and `params` are sent with every request of the handle, in addition to those of the client.
        """
        session = self._session.with_settings(headers, params)
        return AsyncTable(self, session.table_url_of(name), table_type, session)

    async def tables(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> AsyncIterator[TableInfo]:
        """Iterate over the tables whose name starts with the prefix, ordered by name."""
        after: str | None = None
        while True:
            page = await self._run(tables.table_page(self._session, prefix, after, page_size))
            for info in page.tables:
                yield info
            after = page.next_after
            if after is None:
                return

    def subscription(self, id: str) -> AsyncSubscription:  # noqa: A002
        """Return a handle for a subscription, given its id. Sends no request."""
        return AsyncSubscription(self, id, self._session)

    async def subscriptions(
        self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX
    ) -> AsyncIterator[SubscriptionStatus]:
        """Iterate over the subscriptions whose id starts with the prefix, ordered by id.

        This is an extension of Headwater; with another server it raises ProtocolError.
        """
        after: str | None = None
        while True:
            page = await self._run(subscribing.list_page(self._session, prefix, after, page_size))
            for status in page.subscriptions:
                yield status
            after = page.next_after
            if after is None:
                return

    def worker(
        self,
        wake_stream: str,
        function: Callable[[Any], Any],
        *,
        name: str | None = None,
        per: Literal["batch", "wake"] = "batch",
        type: Any = Any,  # noqa: A002
        on_report: Callable[[WorkReport], Any] | None = None,
    ) -> AsyncWorker:
        """Return a worker of all subscriptions that wake through a stream, one claim at a time.

        Several workers of the same wake stream share its subscriptions. The other arguments are those of
        `client.subscription(id).worker()`.
        """
        path = self.stream(wake_stream).path
        if path is None:
            raise ValueError(f"the wake stream has to be on this server: {wake_stream!r}")
        settings = WorkerSettings(name=name or worker_name(), per=per, message_type=type, on_report=on_report)
        return AsyncWorker(self, self._session, function, settings, wake_stream=path)

    def webhook_verifier(
        self, jwks_url: str | None = None, *, tolerance_s: float = limits.WEBHOOK_TOLERANCE_S
    ) -> AsyncWebhookVerifier:
        """Return a verifier of the webhooks that this server sends.

        `jwks_url` is the URL of the server's keys, if it is another one. It must come from your configuration, not
        from a request. `tolerance_s` is the greatest difference between the time of a signature and the clock here.
        """
        return AsyncWebhookVerifier(self, self._session, jwks_url, tolerance_s)

    async def notify(self, nurl: str, /, *, surl: str | None = None, **nurls: str) -> None:
        """Send a Notify request to a NURL of any server.

        It says that the table at `surl` may have new rows, and advertises `nurls`, by event type. Without a SURL it is
        a handshake. The recipient may ignore the request.

            client.notify(partner_nurl, surl="https://me.example/manifest", rows="https://me.example/nurl")
        """
        await self._run(notifying.notify(self._session, nurl, surl, nurls))

    async def close(self) -> None:
        """Close the connections."""
        for pool in self._pools.to_close():
            await pool.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __getstate__(self) -> Session:
        if self._has_own_settings:
            raise TypeError("a client with `tls` or `http` cannot be pickled; make it in the other process")
        return self._session

    def __setstate__(self, session: Session) -> None:
        self._session = session
        self._has_own_settings = False
        self._pools = Pools(lambda: httpx.AsyncClient(limits=POOL, verify=tls_context()), None)

    async def _run(self, flow: Flow[R]) -> R:
        running_flow = RunningFlow(flow)
        async for _ in self._drive(running_flow, AsyncTransport(self._pools, self._session)):
            raise RuntimeError("only a read delivers batches")
        return running_flow.result

    async def _drive(self, flow: RunningFlow[Any], transport: AsyncTransport) -> AsyncGenerator[Batch[Any], None]:
        """Perform the effects of a flow until it ends or the transport is interrupted."""
        async with contextlib.aclosing(transport):
            effect = flow.go()
            while effect is not None:
                outcome: Any = None
                if isinstance(effect, Emit):
                    yield effect.batch
                else:
                    try:
                        outcome = await transport.perform(effect)
                    except HeadwaterError as error:
                        outcome = error
                if transport.interrupted.is_set():
                    return
                effect = flow.go(outcome)
