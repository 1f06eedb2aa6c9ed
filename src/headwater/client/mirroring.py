"""Writing a mirror: the rows of a table, appended to another one with their SeqNos and timestamps.

The position is the last row of the mirror. Each request starts with that row, so that a source that was deleted and
created again is detected even if it already has more rows.
"""

from __future__ import annotations

import sys

import msgspec

from headwater.client import tables
from headwater.client.effects import Flow
from headwater.client.session import Session
from headwater.errors import ConfigurationError, StreamNotFoundError
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.rows import Row


class Mirrored(msgspec.Struct, frozen=True):
    """Progress of a mirror: the number of new `rows`, all of them stored.

    `last_seqno` is the SeqNo of the mirror's last row. `source_last_seqno` is that of the source, from its last
    response; None if its server does not send it. `repaired`: the source removed rows before they were mirrored, and
    the mirror got what it lacks of the live rows, and deletions of keys that the source does not have any more.
    """

    rows: int
    last_seqno: int
    source_last_seqno: int | None = None
    repaired: bool = False

    @property
    def lag_rows(self) -> int | None:
        """The difference between the two last SeqNos."""
        return None if self.source_last_seqno is None else max(0, self.source_last_seqno - self.last_seqno)


def find(session: Session, url: str) -> Flow[TableType | None]:
    """The type of a mirror; None if there is no table yet."""
    try:
        info, table = yield from tables.info(session, url)
    except StreamNotFoundError:
        return None
    if not info.mirror:
        raise ConfigurationError(f"table {info.name!r} exists and is not a mirror")
    return table


class Mirroring:
    """Writes the mirror. It retries without limit, because the server has responded before."""

    def __init__(self, session: Session, url: str, table: TableType | None, last: list[Row]) -> None:
        self._session = session
        self._url = url
        self._table = table
        self._last = last  # the last row of the mirror, if it has one

    @property
    def last_row(self) -> Row | None:
        return self._last[0] if self._last else None

    @property
    def last_seqno(self) -> int:
        return self._last[0].seqno if self._last else 0

    def write(self, table: TableType, rows: list[Row], *, close: bool = False) -> Flow[None]:
        """Append rows; create the mirror if it does not exist."""
        if self._table is None:
            yield from tables.create(self._session, self._url, table, mirror=True, attempts_max=sys.maxsize)
            self._table = table
        if rows or close:
            after = max(0, self.last_seqno - 1)
            yield from tables.append_rows(
                self._session,
                self._url,
                table,
                [*self._last, *rows],
                after=after,
                close=close,
                attempts_max=sys.maxsize,
            )
            self._last = rows[-1:] or self._last
