# Made by `python -m tools.twins` from aio/stream.py: change that one.
"""A handle for one stream, blocking."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec import UNSET

from headwater import limits
from headwater.client import arrow, composing, entities, flows, retaining
from headwater.client.codecs import JSON
from headwater.client.entities import StreamEntity
from headwater.client.flows import AppendResult, RecordInfo, RecordTimes, SignedUrl, Splits, StreamInfo
from headwater.client.outbox import (
    OnDelivery,
    ProducerSettings,
    identity,
)
from headwater.client.reading import LiveMode, Reading
from headwater.client.restarting import OnGone
from headwater.client.retaining import CompactionReport, FlagChange, NumberChange, RetentionChange
from headwater.client.session import Session
from headwater.client.sync.producer import Producer
from headwater.client.sync.reader import Reader
from headwater.errors import DataLossError, ProtocolError
from headwater.log.producers import ProducerTuple
from headwater.log.retention import Retention
from headwater.positions import BEGINNING, NOW, Position
from headwater.protocol.state.as_events import RecordFormat
from headwater.protocol.streams.composing import SourceRange

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client.columns.records import RecordPart
    from headwater.client.sync.client import Client

T = TypeVar("T")


class Stream:
    """A handle for one stream. It holds the URL and, once known, the content type, and no other state.

    ```python
    with Client("http://127.0.0.1:4437") as client:
        orders = client.stream("orders")
        orders.create(ttl_s=3600)
        appended = orders.append_many([{"id": 1}, {"id": 2}])
        orders.append({"id": 3}, if_tail=appended.offset)
        info = orders.head()
        print(info.content_type, info.tail_offset, info.closed)
        orders.close()
    ```
    """

    def __init__(self, client: Client, url: str, content_type: str | None, session: Session) -> None:
        self._client = client
        self._session = session
        self.url = url
        self.content_type = content_type

    @property
    def client(self) -> Client:
        """The client that made this handle."""
        return self._client

    @property
    def path(self) -> str | None:
        """The stream's path on the client's server; None if the stream is on another server."""
        return flows.path_of(self._session, self.url)

    def create(
        self,
        *,
        content_type: str | None = None,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        closed: bool = False,
        messages: Iterable[Any] = (),
        view_of: str | None = None,
        entity_type: str | None = None,
        record: RecordFormat = RecordFormat.JSON,
        retention: Retention | None = None,
    ) -> bool:
        """Create the stream, with initial messages if given. The default content type is JSON.

        `retention` says what is kept of it, `Retention()` everything. Without it, the defaults of the server apply.

        With `view_of`, the URL of a table on the same server, the stream is a view: the server keeps it current with
        the table's rows, as state events of the given entity type. `record` says how a record becomes a value.

        Returns False if the stream exists with the same configuration. Raises ConfigurationError if it exists with
        another one.
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
                extra_headers=flows.view_headers(view_of, entity_type, record),
                retention=retention,
            )
        )
        self.content_type = content_type_used
        return made

    def head(self) -> StreamInfo:
        """Return the metadata of the stream."""
        info = self._client._run(flows.head(self._session, self.url))
        self.content_type = info.content_type
        return info

    def retain(
        self,
        *,
        seconds: NumberChange = UNSET,
        bytes: NumberChange = UNSET,  # noqa: A002
        messages: NumberChange = UNSET,
        compact: FlagChange = UNSET,
        compact_after_s: NumberChange = UNSET,
    ) -> Retention | None:
        """Change what is kept of the stream. What is not named stays as it is, and None removes a limit.

        What is no longer to be kept is removed at once. Returns what is kept from now on; None is everything. This is
        an extension of Headwater; with another server it raises ProtocolError.
        """
        change = RetentionChange(seconds, bytes, messages, compact, compact_after_s)
        return self._client._run(retaining.retain(self._session, self.url, change))

    def trim(self, before: str | datetime) -> str:
        """Remove what comes before an offset or a time, or everything that is there ("now").

        Returns the offset at which the stream begins then. It can be repeated. This is an extension of Headwater; with
        another server it raises ProtocolError.
        """
        return self._client._run(flows.trim(self._session, self.url, before))

    def compact(self) -> CompactionReport:
        """Replace the front of a stream of state events by a snapshot of its entities, up to the tail, and wait for it.

        Readers that are there do not notice. New ones begin with the snapshot. This is an extension of Headwater; with
        another server it raises ProtocolError.
        """
        return self._client._run(flows.compact(self._session, self.url))

    def splits(
        self,
        *,
        offset: str = BEGINNING,
        until: str | None = None,
        parts: int | None = None,
        part_bytes: int | None = None,
        limit: int | None = None,
    ) -> Splits:
        """Find offsets that split a range for several readers, into `parts` of about equal size or into parts of at
        most `part_bytes`. This is an extension of Headwater; with another server it raises an error."""
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
        """Iterate over the records from an offset up to `until` or the current tail, each with its time.

        They are fetched in pages during the iteration. This is an extension of Headwater; with another server it
        raises ProtocolError.
        """
        begin: str | None = offset
        while begin is not None:
            record_page = self._client._run(flows.record_page(self._session, self.url, begin, until, page))
            yield from record_page.records
            begin = record_page.continues_at(until)

    def record_times(
        self, *, offset: str = BEGINNING, until: str | None = None, page: int = limits.RECORDS_PAGE_MAX
    ) -> Iterator[RecordTimes]:
        """The same as columns of numbers, one page at a time. Use it for the times of many records."""
        begin: str | None = offset
        while begin is not None:
            times = self._client._run(flows.record_times(self._session, self.url, begin, until, page))
            yield times
            begin = times.continues_at(until)

    def offset_at(self, time: datetime) -> str:
        """Return the offset of the first record that was appended at or after a time, which needs a time zone.

        Without such a record it is the tail. This is an extension of Headwater; with another server it raises
        ProtocolError.
        """
        return self._client._run(flows.offset_at(self._session, self.url, time))

    def entity(self, type: str, key: str, *, at: str | datetime | None = None) -> StreamEntity:  # noqa: A002
        """Return one entity of a stream of state events, in its newest state or in that at an offset or before a time.

        The server folds the events. It has all of them that were acknowledged before this call. Raises
        EntityNotFoundError if there is no such entity. This is an extension of Headwater; with another server it raises
        ProtocolError.
        """
        return self._client._run(entities.entity(self._session, self.url, type, key, at))

    def entities(
        self,
        type: str | None = None,  # noqa: A002
        *,
        at: str | datetime | None = None,
        page: int = limits.ENTITIES_PAGE,
    ) -> Iterator[StreamEntity]:
        """Iterate over the entities of a type, or of all types, sorted by type and key.

        They are fetched in pages during the iteration, each of which is the state at one offset. With the offset of the
        first entity as `at` all of them are of one state. This is an extension of Headwater; with another server it
        raises ProtocolError.
        """
        pages = entities.EntityPages(self._session, self.url, type, at, page)
        while not pages.is_over:
            yield from self._client._run(pages.read())

    def sign(self, *, append: bool = False, expires_s: int = limits.SIGNED_URL_S) -> SignedUrl:
        """Return a URL with which anyone can read this stream until it expires, or with `append` append to it.

        The client's token must allow the same. This is an extension of Headwater.
        """
        return self._client._run(flows.sign(self._session, self.url, append=append, expires_s=expires_s))

    def append(
        self,
        value: Any,
        *,
        seq: str | None = None,
        producer: ProducerTuple | None = None,
        close: bool = False,
        if_tail: str | None = None,
    ) -> AppendResult:
        """Append one message: an object for a JSON stream, bytes or text for any other.

        Bytes for a JSON stream must be JSON text. If the response is lost, the message may or may not be stored; use a
        producer where that matters. `close` closes the stream with this message.

        With `if_tail`, the message is appended only if the stream ends at that offset ("-1": if it is empty). Otherwise
        TailMovedError is raised, whose `offset` is the tail. Servers other than Headwater may ignore `if_tail`.
        """
        return self.append_many((value,), seq=seq, producer=producer, close=close, if_tail=if_tail)

    def append_many(
        self,
        values: Iterable[Any],
        *,
        seq: str | None = None,
        producer: ProducerTuple | None = None,
        close: bool = False,
        if_tail: str | None = None,
    ) -> AppendResult:
        """Append messages in one atomic request: all of them are stored, or none."""
        return self._client._run(
            flows.append(
                self._session,
                self.url,
                self._known_content_type(),
                values,
                seq=seq,
                producer=producer,
                close=close,
                if_tail=if_tail,
            )
        )

    def append_body(
        self, body: bytes, *, producer: ProducerTuple | None = None, if_tail: str | None = None
    ) -> AppendResult:
        """Append an encoded body in one atomic request. For a JSON stream it is one JSON text or an array of messages.

        The client does not check it; the server does.
        """
        content_type_used = self._known_content_type()
        return self._client._run(
            flows.append_body(self._session, self.url, content_type_used, body, producer=producer, if_tail=if_tail)
        )

    def compose(
        self,
        sources: Iterable[SourceRange],
        *,
        seq: str | None = None,
        producer: ProducerTuple | None = None,
        close: bool = False,
        if_tail: str | None = None,
    ) -> AppendResult:
        """Append the data of ranges of other streams on the same server, in one atomic request.

        The data does not come through the client. Sources have the content type of this stream, or application/zstd:
        then they hold compressed bodies of appends. With a producer it can be repeated after the sources were deleted.
        Raises ComposeSourceNotFoundError or ComposeSourceGoneError if a source is not there any more. This is an
        extension of Headwater: `head` says whether a server has it (`StreamInfo.composes`).
        """
        body = composing.composition(self._session, sources)
        return self._client._run(
            flows.append_body(
                self._session,
                self.url,
                composing.COMPOSE_TYPE,
                body,
                seq=seq,
                producer=producer,
                close=close,
                if_tail=if_tail,
            )
        )

    def close(self, *, if_tail: str | None = None) -> AppendResult:
        """Close the stream: readers reach an end, and appends are refused. Closing it again has no effect."""
        return self.append_many((), close=True, if_tail=if_tail)

    def delete(self, *, if_tail: str | None = None) -> None:
        """Delete the stream and its data. Forks keep the data that they inherited."""
        self._client._run(flows.delete(self._session, self.url, if_tail=if_tail))

    def fork(
        self,
        path: str,
        *,
        offset: str | None = None,
        sub_offset: int = 0,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        retention: Retention | None = None,
    ) -> Stream:
        """Create a stream that starts with this one's messages up to an offset, or up to the current tail.

        It does not inherit the retention of this one.
        """
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
                retention=retention,
            )
        )
        return forked

    @overload
    def read(
        self,
        *,
        offset: str | Position = ...,
        skip: int = ...,
        until: str | None = ...,
        live: LiveMode = ...,
        on_gone: OnGone = ...,
    ) -> Reader[Any]: ...

    @overload
    def read(
        self,
        *,
        type: type[T],
        offset: str | Position = ...,
        skip: int = ...,
        until: str | None = ...,
        live: LiveMode = ...,
        on_gone: OnGone = ...,
    ) -> Reader[T]: ...

    @overload
    def read(
        self,
        *,
        type: Any,
        offset: str | Position = ...,
        skip: int = ...,
        until: str | None = ...,
        live: LiveMode = ...,
        on_gone: OnGone = ...,
    ) -> Reader[Any]: ...

    def read(
        self,
        *,
        type: Any = Any,  # noqa: A002
        offset: str | Position = BEGINNING,
        skip: int = 0,
        until: str | None = None,
        live: LiveMode = False,
        on_gone: OnGone = "raise",
    ) -> Reader[Any]:
        """Read from an offset ("-1" is the beginning, "now" the tail) up to `until` or the current tail.

        `offset` may also be the position of another read. `skip` leaves out that many messages after it.
        With `live`, the read continues until the stream is closed: True chooses the mode, "sse" and "long-poll" force
        one. `type` is the type to decode JSON messages to, or bytes or str. Without it, JSON messages become plain
        objects, text becomes str and other data bytes.

        If the data at the position was trimmed, the read raises OffsetTrimmedError, whose `first_offset` is where the
        stream begins; if the stream was deleted and created again, OffsetGoneError. With `on_gone="restart"` it begins
        again at the first data that is there instead, and tells so by a batch with `restarted` and in the log. A
        function as `on_gone` is called with the error before that.
        """
        return Reader(
            self._client,
            lambda position: Reading(self._session, self.url, type, position, until, live, on_gone=on_gone),
            Position.at(offset).after(skip),
        )

    def batches(
        self,
        *,
        offset: str | datetime = BEGINNING,
        until: str | datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the stream as Arrow record batches, from an offset or time up to `until` or the current tail.

        A row is a message of a JSON stream, or an append of another stream. The columns are `offset`, from which a read
        begins with the append of the row, `time`, when it was appended, and `value`: JSON as it was written, text, or
        bytes. The default is `offset` and `value`; only what is asked for is fetched. A batch has the rows of one
        response, so the memory that is needed does not depend on the length of the stream.

        Needs pyarrow (extra `sql`). On servers without record times, `time` is null, and `offset` is one at or before
        the row.
        """
        reading = arrow.message_columns(columns, self.content_type or self.head().content_type)
        begin = self.offset_at(offset) if isinstance(offset, datetime) else offset
        end = self.offset_at(until) if isinstance(until, datetime) else until or self.head().tail_offset
        if offset == NOW:
            return
        if until is None and isinstance(offset, str) and end < offset:
            with self.read(offset=offset) as reader:  # the server says what is wrong with it
                for _ in reader.batches():
                    break
        reading.has_records = self.path is not None
        with (
            contextlib.closing(self._record_parts(begin, end)) as parts,
            self.read(type=reading.type, offset=begin, until=end) as reader,
        ):
            before = reader.position
            for batch in reader.batches():
                while reading.needs_records(batch.items):
                    reading.add(self._next_part(parts, reading.is_started))
                made = reading.batch(batch.items, before)
                before = batch.position
                if made is not None:
                    yield made
            if reader.offset != end and not isinstance(until, str):
                raise DataLossError(f"{self.path or self.url} ended at {reader.offset}, before {end}")

    def arrow(
        self,
        *,
        offset: str | datetime = BEGINNING,
        until: str | datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the same as one Arrow table, which takes as much memory as its rows.

        table = client.stream("orders").arrow(columns=["time", "value"])
        """
        arrow.require_pyarrow()
        import pyarrow as pa

        schema = arrow.message_columns(columns, self.content_type or self.head().content_type).schema
        made = list(self.batches(offset=offset, until=until, columns=columns))
        return pa.Table.from_batches(made, schema)

    def _next_part(self, parts: Iterator[RecordPart], is_started: bool) -> RecordPart | None:
        """The next records; None if there are none, or if the server has no record times."""
        try:
            return next(parts, None)
        except ProtocolError:
            if is_started:
                raise
            return None

    def _record_parts(self, offset: str, until: str) -> Generator[RecordPart, None, None]:
        """The records of a range as columns."""
        from headwater.client.columns.records import has_one_id, part_of

        for page in self.record_times(offset=offset, until=until):
            if has_one_id(page):
                yield part_of(page)
            else:
                records = self.records(offset=page.offset, until=page.next_offset)
                yield part_of(page, list(records))

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
        """Return a producer that stores every message exactly once and in order, even if requests are retried."""
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
        """Return the content type; ask the server if it is not known yet."""
        return self.content_type or self.head().content_type
