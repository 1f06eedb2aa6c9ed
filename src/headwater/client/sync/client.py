# Made by `python -m tools.twins` from aio/client.py: change that one.
"""The client of a server, blocking."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import httpx

from headwater import limits
from headwater.client import flows, tables
from headwater.client import nurls as notifying
from headwater.client import subscriptions as subscribing
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
from headwater.client.sync.follow import Follow
from headwater.client.sync.stream import Stream
from headwater.client.sync.subscription import Subscription
from headwater.client.sync.table import Table
from headwater.client.sync.transport import Transport
from headwater.client.sync.webhooks import WebhookVerifier
from headwater.client.sync.worker import Worker
from headwater.client.tables import TableInfo
from headwater.client.transport import POOL, tls_context
from headwater.client.working import WorkerSettings, WorkReport, worker_name
from headwater.errors import HeadwaterError
from headwater.positions import Position
from headwater.protocol.tables.content_type import TableType

R = TypeVar("R")
T = TypeVar("T")


class Client:
    """A client of a Durable Streams server. It can be shared between threads. Close it when done.

    `token` is sent as a bearer token. If it is a function, the client calls it for the first token, and again
    after every 401. `headers` and `params` (of the query) are sent with every request; a value that is a function is
    called before each request. Token, headers and params are only sent to this server, not to another one that a URL or
    a redirect leads to. `tls` is the context with the certificates to trust and to present. `on_error` is called before
    every retry; if it raises, the operation fails with that exception.

    After `fork()`, the child process opens its own connections. A pickled client has its settings, including the token,
    and opens its own connections where it is unpickled.

    ```python
    with Client("http://127.0.0.1:4437", token="a token") as client:
        prices = client.stream("prices")
        prices.create()
        prices.append({"sku": "tea", "eur": 4.20})
    ```
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:4437",
        *,
        token: str | Callable[[], str] | None = None,
        headers: Mapping[str, Setting] | None = None,
        params: Mapping[str, Setting] | None = None,
        on_error: Callable[[Report], None] | None = None,
        retry: Retry = Retry(),
        timeouts: Timeouts = Timeouts(),
        tls: ssl.SSLContext | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        if tls is not None and http is not None:
            raise ValueError("with http, set tls on the httpx client instead")
        self._session = Session(url, headers, params, token, retry, timeouts, on_error)
        self._has_own_settings = tls is not None or http is not None
        self._pools = Pools(lambda: httpx.Client(limits=POOL, verify=tls or tls_context()), http)

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
    ) -> Stream:
        """Return a handle for a stream, given its path on this server or its full URL. Sends no request.

        `headers` and `params` are sent with every request of the handle, in addition to those of the client.
        """
        session = self._session.with_settings(headers, params)
        return Stream(self, session.url_of(path), content_type, session)

    def list(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> Iterator[StreamInfo]:
        """Iterate over the streams whose path starts with the prefix, ordered by path."""
        after: str | None = None
        while True:
            page = self._run(flows.list_page(self._session, prefix, after, page_size))
            yield from page.streams
            after = page.next_after
            if after is None:
                return

    @overload
    def follow(self, streams: Mapping[str, str | Position], *, on_gone: OnGone = ...) -> Follow[Any]: ...

    @overload
    def follow(self, streams: Mapping[str, str | Position], *, type: type[T], on_gone: OnGone = ...) -> Follow[T]: ...

    @overload
    def follow(self, streams: Mapping[str, str | Position], *, type: Any, on_gone: OnGone = ...) -> Follow[Any]: ...

    def follow(
        self,
        streams: Mapping[str, str | Position],
        *,
        type: Any = Any,  # noqa: A002
        on_gone: OnGone = "raise",
    ) -> Follow[Any]:
        """Follow many streams of this server over one connection, each from its own offset or position.

        "-1" is the beginning of a stream, "now" its tail. `type` and `on_gone` are as in `read`, for all of them. This
        is an extension of Headwater.
        """
        return Follow(self, StreamFollowing(self._session, streams, type, on_gone))

    def table(
        self,
        name: str,
        *,
        table_type: TableType | None = None,
        headers: Mapping[str, Setting] | None = None,
        params: Mapping[str, Setting] | None = None,
    ) -> Table:
        """Return a handle for a table, given its name on this server or any SURL. Sends no request.

        With a `table_type`, reads ask for that schema and version, and fail if the table has another one. `headers`
        and `params` are sent with every request of the handle, in addition to those of the client.
        """
        session = self._session.with_settings(headers, params)
        return Table(self, session.table_url_of(name), table_type, session)

    def tables(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> Iterator[TableInfo]:
        """Iterate over the tables whose name starts with the prefix, ordered by name."""
        after: str | None = None
        while True:
            page = self._run(tables.table_page(self._session, prefix, after, page_size))
            yield from page.tables
            after = page.next_after
            if after is None:
                return

    def subscription(self, id: str) -> Subscription:  # noqa: A002
        """Return a handle for a subscription, given its id. Sends no request."""
        return Subscription(self, id, self._session)

    def subscriptions(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> Iterator[SubscriptionStatus]:
        """Iterate over the subscriptions whose id starts with the prefix, ordered by id.

        This is an extension of Headwater; with another server it raises ProtocolError.
        """
        after: str | None = None
        while True:
            page = self._run(subscribing.list_page(self._session, prefix, after, page_size))
            yield from page.subscriptions
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
    ) -> Worker:
        """Return a worker of all subscriptions that wake through a stream, one claim at a time.

        Several workers of the same wake stream share its subscriptions. The other arguments are those of
        `client.subscription(id).worker()`.
        """
        path = self.stream(wake_stream).path
        if path is None:
            raise ValueError(f"the wake stream has to be on this server: {wake_stream!r}")
        settings = WorkerSettings(name=name or worker_name(), per=per, message_type=type, on_report=on_report)
        return Worker(self, self._session, function, settings, wake_stream=path)

    def webhook_verifier(
        self, jwks_url: str | None = None, *, tolerance_s: float = limits.WEBHOOK_TOLERANCE_S
    ) -> WebhookVerifier:
        """Return a verifier of the webhooks that this server sends.

        `jwks_url` is the URL of the server's keys, if it is another one. It must come from your configuration, not
        from a request. `tolerance_s` is the greatest difference between the time of a signature and the clock here.
        """
        return WebhookVerifier(self, self._session, jwks_url, tolerance_s)

    def notify(self, nurl: str, /, *, surl: str | None = None, **nurls: str) -> None:
        """Send a Notify request to a NURL of any server.

        It says that the table at `surl` may have new rows, and advertises `nurls`, by event type. Without a SURL it is
        a handshake. The recipient may ignore the request.

            client.notify(partner_nurl, surl="https://me.example/manifest", rows="https://me.example/nurl")
        """
        self._run(notifying.notify(self._session, nurl, surl, nurls))

    def close(self) -> None:
        """Close the connections."""
        for pool in self._pools.to_close():
            pool.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> Session:
        if self._has_own_settings:
            raise TypeError("a client with `tls` or `http` cannot be pickled; make it in the other process")
        return self._session

    def __setstate__(self, session: Session) -> None:
        self._session = session
        self._has_own_settings = False
        self._pools = Pools(lambda: httpx.Client(limits=POOL, verify=tls_context()), None)

    def _run(self, flow: Flow[R]) -> R:
        running_flow = RunningFlow(flow)
        for _ in self._drive(running_flow, Transport(self._pools, self._session)):
            raise RuntimeError("only a read delivers batches")
        return running_flow.result

    def _drive(self, flow: RunningFlow[Any], transport: Transport) -> Generator[Batch[Any], None, None]:
        """Perform the effects of a flow until it ends or the transport is interrupted."""
        with contextlib.closing(transport):
            effect = flow.go()
            while effect is not None:
                outcome: Any = None
                if isinstance(effect, Emit):
                    yield effect.batch
                else:
                    try:
                        outcome = transport.perform(effect)
                    except HeadwaterError as error:
                        outcome = error
                if transport.interrupted.is_set():
                    return
                effect = flow.go(outcome)
