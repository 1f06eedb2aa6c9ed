"""What is kept of a stream or table, in requests and responses."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from headwater.client.effects import Flow, HttpReply, HttpRequest
from headwater.client.session import Session, exchange
from headwater.errors import InvalidHeaderError, MethodNotAllowedError, ProtocolError, UnknownRouteError
from headwater.log.retention import KEEP_ALL, Retention
from headwater.protocol.streams import headers
from headwater.protocol.streams.retention import header_of, parse_retention, retention_headers

NumberChange: TypeAlias = int | UnsetType | None
FlagChange: TypeAlias = bool | UnsetType


class RetentionChange(msgspec.Struct, frozen=True):
    """Fields of a `Retention` that are to be changed. Those that are not set stay; None removes a limit."""

    seconds: NumberChange = UNSET
    bytes: NumberChange = UNSET
    messages: NumberChange = UNSET
    compact: FlagChange = UNSET
    compact_after_s: NumberChange = UNSET

    def headers(self) -> dict[str, str]:
        named = {name: getattr(self, name) for name in self.__struct_fields__}
        return {header_of(name): _text(value) for name, value in named.items() if value is not UNSET}


def _text(value: int | bool | None) -> str:
    if value is None:
        return ""
    return str(value).lower()


def creation_headers(retention: Retention | None) -> dict[str, str]:
    """The headers of a PUT. None: none, so that the server decides. A retention without limits asks for everything."""
    if retention is None:
        return {}
    return dict(retention_headers(retention)) or {headers.RETAIN_SECONDS: ""}


def retention_of(request: HttpRequest, reply: HttpReply) -> Retention | None:
    """The retention that a response names; None if everything is kept."""
    try:
        retention = parse_retention(reply.headers)
    except InvalidHeaderError as invalid:
        error = ProtocolError(invalid.detail)
        error.url = request.url
        raise error from None
    return None if retention == KEEP_ALL else retention


def retain(session: Session, url: str, change: RetentionChange, *, guarded: bool = False) -> Flow[Retention | None]:
    """Change what is kept, and return what is kept from now on."""
    changed = change.headers()
    if not changed:
        raise ValueError("nothing to change; name at least one field of the retention")
    request = HttpRequest("PATCH", url, changed, guarded=guarded)
    reply = yield from known(session, request)
    return retention_of(request, reply)


def known(session: Session, request: HttpRequest) -> Flow[HttpReply]:
    """Send a request that only Headwater knows. It can be repeated."""
    try:
        return (yield from exchange(session, request))
    except (UnknownRouteError, MethodNotAllowedError) as error:
        raise ProtocolError(f"this server has no retention: {error}") from None
