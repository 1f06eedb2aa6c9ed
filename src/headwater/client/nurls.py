"""Notify: POST forms to NURLs, advertise and withdraw NURLs, and list those of a table."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import msgspec

from headwater.client import table_reading, tables
from headwater.client.effects import Flow, HttpRequest
from headwater.client.session import Session, exchange, with_query
from headwater.errors import StreamNotFoundError
from headwater.protocol.encodings import IDENTITY
from headwater.protocol.tables.notify import FORM_TYPE, Notification, format_notification
from headwater.protocol.tables.paths import NOTIFY, url_fault

ROWS = "rows"  # the event type of NURLs that are notified of new rows


class Nurl(msgspec.Struct, frozen=True):
    """A NURL that was advertised for a table: its event type, its URL, and since when it is called."""

    event: str
    url: str
    since: str


def nurl_of(surl: str) -> str:
    """The NURL of a table on a Headwater server."""
    parts = urlsplit(surl)
    return urlunsplit(parts._replace(path=f"{parts.path}/{NOTIFY}"))


def notify(session: Session, nurl: str, surl: str | None, nurls: Mapping[str, str]) -> Flow[None]:
    """POST a form. It can be retried, because a Notify is idempotent."""
    if not nurls and surl is None:
        raise ValueError("a Notify form names a SURL or a NURL, or both")
    if fault := url_fault(nurl):
        raise ValueError(f"not a NURL, {fault}: {nurl!r}")
    body = format_notification(Notification(surl, tuple(nurls.items())))
    headers = {"accept-encoding": IDENTITY, "content-type": FORM_TYPE}
    yield from exchange(session, HttpRequest("POST", nurl, headers, body, guarded=True))


def withdraw(session: Session, surl: str, nurl: str) -> Flow[None]:
    url = with_query(nurl_of(surl), nurl=nurl)
    yield from exchange(session, HttpRequest("DELETE", url, {"accept-encoding": IDENTITY}, guarded=True))


def advertised(session: Session, surl: str) -> Flow[list[Nurl]]:
    """The NURLs of a table, in the order in which they were registered."""
    try:
        live, _ = yield from table_reading.active(session, nurl_of(surl), None)
    except StreamNotFoundError:
        yield from tables.info(session, surl)  # or there is no such table
        return []
    return [Nurl(row.key.rpartition("/")[0], row.record, row.timestamp) for row in live.values()]
