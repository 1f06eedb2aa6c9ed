"""The blocking shell: drives flows over httpx and hands out what they deliver."""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
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

log = logging.getLogger(__name__)


class Client:
    """A Durable Streams server, by URL. Safe to share between threads; close it when done.

    `token` is sent as a bearer token. If it is a function, it is called for the first one and again whenever the
    server answers 401. `on_error` hears of every failure that will be retried; what it raises ends the operation.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:4437",
        *,
        token: str | Callable[[], str] | None = None,
        headers: Mapping[str, str] | None = None,
        on_error: Callable[[Report], None] | None = None,
        retry: Retry = Retry(),
        timeouts: Timeouts = Timeouts(),
        http: httpx.Client | None = None,
    ) -> None:
        self._session = Session(url, headers, token, retry, timeouts, on_error)
        self._http = http or httpx.Client(limits=POOL, verify=tls_context())
        self._owns_http = http is None

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries, the token included."""
        return self._session.with_headers(HttpRequest("", "")).headers

    def stream(self, path: str, *, content_type: str | None = None) -> Stream:
        """A handle on a stream, given its path below the server's root or its whole URL. Nothing is sent yet."""
        return Stream(self, self._session.url_of(path), content_type)

    def list(self, prefix: str = "", *, page_size: int = limits.LIST_PAGE_MAX) -> Iterator[StreamInfo]:
        """Every stream whose path begins with the prefix, in path order."""
        after: str | None = None
        while True:
            page = self._run(flows.list_page(self._session, prefix, after, page_size))
            yield from page.streams
            after = page.next_after
            if after is None:
                return

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
        for _ in self._drive(progress, _Transport(self._http, self._session)):
            raise RuntimeError("only a read delivers batches")
        return progress.result

    def _drive(self, progress: Progress[Any], transport: _Transport) -> Generator[Batch[Any], None, None]:
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


class _Transport:
    """Does what flows ask for. At most one answer is open at a time; errors of httpx become NetworkErrors."""

    def __init__(self, http: httpx.Client, session: Session) -> None:
        self._http = http
        self._session = session
        self._request = HttpRequest("", "")
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        """End what another thread is waiting for here."""
        self.interrupted.set()
        response = self._response
        if response is not None:
            with contextlib.suppress(OSError, AttributeError, KeyError):  # gone already, or no socket at all
                response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def perform(self, effect: Effect) -> Any:
        match effect:
            case Send(request):
                return self.send(request)
            case Open(request):
                return self.open(request)
            case Receive():
                return self.receive()
            case CloseReply():
                self.close()
            case Sleep(seconds):
                self.interrupted.wait(seconds)
            case Report():
                if self._session.on_error is not None:
                    self._session.on_error(effect)
            case GetToken():
                return self._session.token_hook and self._session.token_hook()
        return None

    def send(self, request: HttpRequest) -> HttpReply:
        reply = self.open(request)
        try:
            body = b"".join(iter(self.receive, b""))
        finally:
            self.close()
        return HttpReply(reply.status, reply.headers, body)

    def open(self, request: HttpRequest) -> HttpReply:
        self.close()
        self._request = request
        try:
            self._response = self._http.send(
                build(self._http, self._session, request), stream=True, follow_redirects=may_redirect(request)
            )
        except httpx.HTTPError as error:
            raise network_error(request, error) from error
        self._chunks = self._response.iter_bytes()
        return HttpReply(self._response.status_code, self._response.headers)

    def receive(self) -> bytes:
        try:
            return next(filter(None, self._chunks), b"")
        except httpx.HTTPError as error:
            raise network_error(self._request, error) from error

    def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            with contextlib.suppress(httpx.HTTPError):
                response.close()


