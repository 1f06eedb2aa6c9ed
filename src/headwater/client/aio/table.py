"""A handle for one table, asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import UNSET

from headwater import limits
from headwater.client import arrow, composing, flows, mirroring, retaining, table_reading, tables
from headwater.client import nurls as notifying
from headwater.client.aio.table_reader import AsyncTableReader
from headwater.client.mirroring import Mirrored, Mirroring
from headwater.client.nurls import Nurl
from headwater.client.restarting import OnGone
from headwater.client.retaining import CompactionReport, FlagChange, NumberChange, RetentionChange
from headwater.client.session import Session
from headwater.client.table_reading import AT_ONCE, TableReading
from headwater.client.tables import AppendedRows, Change, TableInfo
from headwater.errors import OffsetTrimmedError
from headwater.log.producers import ProducerTuple
from headwater.log.retention import Retention
from headwater.protocol.streams.composing import SourceRange
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.following import TableFollowing
from headwater.protocol.tables.repairing import changes_between
from headwater.protocol.tables.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.client.aio.client import AsyncClient


class AsyncTable:
    """A handle for one table, given by its name on the client's server or by any SURL.

    It holds the URL and, once known, the table's type. A read fails if the table has another schema or version by then.
    Reading works with every STP server, writing only with Headwater.

    ```python
    async with AsyncClient("http://127.0.0.1:4437") as client:
        prices = client.table("prices")
        await prices.create(schema="price", version=1)
        await prices.append([Put("tea", "2.40"), Put("coffee", "3.10"), Remove("coffee")])
        async for row in prices.rows():
            print(row.seqno, row.action, row.key, row.record)
        active = await prices.active()
        assert list(active) == ["tea"]
    ```

    Redirects are not followed, and the client's token and headers are only sent to the client's own server.
    """

    def __init__(self, client: AsyncClient, url: str, table_type: TableType | None, session: Session) -> None:
        self._client = client
        self._session = session
        self.url = url
        self.table_type = table_type

    async def create(
        self,
        *,
        schema: str | None = None,
        version: int = 1,
        escape: Escape = Escape.NONE,
        ttl_s: int | None = None,
        expires_at: datetime | str | None = None,
        mirror: bool = False,
        view_of: str | None = None,
        entity_type: str | None = None,
        retention: Retention | None = None,
    ) -> bool:
        """Create the table. With Escape.BACKSLASH its keys and records may contain tabs and line ends.

        A `mirror` stores rows with the SeqNos that another server gave them: write it with `append_rows` or `mirror`.
        With `view_of`, the URL of a stream on the same server, the table is a view: the server keeps it current with
        the stream's state events of one entity type. The default schema is `json` for a view and `text` otherwise.
        `retention` says what is kept of the table, `Retention()` everything. Without it, the defaults of the server
        apply.

        Returns False if the table exists with the same configuration. Raises ConfigurationError if it exists with
        another one.
        """
        view = tables.view_headers(view_of, entity_type)
        table = TableType(schema or ("json" if view else "text"), version, escape)
        made = await self._client._run(
            tables.create(
                self._session,
                self.url,
                table,
                ttl_s=ttl_s,
                expires_at=expires_at,
                mirror=mirror,
                view=view,
                retention=retention,
            )
        )
        self.table_type = table
        return made

    async def info(self) -> TableInfo:
        """Return the metadata of the table."""
        info, self.table_type = await self._client._run(tables.info(self._session, self.url))
        return info

    async def retain(
        self,
        *,
        seconds: NumberChange = UNSET,
        bytes: NumberChange = UNSET,  # noqa: A002
        messages: NumberChange = UNSET,
        compact: FlagChange = UNSET,
        compact_after_s: NumberChange = UNSET,
    ) -> Retention | None:
        """Change what is kept of the table. What is not named stays as it is, and None removes a limit.

        `messages` is a number of rows. What is no longer to be kept is removed at once. Returns what is kept from now
        on; None is everything. This is an extension of Headwater; with another server it raises ProtocolError.
        """
        change = RetentionChange(seconds, bytes, messages, compact, compact_after_s)
        return await self._client._run(retaining.retain(self._session, self.url, change, guarded=True))

    async def trim(self, before: int | str | datetime) -> int:
        """Remove the rows before a SeqNo or a time, or all rows that are there ("now").

        Returns the SeqNo of the first row that is there then. It can be repeated. This is an extension of Headwater;
        with another server it raises ProtocolError.
        """
        return await self._client._run(tables.trim(self._session, self.url, before))

    async def compact(self) -> CompactionReport:
        """Remove the rows that later ones have replaced, and old deletions, and wait for it.

        The other rows keep their SeqNos. This is an extension of Headwater; with another server it raises
        ProtocolError.
        """
        return await self._client._run(tables.compact(self._session, self.url))

    async def sign(self, *, append: bool = False, expires_s: int = limits.SIGNED_URL_S) -> flows.SignedUrl:
        """Return a URL with which anyone can read this table until it expires, or with `append` append to it.

        The client's token must allow the same. This is an extension of Headwater.
        """
        return await self._client._run(flows.sign(self._session, self.url, append=append, expires_s=expires_s))

    async def append(
        self,
        changes: Iterable[Change],
        *,
        producer: ProducerTuple | None = None,
        close: bool = False,
        if_tail: int | None = None,
    ) -> AppendedRows:
        """Append changes in one atomic request: all of them are stored, or none.

        A change is `Put(key, record)`, `Remove(key)` or a tuple of action, key and record. With a `producer` the
        request is retried until there is a response, and its changes are stored once. Without one it is retried only if
        it certainly had no effect. `close` closes the table with these changes.

        With `if_tail`, the changes are appended only if that is the SeqNo of the table's last row (0: if it has no
        rows). Otherwise TailMovedError is raised, with the table's `last_seqno`.
        """
        table_type = await self._known_type()
        return await self._client._run(
            tables.append(self._session, self.url, table_type, changes, producer=producer, close=close, if_tail=if_tail)
        )

    async def append_all(
        self,
        changes: Iterable[Change],
        *,
        batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
        producer_id: str | None = None,
        epoch: int = 0,
    ) -> AppendedRows:
        """Append any number of changes, in as many requests as needed. Each change is stored exactly once.

        Each request is atomic, but not all of them together: a reader can see some changes before the others.
        """
        return await self._client._run(
            tables.append_all(
                self._session,
                self.url,
                await self._known_type(),
                changes,
                batch_bytes=batch_bytes,
                producer_id=producer_id,
                epoch=epoch,
            )
        )

    async def append_body(
        self, body: bytes, *, producer: ProducerTuple | None = None, if_tail: int | None = None
    ) -> AppendedRows:
        """Append changes that are encoded already: lines of action, key and record, separated by tabs.

        In a table with Escape.BACKSLASH their keys and records are escaped.
        """
        table_type = await self._known_type()
        return await self._client._run(
            tables.append_body(self._session, self.url, table_type, body, producer, if_tail=if_tail)
        )

    async def compose(
        self,
        sources: Iterable[SourceRange],
        *,
        producer: ProducerTuple | None = None,
        close: bool = False,
        if_tail: int | None = None,
    ) -> AppendedRows:
        """Append the changes in ranges of streams on the same server, in one atomic request.

        The changes do not come through the client. Sources are streams (not tables) of text/sequence or
        text/tab-separated-values, which hold lines of changes, or of application/zstd, which hold them compressed.
        Otherwise it is as `Stream.compose`.
        """
        body = composing.composition(self._session, sources)
        return await self._client._run(
            tables.compose(self._session, self.url, body, producer, close=close, if_tail=if_tail)
        )

    async def append_rows(self, rows: Iterable[Row], *, after: int, close: bool = False) -> AppendedRows:
        """Append rows to a mirror in one atomic request. They keep their SeqNos and timestamps.

        They must be all rows of the source with a SeqNo above `after`, up to the last of them. Rows that the mirror
        already has are skipped, so the call can be repeated. Raises MirrorMismatchError if rows differ from those of
        the mirror, or if the mirror lacks rows up to `after`. `close` closes the table with these rows.
        """
        table_type = await self._known_type()
        return await self._client._run(
            tables.append_rows(self._session, self.url, table_type, rows, after=after, close=close)
        )

    async def close(self, *, if_tail: int | None = None) -> AppendedRows:
        """Close the table: followers reach an end, and appends are refused. Closing it again has no effect."""
        return await self.append((), close=True, if_tail=if_tail)

    async def delete(self, *, if_tail: int | None = None) -> None:
        """Delete the table, its rows and its NURLs."""
        await self._client._run(tables.delete(self._session, self.url, if_tail=if_tail))

    def rows(self, *, since_id: int = 0, until_id: int | None = None, on_gone: OnGone = "raise") -> AsyncTableReader:
        """Read the current rows with a SeqNo above `since_id`, up to `until_id`.

        A negative `since_id` asks for that many of the last rows. `on_gone` is as in `follow`.
        """
        following = TableFollowing(since_id, until_id=until_id, snapshot=True, table=self.table_type)
        query = {"until_id": None if until_id is None else str(until_id), "timeout": AT_ONCE}
        reading = TableReading(self._session, self.url, following, query, on_gone=on_gone)
        return AsyncTableReader(self._client, reading)

    async def batches(
        self,
        *,
        since_id: int = 0,
        until_id: int | None = None,
        active: bool = False,
        columns: Sequence[str] | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over the current rows as Arrow record batches: those above `since_id`, up to `until_id`.

        The columns are `seqno`, `timestamp`, `action`, `key` and `record`; the default is all of them. With `active`
        they are the last rows of the keys that are not deleted, as of one moment. Needs pyarrow (extra `sql`).
        """
        made = arrow.row_columns(columns, (await self._known_type()).escape)
        if active:
            live = list((await self.active()).values())
            yield made.of_rows([row for row in live if since_id < row.seqno <= (until_id or row.seqno)])
            return
        async with self.rows(since_id=since_id, until_id=until_id) as reader:
            async for rows in reader.batches():
                if rows:
                    yield made.of_rows(rows)

    async def arrow(
        self,
        *,
        since_id: int = 0,
        until_id: int | None = None,
        active: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the same as one Arrow table."""
        arrow.require_pyarrow()
        import pyarrow as pa

        batches = self.batches(since_id=since_id, until_id=until_id, active=active, columns=columns)
        schema = arrow.row_columns(columns, (await self._known_type()).escape).schema
        return pa.Table.from_batches([batch async for batch in batches], schema)

    def follow(
        self,
        *,
        since_id: int = 0,
        last_row: Row | None = None,
        timeout_s: float | None = None,
        idle_s: float | None = None,
        on_gone: OnGone = "raise",
    ) -> AsyncTableReader:
        """Read the rows above `since_id` and every later row as it arrives, until the table is closed.

        Each row is delivered once and in order; lost connections are retried. If the server violates the protocol, the
        read raises MissingRowError, RowOrderError, HistoryChangedError or SchemaChangedError. A follower that continues
        after a restart passes its last row instead of `since_id`, to detect a table that was created again.

            for row in client.table("https://partner.example/prices").follow(since_id=43):
                print(row.key, row.record)

        If rows after the position were removed, the read raises OffsetTrimmedError, whose `first_seqno` is that of the
        first row that is there. With `on_gone="restart"` it begins again there instead, also if the history changed.
        `TableReader.restarted` and the log tell it; a function as `on_gone` is called with the error before that.

        `timeout_s` and `idle_s` override how long Headwater holds a request open.
        """
        following = TableFollowing(since_id, table=self.table_type, last_row=last_row)
        query = {
            "timeout": None if timeout_s is None else f"{timeout_s:f}",
            "idle": None if idle_s is None else f"{idle_s:f}",
        }
        return AsyncTableReader(
            self._client,
            TableReading(self._session, self.url, following, query, last_row=last_row, on_gone=on_gone),
        )

    async def mirror(self, source: AsyncTable | str) -> AsyncIterator[Mirrored]:
        """Mirror a table into this one until the source is closed. Yields the progress after each append.

        The rows keep their SeqNos and timestamps. The table is created if it does not exist, and closed when the source
        is closed. Its last row is the position: after a crash, the same call continues there without duplicates or
        gaps. Lost connections to both servers are retried. If the source removed rows before they were mirrored, the
        mirror deletes the keys that the source does not have any more, and continues (`Mirrored.repaired`).

        Raises the errors of `follow`, HistoryChangedError if the mirror cannot be repaired so, and ConfigurationError
        if this table exists and is not a mirror.

            async for progress in client.table("copy").mirror("https://partner.example/prices"):
                print(progress.last_seqno, progress.lag_rows)
        """
        known = await self._client._run(mirroring.find(self._session, self.url))
        mirror = Mirroring(self._session, self.url, known, [] if known is None else await self.rows(since_id=-1).all())
        source_table = self._client.table(source) if isinstance(source, str) else source
        table_type = known or source_table.table_type
        typed_source = AsyncTable(source_table._client, source_table.url, table_type, source_table._session)
        since_id, last_row = 0, mirror.last_row
        while True:
            try:
                async with typed_source.follow(since_id=since_id, last_row=last_row) as reader:
                    async for rows in reader.batches():
                        await self._client._run(mirror.write(reader.table_type or TableType(), rows))
                        yield Mirrored(len(rows), mirror.last_seqno, reader.last_seqno)
                    if reader.closed:
                        await self._client._run(mirror.write(reader.table_type or TableType(), [], close=True))
                    return
            except OffsetTrimmedError as error:
                if error.first_seqno is None or mirror.last_row is None:
                    raise
                since_id, last_row = error.first_seqno - 1, None
                yield await self._repair(mirror, typed_source, error.first_seqno)

    async def _repair(self, mirror: Mirroring, source: AsyncTable, first_seqno: int) -> Mirrored:
        """Give a mirror what it lacks of rows that the source has removed before `first_seqno`."""
        if mirror.last_row is None:
            raise RuntimeError("an empty mirror lacks nothing")
        live = await source.active()
        rows = changes_between(await self.active(), mirror.last_row, live.values(), first_seqno)
        await self._client._run(mirror.write(source.table_type or self.table_type or TableType(), rows))
        return Mirrored(len(rows), mirror.last_seqno, repaired=True)

    @property
    def nurl(self) -> str:
        """The table's own NURL, if its server is Headwater."""
        return notifying.nurl_of(self.url)

    async def advertise(self, nurl: str, *, event: str = notifying.ROWS) -> None:
        """Register a NURL: the server POSTs the SURL to it when the table gets rows. Repeating it has no effect."""
        await self._client._run(notifying.notify(self._session, self.nurl, None, {event: nurl}))

    async def withdraw(self, nurl: str) -> None:
        """Remove a NURL, if it is registered."""
        await self._client._run(notifying.withdraw(self._session, self.url, nurl))

    async def nurls(self) -> list[Nurl]:
        """Return the NURLs that are registered for the table."""
        return await self._client._run(notifying.advertised(self._session, self.url))

    async def active(self) -> dict[str, Row]:
        """Return the active view: the last row of each key that is not deleted, by key, all as of one moment.

        Headwater sends only these rows. From other servers the whole table is read.
        """
        read = table_reading.active(self._session, self.url, self.table_type)
        live, self.table_type = await self._client._run(read)
        return live

    async def get(self, key: str) -> Row | None:
        """Return the last row of a key; None if the key is deleted or never existed."""
        read = table_reading.active(self._session, self.url, self.table_type, key)
        live, self.table_type = await self._client._run(read)
        return live.get(key)

    def __repr__(self) -> str:
        return f"AsyncTable({self.url!r})"

    async def _known_type(self) -> TableType:
        """Return the type; ask the server if it is not known yet."""
        if self.table_type is None:
            await self.info()
        return self.table_type or TableType()
