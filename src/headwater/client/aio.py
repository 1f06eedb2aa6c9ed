"""The asyncio shell: drives flows over httpx and hands out what they deliver."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

import httpx

from headwater import limits
from headwater.client import flows
from headwater.client.codecs import JSON, encoder_of
from headwater.client.cursor import Cursor
from headwater.client.effects import (
    Batch,
    CloseReply,
    Effect,
    Emit,
    Flow,
    GetToken,
    HttpReply,
    HttpRequest,
    Open,
    Progress,
    Receive,
    Report,
    Send,
    Sleep,
)
from headwater.client.flows import Appended, RecordInfo, Splits, StreamInfo
from headwater.client.outbox import (
    Identity,
    OnDelivery,
    Outbox,
    Outcome,
    PendingBatch,
    ProducerMetrics,
    ProducerSettings,
    deliver,
    identity,
)
from headwater.client.reading import LiveMode, Reading
from headwater.client.session import Retry, Session, Timeouts
from headwater.client.transport import POOL, build, may_redirect, network_error, tls_context
from headwater.errors import ClientError, HeadwaterError
from headwater.log.producers import ProducerTuple
from headwater.protocol.streams.offsets import BEGINNING

T = TypeVar("T")
R = TypeVar("R")


class AsyncClient:
    """A Durable Streams server, by URL, for one event loop; close it when done.

    `token` is sent as a bearer token. If it is a function, it is called for the first one and again whenever the
    server answers 401. `on_error` hears of every failure that will be retried; what it raises ends the operation.
    Both may be coroutine functions.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:4437",
        *,
        token: str | Callable[[], str | Awaitable[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        on_error: Callable[[Report], Awaitable[None] | None] | None = None,
        retry: Retry = Retry(),
        timeouts: Timeouts = Timeouts(),
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._session = Session(url, headers, token, retry, timeouts, on_error)
        self._http = http or httpx.AsyncClient(limits=POOL, verify=tls_context())
        self._owns_http = http is None

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries, the token included."""
        return self._session.with_headers(HttpRequest("", "")).headers

    def stream(self, path: str, *, content_type: str | None = None) -> AsyncStream:
        """A handle on a stream, given its path below the server's root or its whole URL. Nothing is sent yet."""
        return AsyncStream(self, self._session.url_of(path), content_type)

    async def list(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> AsyncIterator[StreamInfo]:
        """Every stream whose path begins with the prefix, in path order."""
        after: str | None = None
        while True:
            page = await self._run(flows.list_page(self._session, prefix, after, page_size))
            for info in page.streams:
                yield info
            after = page.next_after
            if after is None:
                return

    async def close(self) -> None:
        """Close the connections."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, flow: Flow[R]) -> R:
        progress = Progress(flow)
        async for _ in self._drive(progress, _AsyncTransport(self._http, self._session)):
            raise RuntimeError("only a read delivers batches")
        return progress.result

    async def _drive(self, progress: Progress[Any], transport: _AsyncTransport) -> AsyncGenerator[Batch[Any], None]:
        """Do what a flow asks for until it ends, or the transport is interrupted."""
        async with contextlib.aclosing(transport):
            effect = progress.go()
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
                effect = progress.go(outcome)


class _AsyncTransport:
    """Does what flows ask for. At most one answer is open at a time; errors of httpx become NetworkErrors."""

    def __init__(self, http: httpx.AsyncClient, session: Session) -> None:
        self._http = http
        self._session = session
        self._request = HttpRequest("", "")
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self.interrupted = asyncio.Event()

    async def interrupt(self) -> None:
        """End what another task is waiting for here."""
        self.interrupted.set()
        response = self._response
        if response is not None:
            with contextlib.suppress(OSError, AttributeError, KeyError):  # gone already, or no socket at all
                response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    async def perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return await self.send(request)
            case Open(request):
                return await self.open(request)
            case Receive():
                return await self.receive()
            case CloseReply():
                await self.aclose()
            case Sleep(seconds):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.interrupted.wait(), seconds)
            case Report():
                if self._session.on_error is not None:
                    await _resolved(self._session.on_error(effect))
            case GetToken():
                return self._session.token_hook and await _resolved(self._session.token_hook())
        return None

    async def send(self, request: HttpRequest) -> HttpReply:
        reply = await self.open(request)
        chunks = []
        try:
            while chunk := await self.receive():
                chunks.append(chunk)
        finally:
            await self.aclose()
        return HttpReply(reply.status, reply.headers, b"".join(chunks))

    async def open(self, request: HttpRequest) -> HttpReply:
        await self.aclose()
        self._request = request
        try:
            self._response = await self._http.send(
                build(self._http, self._session, request), stream=True, follow_redirects=may_redirect(request)
            )
        except httpx.HTTPError as error:
            raise network_error(request, error) from error
        self._chunks = self._response.aiter_bytes()
        return HttpReply(self._response.status_code, self._response.headers)

    async def receive(self) -> bytes:
        if self._chunks is None:
            return b""
        try:
            while (chunk := await anext(self._chunks, None)) is not None:
                if chunk:
                    return chunk
        except httpx.HTTPError as error:
            raise network_error(self._request, error) from error
        return b""

    async def aclose(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        if response is not None:
            with contextlib.suppress(httpx.HTTPError):
                await response.aclose()


async def _resolved(value: Any) -> Any:
    """What a hook returned, awaited if it is a coroutine."""
    return await value if inspect.isawaitable(value) else value


class AsyncStream:
    """A handle on one stream. It holds the URL and, once it is known, the content type; nothing else."""

    def __init__(self, client: AsyncClient, url: str, content_type: str | None = None) -> None:
        self._client = client
        self._session = client._session
        self.url = url
        self.content_type = content_type

    async def create(
        self,
        *,
        content_type: str | None = None,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        closed: bool = False,
        messages: Iterable[Any] = (),
    ) -> bool:
        """Make the stream, of JSON unless told otherwise, with first messages or none.

        False if it was there already with the same configuration; with another it is a ConfigurationError.
        """
        content_type_used = content_type or self.content_type or JSON
        made = await self._client._run(
            flows.create(
                self._session,
                self.url,
                content_type_used,
                ttl_s=ttl_s,
                expires_at=expires_at,
                closed=closed,
                messages=messages,
            )
        )
        self.content_type = content_type_used
        return made

    async def head(self) -> StreamInfo:
        """What the server says of the stream."""
        info = await self._client._run(flows.head(self._session, self.url))
        self.content_type = info.content_type
        return info

    async def splits(
        self,
        *,
        offset: str = BEGINNING,
        until: str | None = None,
        parts: int | None = None,
        part_bytes: int | None = None,
        limit: int | None = None,
    ) -> Splits:
        """Where to cut a range for several readers: into `parts` of about equal size, or into parts of at most
        `part_bytes`. An extension of Headwater's; another server answers with an error."""
        return await self._client._run(
            flows.splits(
                self._session,
                self.url,
                offset=offset,
                until=until,
                parts=parts,
                part_bytes=part_bytes,
                limit=limit,
            )
        )

    async def records(
        self, *, offset: str = BEGINNING, until: str | None = None, page: int = limits.RECORDS_PAGE_DEFAULT
    ) -> AsyncIterator[RecordInfo]:
        """The appends from an offset on, up to `until` or to the end as it is now, each with its time.

        Fetched in pages of so many records as they are iterated over. An extension of Headwater's; with another server
        it is a ProtocolError.
        """
        begin: str | None = offset
        while begin is not None:
            found = await self._client._run(flows.record_page(self._session, self.url, begin, until, page))
            for record in found.records:
                yield record
            begin = found.continues_at(until)

    async def offset_at(self, time: datetime) -> str:
        """The offset from which everything was appended at or after a time, which needs a time zone.

        The end of the stream if nothing was. An extension of Headwater's; with another server it is a ProtocolError.
        """
        return await self._client._run(flows.offset_at(self._session, self.url, time))

    async def append(
        self,
        value: Any,
        *,
        seq: str | None = None,
        producer: ProducerTuple | None = None,
        close: bool = False,
    ) -> Appended:
        """Append one message: an object for a stream of JSON, bytes or text for any other.

        Bytes for a stream of JSON are taken for JSON text. If the answer is lost the append may have happened: use
        a producer where that matters. `close` closes the stream with this message.
        """
        return await self.append_many((value,), seq=seq, producer=producer, close=close)

    async def append_many(
        self,
        values: Iterable[Any],
        *,
        seq: str | None = None,
        producer: ProducerTuple | None = None,
        close: bool = False,
    ) -> Appended:
        """Append messages in one request: all of them or none."""
        return await self._client._run(
            flows.append(
                self._session,
                self.url,
                await self._known_content_type(),
                values,
                seq=seq,
                producer=producer,
                close=close,
            )
        )

    async def append_body(self, body: bytes, *, producer: ProducerTuple | None = None) -> Appended:
        """Append a body as it is, all of it or nothing: for a stream of JSON one text, or an array of messages.

        The server alone checks it.
        """
        content_type_used = await self._known_content_type()
        return await self._client._run(
            flows.append_body(self._session, self.url, content_type_used, body, producer=producer)
        )

    async def close(self) -> Appended:
        """Close the stream: readers come to an end, appends are refused. Closing it again changes nothing."""
        return await self._client._run(
            flows.append(self._session, self.url, await self._known_content_type(), (), close=True)
        )

    async def delete(self) -> None:
        await self._client._run(flows.delete(self._session, self.url))

    async def fork(
        self,
        path: str,
        *,
        offset: str | None = None,
        sub_offset: int = 0,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
    ) -> AsyncStream:
        """Make a stream that begins with this one's messages up to an offset, or to its end as it is now."""
        forked = self._client.stream(path, content_type=self.content_type)
        await self._client._run(
            flows.fork(
                self._session,
                forked.url,
                self.url,
                offset=offset,
                sub_offset=sub_offset,
                ttl_s=ttl_s,
                expires_at=expires_at,
            )
        )
        return forked

    @overload
    def read(
        self, *, offset: str = ..., skip: int = ..., until: str | None = ..., live: LiveMode = ...
    ) -> AsyncReader[Any]: ...

    @overload
    def read(
        self, *, type: type[T], offset: str = ..., skip: int = ..., until: str | None = ..., live: LiveMode = ...
    ) -> AsyncReader[T]: ...

    @overload
    def read(
        self, *, type: Any, offset: str = ..., skip: int = ..., until: str | None = ..., live: LiveMode = ...
    ) -> AsyncReader[Any]: ...

    def read(
        self,
        *,
        type: Any = Any,  # noqa: A002
        offset: str = BEGINNING,
        skip: int = 0,
        until: str | None = None,
        live: LiveMode = False,
    ) -> AsyncReader[Any]:
        """Read from an offset ("-1" is the beginning, "now" the end), up to `until` or to what is there now.

        With `live` the read goes on until the stream is closed: True takes the mode that fits, "sse" and "long-poll"
        are those. `type` is what to decode messages of JSON to, or bytes or str; without it they become plain
        objects, text streams str and other streams bytes.
        """
        return AsyncReader(
            self._client,
            lambda offset, skip: Reading(self._session, self.url, type, offset, skip, until, live),
            offset,
            skip,
        )

    def producer(
        self,
        id: str | None = None,  # noqa: A002
        *,
        epoch: int | None = None,
        auto_claim: bool = False,
        batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
        linger_s: float = limits.PRODUCER_LINGER_S,
        in_flight_max: int = limits.PRODUCER_IN_FLIGHT_MAX,
        queue_bytes: int = limits.PRODUCER_QUEUE_BYTES,
        delivery_timeout_s: float = limits.PRODUCER_DELIVERY_TIMEOUT_S,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncProducer:
        """A producer whose every message is stored once and in order, whatever is sent twice or lost."""
        settings = ProducerSettings(
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            in_flight_max=in_flight_max,
            queue_bytes=queue_bytes,
            delivery_timeout_s=delivery_timeout_s,
        )
        return AsyncProducer(self, identity(id, epoch, auto_claim=auto_claim), settings, on_delivery)

    def __repr__(self) -> str:
        return f"AsyncStream({self.url!r})"

    async def _known_content_type(self) -> str:
        """The content type; the server is asked once if nobody said."""
        return self.content_type or (await self.head()).content_type


class AsyncReader(Generic[T]):
    """Messages as they arrive: iterate over it, or over its `batches()`; either goes on where the other stopped.

    All before `offset`, and `skip` messages after it, were handed out: that is what a later read needs to go on.
    """

    def __init__(
        self, client: AsyncClient, reading_from: Callable[[str, int], Reading], offset: str, skip: int
    ) -> None:
        self._client = client
        self._reading_from = reading_from
        self._cursor = Cursor[T](offset, skip)
        self._transport = _AsyncTransport(client._http, client._session)
        self._arrived: AsyncGenerator[Batch[Any], None] | None = None
        self._ended = False
        self._begin()

    @property
    def offset(self) -> str:
        return self._cursor.offset

    @property
    def skip(self) -> int:
        return self._cursor.skip

    @property
    def up_to_date(self) -> bool:
        """Whether the end of the stream, as it was then, has been handed out."""
        return self._cursor.up_to_date

    @property
    def closed(self) -> bool:
        """Whether the stream is closed and all of it was handed out."""
        return self._cursor.closed

    async def __aiter__(self) -> AsyncIterator[T]:
        cursor = self._cursor
        while True:
            for item in cursor.items():
                yield item
            if cursor.has_items:
                continue  # another iterator over the same reader went on meanwhile
            batch = await self._next()
            if batch is None:
                return
            cursor.hold(batch)

    async def batches(self) -> AsyncIterator[Batch[T]]:
        """Messages as they came together, each batch with the offset after it."""
        cursor = self._cursor
        while True:
            if (remainder := cursor.remainder()) is not None:
                yield remainder
            batch = await self._next()
            if batch is None:
                return
            yield cursor.batch(batch)

    async def all(self) -> list[T]:
        """Everything up to the end of the read."""
        return [item async for batch in self.batches() for item in batch.items]

    async def close(self) -> None:
        """Stop reading and close the connection, also while another task waits for the next message.

        One that waits for the answer to a long-poll ends with it.
        """
        self._ended = True
        await self._transport.interrupt()
        if self._arrived is not None:
            with contextlib.suppress(RuntimeError):  # it is running, and finds itself interrupted
                await self._arrived.aclose()

    def _begin(self) -> None:
        reading = self._reading_from(self._cursor.offset, self._cursor.skip)
        self._arrived = self._client._drive(Progress(reading.flow()), self._transport)

    async def _next(self) -> Batch[T] | None:
        """What arrives next. After an error it goes on from where the reader is."""
        if self._ended:
            return None
        if self._arrived is None:
            self._begin()
        try:
            batch = await anext(self._arrived, None) if self._arrived is not None else None
        except BaseException:
            self._arrived = None
            raise
        self._ended = self._ended or batch is None
        return batch

    async def __aenter__(self) -> AsyncReader[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncProducer:
    """Appends in the background, in order, each message once. Use it as a context manager or call `close`.

    `append` waits only when `queue_bytes` are on their way. An error that cannot be retried ends the producer: it is
    raised by whatever is called next, and told to the callbacks of all that was not stored.
    """

    def __init__(
        self, stream: AsyncStream, identity: Identity, settings: ProducerSettings, on_delivery: OnDelivery | None
    ) -> None:
        self._stream = stream
        self._client = stream._client
        self._session = stream._session
        self._content_type = ""
        self._encode: Callable[[Any], bytes] | None = None
        self._box = Outbox(identity, settings, self._session.retry, on_delivery)
        self._changed = asyncio.Condition()
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def epoch(self) -> int:
        return self._box.epoch

    @property
    def metrics(self) -> ProducerMetrics:
        return copy.copy(self._box.metrics)

    async def append(self, value: Any, on_delivery: OnDelivery | None = None) -> None:
        """Queue one message. `on_delivery` hears when it is stored, or why not."""
        box = self._box
        encode = self._encode or await self._learn()
        message = encode(value)
        while box.full and box.failure is None and not box.closing:
            self._pump()
            async with self._changed:
                await self._changed.wait()
        box.check()
        if box.add(message, on_delivery, self._session.clock()):
            self._pump()
            await asyncio.sleep(0)  # once a batch, so that sending goes on beside a loop that only appends

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was appended is stored. TimeoutError if that takes too long: it goes on all the same.

        Not from a delivery callback, which is a part of what is waited for.
        """
        box = self._box
        target = box.metrics.messages
        box.flushing += 1
        try:
            self._pump()
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: box.settled >= target)
        except TimeoutError:
            raise TimeoutError(f"messages still on their way after {timeout_s} s") from None
        finally:
            box.flushing -= 1
        if box.failure is not None:
            raise box.failure

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and end; appending is an error from then on. The stream itself stays open.

        What is not stored in time is given up: its callbacks are told, and it is a TimeoutError.
        """
        self._box.closing = True
        try:
            await self.flush(timeout_s)
        except BaseException:
            closed = ClientError("the producer was closed before everything was stored")
            await asyncio.shield(self._notify(self._box.give_up(closed)))
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._sending:
                task.cancel()

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:  # cancellation and the like do not wait for a server that does not answer
            with contextlib.suppress(TimeoutError, HeadwaterError):
                await self.close(limits.PRODUCER_LEAVE_S)

    async def _learn(self) -> Callable[[Any], bytes]:
        self._content_type = await self._stream._known_content_type()
        self._encode = encoder_of(self._content_type)
        return self._encode

    def _pump(self) -> None:
        """Send what is due now, and come back when the next batch will be."""
        loop, box = asyncio.get_running_loop(), self._box
        while (batch := box.take(self._session.clock())) is not None:
            task = loop.create_task(self._send(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        if self._timer is not None:
            self._timer.cancel()
        wait_s = box.wait_s(self._session.clock())
        self._timer = None if wait_s is None else loop.call_later(wait_s, self._pump)

    async def _send(self, batch: PendingBatch) -> None:
        await self._notify(await self._deliver(batch))
        self._pump()

    async def _notify(self, outcome: Outcome) -> None:
        outcome.notify()
        self._box.settled += outcome.messages
        async with self._changed:
            self._changed.notify_all()

    async def _deliver(self, batch: PendingBatch) -> Outcome:
        box, session = self._box, self._session
        try:
            try:
                sent = await self._client._run(deliver(session, self._stream.url, self._content_type, box, batch))
            except HeadwaterError as error:
                outcome = box.failed(batch, error, session.clock(), session.chance())
            else:
                return box.stored(batch, sent)
            if outcome.report is not None and session.on_error is not None:
                await _resolved(session.on_error(outcome.report))
        except Exception as error:  # noqa: BLE001  # a sender that died would leave everyone waiting
            return box.broken(batch, error)
        return outcome
