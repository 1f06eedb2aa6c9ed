"""A handle on one stream, asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from headwater import limits
from headwater.client import flows
from headwater.client.aio.producer import AsyncProducer
from headwater.client.aio.reader import AsyncReader
from headwater.client.codecs import JSON
from headwater.client.flows import Appended, RecordInfo, RecordTimes, Splits, StreamInfo
from headwater.client.outbox import (
    OnDelivery,
    ProducerSettings,
    identity,
)
from headwater.client.reading import LiveMode, Reading
from headwater.client.session import Session
from headwater.log.producers import ProducerTuple
from headwater.positions import BEGINNING, Position
from headwater.protocol.state.as_events import RecordFormat

if TYPE_CHECKING:
    from headwater.client.aio.client import AsyncClient

T = TypeVar("T")


class AsyncStream:
    """A handle on one stream. It holds the URL and, once it is known, the content type; nothing else.

    ```python
    async with AsyncClient("http://127.0.0.1:4437") as client:
        orders = client.stream("orders")
        await orders.create(ttl_s=3600)
        appended = await orders.append_many([{"id": 1}, {"id": 2}])
        await orders.append({"id": 3}, if_tail=appended.offset)
        info = await orders.head()
        print(info.content_type, info.tail_offset, info.closed)
        await orders.close()
    ```
    """

    def __init__(self, client: AsyncClient, url: str, content_type: str | None, session: Session) -> None:
        self._client = client
        self._session = session
        self.url = url
        self.content_type = content_type

    @property
    def client(self) -> AsyncClient:
        """The client that this handle is of."""
        return self._client

    @property
    def path(self) -> str | None:
        """The stream's path below the client's root; None if it is elsewhere."""
        return flows.path_of(self._session, self.url)

    async def create(
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
    ) -> bool:
        """Make the stream, of JSON unless told otherwise, with first messages or none.

        With the URL of a table on the same server as `view_of` it is a view: the server keeps it current with the
        table's rows, as state events of an entity type. `record` says how a record becomes a value.

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
                named=flows.view_headers(view_of, entity_type, record),
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

    async def record_times(
        self, *, offset: str = BEGINNING, until: str | None = None, page: int = limits.RECORDS_PAGE_MAX
    ) -> AsyncIterator[RecordTimes]:
        """The same as columns of numbers, page by page: for the times of many appends."""
        begin: str | None = offset
        while begin is not None:
            found = await self._client._run(flows.record_times(self._session, self.url, begin, until, page))
            yield found
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
        if_tail: str | None = None,
    ) -> Appended:
        """Append one message: an object for a stream of JSON, bytes or text for any other.

        Bytes for a stream of JSON are taken for JSON text. If the answer is lost the append may have happened: use
        a producer where that matters. `close` closes the stream with this message.

        With `if_tail` it is appended only if the stream ends at that offset, and otherwise a TailMovedError, whose
        `offset` is where it ends. "-1" stands for an empty stream. Servers other than Headwater's may ignore this.
        """
        return await self.append_many((value,), seq=seq, producer=producer, close=close, if_tail=if_tail)

    async def append_many(
        self,
        values: Iterable[Any],
        *,
        seq: str | None = None,
        producer: ProducerTuple | None = None,
        close: bool = False,
        if_tail: str | None = None,
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
                if_tail=if_tail,
            )
        )

    async def append_body(
        self, body: bytes, *, producer: ProducerTuple | None = None, if_tail: str | None = None
    ) -> Appended:
        """Append a body as it is, all of it or nothing: for a stream of JSON one text, or an array of messages.

        The server alone checks it.
        """
        content_type_used = await self._known_content_type()
        return await self._client._run(
            flows.append_body(self._session, self.url, content_type_used, body, producer=producer, if_tail=if_tail)
        )

    async def close(self, *, if_tail: str | None = None) -> Appended:
        """Close the stream: readers come to an end, appends are refused. Closing it again changes nothing."""
        return await self.append_many((), close=True, if_tail=if_tail)

    async def delete(self, *, if_tail: str | None = None) -> None:
        """Delete the stream and all that is in it. Its forks keep what they inherited."""
        await self._client._run(flows.delete(self._session, self.url, if_tail=if_tail))

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
        self, *, offset: str | Position = ..., skip: int = ..., until: str | None = ..., live: LiveMode = ...
    ) -> AsyncReader[Any]: ...

    @overload
    def read(
        self,
        *,
        type: type[T],
        offset: str | Position = ...,
        skip: int = ...,
        until: str | None = ...,
        live: LiveMode = ...,
    ) -> AsyncReader[T]: ...

    @overload
    def read(
        self, *, type: Any, offset: str | Position = ..., skip: int = ..., until: str | None = ..., live: LiveMode = ...
    ) -> AsyncReader[Any]: ...

    def read(
        self,
        *,
        type: Any = Any,  # noqa: A002
        offset: str | Position = BEGINNING,
        skip: int = 0,
        until: str | None = None,
        live: LiveMode = False,
    ) -> AsyncReader[Any]:
        """Read from an offset ("-1" is the beginning, "now" the end), up to `until` or to what is there now.

        The position of another read is a place to begin too. `skip` leaves out so many messages after it.
        With `live` the read goes on until the stream is closed: True takes the mode that fits, "sse" and "long-poll"
        are those. `type` is what to decode messages of JSON to, or bytes or str; without it they become plain
        objects, text streams str and other streams bytes.
        """
        start = Position(offset) if isinstance(offset, str) else offset
        return AsyncReader(
            self._client,
            lambda position: Reading(self._session, self.url, type, position, until, live),
            start.after(skip),
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
