# Made by `python -m tools.twins` from aio/client.py: change that one.
"""A server, by URL: the blocking client."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import httpx

from headwater import limits
from headwater.client import flows, tables
from headwater.client import nurls as notifying
from headwater.client.effects import (
    Batch,
    Emit,
    Flow,
    Progress,
    Report,
)
from headwater.client.flows import StreamInfo
from headwater.client.session import Retry, Session, Setting, Timeouts
from headwater.client.sync.stream import Stream
from headwater.client.sync.table import Table
from headwater.client.sync.transport import Transport
from headwater.client.tables import TableInfo
from headwater.client.transport import POOL, tls_context
from headwater.errors import HeadwaterError
from headwater.protocol.tables.content_type import TableType

R = TypeVar("R")


class Client:
    """A Durable Streams server, by URL. Safe to share between threads; close it when done.

    `token` is sent as a bearer token. If it is a function, it is called for the first one and again whenever the
    server answers 401. `headers` and `params` (of the query) go with every request; a value that is a function is
    called before each of them. All of these are for the server of the client: another one, to which a URL or a
    redirect leads, does not get them. `tls` has the certificates to trust and to show. `on_error` hears of every
    failure that will be retried; what it raises ends the operation.

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
            raise ValueError("give tls to the httpx client that is given")
        self._session = Session(url, headers, params, token, retry, timeouts, on_error)
        self._http = http or httpx.Client(limits=POOL, verify=tls or tls_context())
        self._owns_http = http is None

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries, the token included, but for headers that are functions."""
        return self._session.fixed_headers()

    def stream(
        self,
        path: str,
        *,
        content_type: str | None = None,
        headers: Mapping[str, Setting] | None = None,
        params: Mapping[str, Setting] | None = None,
    ) -> Stream:
        """A handle on a stream, given its path below the server's root or its whole URL. Nothing is sent yet.

        `headers` and `params` go with every request of the handle, besides those of the client.
        """
        session = self._session.with_settings(headers, params)
        return Stream(self, session.url_of(path), content_type, session)

    def list(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> Iterator[StreamInfo]:
        """Every stream whose path begins with the prefix, in path order."""
        after: str | None = None
        while True:
            page = self._run(flows.list_page(self._session, prefix, after, page_size))
            yield from page.streams
            after = page.next_after
            if after is None:
                return

    def table(
        self,
        name: str,
        *,
        table_type: TableType | None = None,
        headers: Mapping[str, Setting] | None = None,
        params: Mapping[str, Setting] | None = None,
    ) -> Table:
        """A handle on a table, given its name on this server or any SURL. Nothing is sent yet.

        With a `table_type` a read asks for that schema and version, and a table of another is an error. `headers` and
        `params` go with every request of the handle, besides those of the client.
        """
        session = self._session.with_settings(headers, params)
        return Table(self, session.table_url_of(name), table_type, session)

    def tables(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> Iterator[TableInfo]:
        """Every table whose name begins with the prefix, in the order of names."""
        after: str | None = None
        while True:
            page = self._run(tables.table_page(self._session, prefix, after, page_size))
            yield from page.tables
            after = page.next_after
            if after is None:
                return

    def notify(self, nurl: str, /, *, surl: str | None = None, **nurls: str) -> None:
        """Send a Notify POST to a NURL of any server: there may be new state at a SURL, and here are NURLs of ours.

        The NURLs are given by their event types. Without a SURL it is a handshake. The recipient may ignore all of it.

            client.notify(partner_nurl, surl="https://me.example/manifest", rows="https://me.example/nurl")
        """
        self._run(notifying.notify(self._session, nurl, surl, nurls))

    def close(self) -> None:
        """Close the connections."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[R]) -> R:
        progress = Progress(flow)
        for _ in self._drive(progress, Transport(self._http, self._session)):
            raise RuntimeError("only a read delivers batches")
        return progress.result

    def _drive(self, progress: Progress[Any], transport: Transport) -> Generator[Batch[Any], None, None]:
        """Do what a flow asks for until it ends, or the transport is interrupted."""
        with contextlib.closing(transport):
            effect = progress.go()
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
                effect = progress.go(outcome)
