"""Reading and following a table: runs `protocol.tables.following` over HTTP requests, with retries."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from headwater.client.effects import Batch, CloseReply, Emit, Flow, HttpRequest, Receive, Sleep
from headwater.client.restarting import OnGone, check_on_gone, tell
from headwater.client.session import LOOPBACK, Session, opened, pause, with_query
from headwater.errors import HeadwaterError, HistoryChangedError, InvalidRowError, NetworkError, OffsetGoneError
from headwater.positions import Position
from headwater.protocol.encodings import GZIP, IDENTITY
from headwater.protocol.tables.content_type import MEDIA_TYPE, TableType, format_table_type
from headwater.protocol.tables.escaping import Escape, unescape
from headwater.protocol.tables.following import TableFollowing, is_final
from headwater.protocol.tables.rows import ADD, Row, escaped

AT_ONCE = "0"  # the `timeout` of a read that is not held open


class TableReading:
    """One read of one table: sends the requests of a Following and delivers the rows that it accepts.

    `query` is sent with every request. With `attempts` the read fails after that many attempts, otherwise the client's
    retry settings apply. `last_row` is the last delivered row, at which the Following starts.

    If rows after the position were removed, or the table was created again, `on_gone` says whether to begin again.

    After an error, another `flow` continues after the last delivered row, unless the error is final: then it raises it
    again (`failure`).
    """

    def __init__(
        self,
        session: Session,
        url: str,
        following: TableFollowing,
        query: Mapping[str, str | None],
        *,
        attempts: int | None = None,
        last_row: Row | None = None,
        on_gone: OnGone = "raise",
    ) -> None:
        self._on_gone = check_on_gone(on_gone)
        self._session = session
        self._url = url
        self.following = following
        self._query = query
        self._last_row = last_row
        self._attempts = attempts or session.retry.attempts
        self._accept = MEDIA_TYPE if following.table is None else format_table_type(following.table)
        self._encoding = IDENTITY if urlsplit(url).hostname in LOOPBACK else GZIP
        self._was_up_to_date = False
        self.failure: HeadwaterError | None = None

    def flow(self) -> Flow[None]:
        session, following = self._session, self.following
        if self.failure is not None:
            raise self.failure
        following.resume()
        self._was_up_to_date = False
        while not following.ended:
            started = session.clock()
            try:
                yield from self._answer()
                wait_s = following.finish(session.clock() - started)
            except HeadwaterError as error:
                yield CloseReply()
                self._was_up_to_date = False
                error.url = error.url or self._url
                if not following.has_lost_nothing(error):
                    yield from self._fail(error)
                continue
            yield CloseReply()
            if wait_s and not following.ended:
                yield Sleep(wait_s)

    def _fail(self, error: HeadwaterError) -> Flow[None]:
        """Wait before the next attempt, or begin again; raise the error if neither helps."""
        if self.failure is not None:  # a row that was taken cannot be delivered
            raise self.failure
        try:
            failures = self.following.failed(error, self._attempts)
        except HeadwaterError:
            if not self._may_restart(error):
                self.failure = error if is_final(error) else None
                raise
            yield from tell(self._on_gone, self._url, error)
            self.following.restart()
            self._last_row = None
            yield Emit(Batch([], Position("0"), restarted=True))
        else:
            yield from pause(self._session, error, failures)

    def _may_restart(self, error: HeadwaterError) -> bool:
        """Whether rows after the position are gone, and the read may begin again. At the beginning nothing is gone."""
        is_gone = isinstance(error, OffsetGoneError | HistoryChangedError)
        return self._on_gone != "raise" and is_gone and bool(self.following.position)

    def _answer(self) -> Flow[None]:
        following = self.following
        reply = yield from opened(self._session, self._request(), 200)
        following.begin(reply.headers)
        if self._last_row is not None and following.table is not None:
            following.remember(escaped(self._last_row, following.table.escape))
        if following.up_to_date and not self._was_up_to_date:
            yield from self._emit([])
        while not following.is_done():
            try:
                chunk: bytes = yield Receive()
            except NetworkError as error:
                if error.how != "timeout" or following.awaits_rows:
                    raise
                chunk = b""  # on a table without appends, silence is not a failure
            if rows := following.feed(chunk) if chunk else following.end():
                yield from self._emit(rows)
            if not chunk:
                return

    def _emit(self, rows: list[Row]) -> Flow[None]:
        following = self.following
        self._was_up_to_date = following.up_to_date
        position = following.position or 0
        if self._is_escaped():
            position, rows = self._unescaped(position, rows)
        if rows or self.failure is None:
            yield Emit(Batch(rows, Position(str(position)), following.up_to_date, following.closed))
        if self.failure is not None:
            raise self.failure

    def _unescaped(self, position: int, escaped_rows: list[Row]) -> tuple[int, list[Row]]:
        """The rows before the first one that is not escaped correctly, and the position after them.

        The Following has already taken such a row, so the error is final.
        """
        rows: list[Row] = []
        for row in escaped_rows:
            try:
                key, record = unescape(row.key), unescape(row.record)
            except ValueError as error:
                self.failure = InvalidRowError(f"row {row.seqno}: {error}")
                return rows[-1].seqno if rows else row.seqno - 1, rows
            rows.append(msgspec.structs.replace(row, key=key, record=record))
        return position, rows

    def _is_escaped(self) -> bool:
        table = self.following.table
        return table is not None and table.escape is Escape.BACKSLASH

    def _request(self) -> HttpRequest:
        return HttpRequest(
            "GET",
            with_query(self._url, since_id=str(self.following.since_id), **self._query),
            {"accept": self._accept, "accept-encoding": self._encoding},
            read_timeout_s=self._session.timeouts.long_poll_s,
            guarded=True,
        )


def active(
    session: Session, url: str, table: TableType | None, key: str | None = None
) -> Flow[tuple[dict[str, Row], TableType | None]]:
    """Read the active view of a table, or the live row of one key, as of one moment, and the type of the table.

    A server without active views sends every row, and the view is computed from them. After a failure the whole view
    is requested again, because parts of two views from different moments do not fit together.
    """
    query = {"view": "active", "key": key, "timeout": AT_ONCE}
    attempts = 0
    while True:
        live: dict[str, Row] = {}
        following = TableFollowing(snapshot=True, gaps=True, table=table)
        try:
            yield from _fold(TableReading(session, url, following, query, attempts=1).flow(), live)
        except HeadwaterError as error:
            attempts += 1
            error.attempts = attempts
            if not error.retryable or attempts >= session.retry.attempts:
                raise
            yield from pause(session, error, attempts)
        else:
            return live, following.table


def _fold(flow: Flow[None], live: dict[str, Row]) -> Flow[None]:
    """Run a read and apply its rows instead of delivering them."""
    try:
        effect = next(flow)
        while True:
            if isinstance(effect, Emit):
                _apply(effect.batch.items, live)
                effect = flow.send(None)
                continue
            try:
                outcome = yield effect
            except HeadwaterError as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(outcome)
    except StopIteration:
        return


def _apply(rows: list[Row], live: dict[str, Row]) -> None:
    for row in rows:
        live.pop(row.key, None)  # so that keys stay in the order of their rows
        if row.action == ADD:
            live[row.key] = row