class Stream:
    """A handle on one stream. It holds the URL and, once it is known, the content type; nothing else."""

    def __init__(self, client: Client, url: str, content_type: str | None = None) -> None:
        self._client = client
        self._session = client._session
        self.url = url
        self.content_type = content_type

    def create(
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
        made = self._client._run(
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

    def head(self) -> StreamInfo:
        """What the server says of the stream."""
        info = self._client._run(flows.head(self._session, self.url))
        self.content_type = info.content_type
        return info

    def splits(
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
        return self._client._run(
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

    def records(
        self, *, offset: str = BEGINNING, until: str | None = None, page: int = limits.RECORDS_PAGE_DEFAULT
    ) -> Iterator[RecordInfo]:
        """The appends from an offset on, up to `until` or to the end as it is now, each with its time.

        Fetched in pages of so many records as they are iterated over. An extension of Headwater's; with another server
        it is a ProtocolError.
        """
        begin: str | None = offset
        while begin is not None:
            found = self._client._run(flows.record_page(self._session, self.url, begin, until, page))
            yield from found.records
            begin = found.continues_at(until)

    def offset_at(self, time: datetime) -> str:
        """The offset from which everything was appended at or after a time, which needs a time zone.

        The end of the stream if nothing was. An extension of Headwater's; with another server it is a ProtocolError.
        """
        return self._client._run(flows.offset_at(self._session, self.url, time))

    def append(
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
        return self.append_many((value,), seq=seq, producer=producer, close=close)

    def append_many(
        self,
        values: Iterable[Any],
        *,
        seq: str | None = None,
        producer: ProducerTuple | None = None,
        close: bool = False,
    ) -> Appended:
        """Append messages in one request: all of them or none."""
        return self._client._run(
            flows.append(
                self._session, self.url, self._known_content_type(), values, seq=seq, producer=producer, close=close
            )
        )

    def append_body(self, body: bytes, *, producer: ProducerTuple | None = None) -> Appended:
        """Append a body as it is, all of it or nothing: for a stream of JSON one text, or an array of messages.

        The server alone checks it.
        """
        content_type_used = self._known_content_type()
        return self._client._run(flows.append_body(self._session, self.url, content_type_used, body, producer=producer))

    def close(self) -> Appended:
        """Close the stream: readers come to an end, appends are refused. Closing it again changes nothing."""
        return self._client._run(flows.append(self._session, self.url, self._known_content_type(), (), close=True))

    def delete(self) -> None:
        self._client._run(flows.delete(self._session, self.url))

    def fork(
        self,
        path: str,
        *,
        offset: str | None = None,
        sub_offset: int = 0,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
    ) -> Stream:
        """Make a stream that begins with this one's messages up to an offset, or to its end as it is now."""
        forked = self._client.stream(path, content_type=self.content_type)
        self._client._run(
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
    ) -> Reader[Any]: ...

    @overload
    def read(
        self, *, type: type[T], offset: str = ..., skip: int = ..., until: str | None = ..., live: LiveMode = ...
    ) -> Reader[T]: ...

    @overload
    def read(
        self, *, type: Any, offset: str = ..., skip: int = ..., until: str | None = ..., live: LiveMode = ...
    ) -> Reader[Any]: ...

    def read(
        self,
        *,
        type: Any = Any,  # noqa: A002
        offset: str = BEGINNING,
        skip: int = 0,
        until: str | None = None,
        live: LiveMode = False,
    ) -> Reader[Any]:
        """Read from an offset ("-1" is the beginning, "now" the end), up to `until` or to what is there now.

        With `live` the read goes on until the stream is closed: True takes the mode that fits, "sse" and "long-poll"
        are those. `type` is what to decode messages of JSON to, or bytes or str; without it they become plain
        objects, text streams str and other streams bytes.
        """
        return Reader(
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
    ) -> Producer:
        """A producer whose every message is stored once and in order, whatever is sent twice or lost."""
        settings = ProducerSettings(
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            in_flight_max=in_flight_max,
            queue_bytes=queue_bytes,
            delivery_timeout_s=delivery_timeout_s,
        )
        return Producer(self, identity(id, epoch, auto_claim=auto_claim), settings, on_delivery)

    def __repr__(self) -> str:
        return f"Stream({self.url!r})"

    def _known_content_type(self) -> str:
        """The content type; the server is asked once if nobody said."""
        return self.content_type or self.head().content_type


class Reader(Generic[T]):
    """Messages as they arrive: iterate over it, or over its `batches()`; either goes on where the other stopped.

    All before `offset`, and `skip` messages after it, were handed out: that is what a later read needs to go on.
    """

    def __init__(self, client: Client, reading_from: Callable[[str, int], Reading], offset: str, skip: int) -> None:
        self._client = client
        self._reading_from = reading_from
        self._cursor = Cursor[T](offset, skip)
        self._transport = _Transport(client._http, client._session)
        self._arrived: Generator[Batch[Any], None, None] | None = None
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

    def __iter__(self) -> Iterator[T]:
        cursor = self._cursor
        while True:
            yield from cursor.items()
            if cursor.has_items:
                continue  # another iterator over the same reader went on meanwhile
            batch = self._next()
            if batch is None:
                return
            cursor.hold(batch)

    def batches(self) -> Iterator[Batch[T]]:
        """Messages as they came together, each batch with the offset after it."""
        cursor = self._cursor
        while True:
            if (remainder := cursor.remainder()) is not None:
                yield remainder
            batch = self._next()
            if batch is None:
                return
            yield cursor.batch(batch)

    def all(self) -> list[T]:
        """Everything up to the end of the read."""
        return [item for batch in self.batches() for item in batch.items]

    def close(self) -> None:
        """Stop reading and close the connection, also while another thread waits for the next message.

        One that waits for the answer to a long-poll ends with it.
        """
        self._ended = True
        self._transport.interrupt()
        if self._arrived is not None:
            with contextlib.suppress(ValueError):  # it is running, and finds itself interrupted
                self._arrived.close()

    def _begin(self) -> None:
        reading = self._reading_from(self._cursor.offset, self._cursor.skip)
        self._arrived = self._client._drive(Progress(reading.flow()), self._transport)

    def _next(self) -> Batch[T] | None:
        """What arrives next. After an error it goes on from where the reader is."""
        if self._ended:
            return None
        if self._arrived is None:
            self._begin()
        try:
            batch = next(self._arrived, None) if self._arrived is not None else None
        except BaseException:
            self._arrived = None
            raise
        self._ended = self._ended or batch is None
        return batch

    def __enter__(self) -> Reader[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer:
    """Appends in the background, in order, each message once. Use it as a context manager or call `close`.

    `append` waits only when `queue_bytes` are on their way. An error that cannot be retried ends the producer: it is
    raised by whatever is called next, and told to the callbacks of all that was not stored.
    """

    def __init__(
        self, stream: Stream, identity: Identity, settings: ProducerSettings, on_delivery: OnDelivery | None
    ) -> None:
        self._client = stream._client
        self._session = stream._session
        self._url = stream.url
        self._content_type = stream._known_content_type()
        self._encode = encoder_of(self._content_type)
        self._box = Outbox(identity, settings, self._session.retry, on_delivery)
        self._changed = threading.Condition(threading.Lock())
        self._senders = [
            threading.Thread(target=self._send, name=f"headwater-producer-{number}", daemon=True)
            for number in range(settings.in_flight_max)
        ]
        for sender in self._senders:
            sender.start()
        atexit.register(self._at_exit)

    @property
    def id(self) -> str:
        return self._box.id

    @property
    def epoch(self) -> int:
        return self._box.epoch

    @property
    def metrics(self) -> ProducerMetrics:
        with self._changed:
            return copy.copy(self._box.metrics)

    def append(self, value: Any, on_delivery: OnDelivery | None = None) -> None:
        """Queue one message. `on_delivery` hears when it is stored, or why not, in another thread."""
        box = self._box
        message = self._encode(value)
        with self._changed:
            if not self._is_sender():  # a callback that waited for room would wait for itself
                while box.full and box.failure is None and not box.closing:
                    self._changed.wait()
            box.check()
            if box.add(message, on_delivery, self._session.clock()):
                self._changed.notify()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was appended is stored. TimeoutError if that takes too long: it goes on all the same.

        Not from a delivery callback, which is a part of what is waited for.
        """
        box = self._box
        if self._is_sender():
            raise RuntimeError("a delivery callback cannot wait for deliveries")
        with self._changed:
            target = box.metrics.messages
            box.flushing += 1
            try:
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: box.settled >= target, timeout_s):
                    raise TimeoutError(f"messages still on their way after {timeout_s} s")
            finally:
                box.flushing -= 1
            if box.failure is not None:
                raise box.failure

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and end; appending is an error from then on. The stream itself stays open.

        What is not stored in time is given up: its callbacks are told, and it is a TimeoutError.
        """
        with self._changed:
            self._box.closing = True
            self._changed.notify_all()
        if self._is_sender():
            return  # from a delivery callback: what was appended is still sent
        try:
            self.flush(timeout_s)
        except BaseException:
            self._give_up()
            raise
        finally:
            with self._changed:
                self._box.stopped = True
                self._changed.notify_all()
            atexit.unregister(self._at_exit)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:  # Ctrl-C and the like do not wait for a server that does not answer
            with contextlib.suppress(TimeoutError, HeadwaterError):
                self.close(limits.PRODUCER_LEAVE_S)

    def _at_exit(self) -> None:
        """A producer that nobody closed still sends what it has."""
        try:
            self.close()
        except HeadwaterError as error:
            log.error("messages were lost at exit: %s", error)

    def _is_sender(self) -> bool:
        return threading.current_thread() in self._senders

    def _give_up(self) -> None:
        with self._changed:
            outcome = self._box.give_up(ClientError("the producer was closed before everything was stored"))
        self._notify(outcome)

    def _send(self) -> None:
        box, clock = self._box, self._session.clock
        while True:
            with self._changed:
                while (batch := box.take(clock())) is None:
                    if box.stopped:
                        return
                    self._changed.wait(box.wait_s(clock()))
            self._notify(self._deliver(batch))

    def _notify(self, outcome: Outcome) -> None:
        outcome.notify()
        with self._changed:
            self._box.settled += outcome.messages
            self._changed.notify_all()

    def _deliver(self, batch: PendingBatch) -> Outcome:
        box, session = self._box, self._session
        try:
            try:
                sent = self._client._run(deliver(session, self._url, self._content_type, box, batch))
            except HeadwaterError as error:
                with self._changed:
                    outcome = box.failed(batch, error, session.clock(), session.chance())
            else:
                with self._changed:
                    return box.stored(batch, sent)
            if outcome.report is not None and session.on_error is not None:
                session.on_error(outcome.report)
        except Exception as error:  # noqa: BLE001  # a sender that died would leave everyone waiting
            with self._changed:
                return box.broken(batch, error)
        return outcome
