"""What is kept of a stream or table, in requests and responses."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from headwater import limits
from headwater.client.effects import Flow, HttpReply, HttpRequest
from headwater.client.session import Session, exchange
from headwater.errors import InvalidHeaderError, MethodNotAllowedError, ProtocolError, UnknownRouteError
from headwater.log.json_framing import UNREADABLE, reason_of
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


class CompactionReport(msgspec.Struct, frozen=True):
    """What a compaction has done. Nothing was replaced if the snapshot was not smaller, which `reason` says."""

    compacted: bool
    before_bytes: int  # that a new reader got of what was replaced
    after_bytes: int  # the same with the snapshot
    reason: str = ""
    first_offset: str | None = None  # of a stream: where it begins now
    first_seqno: int | None = None  # of a table


def compact(session: Session, url: str, *, guarded: bool = False) -> Flow[CompactionReport]:
    """Send a request to compact a stream or table, which may take long."""
    request = HttpRequest("POST", url, read_timeout_s=limits.COMPACTION_ANSWER_TIMEOUT_S, guarded=guarded)
    reply = yield from known(session, request)
    try:
        return msgspec.json.decode(reply.body, type=CompactionReport)
    except UNREADABLE as error:
        raise ProtocolError(f"the answer to a compaction is unreadable: {reason_of(error)}") from None


def known(session: Session, request: HttpRequest) -> Flow[HttpReply]:
    """Send a request that only Headwater knows. It can be repeated."""
    try:
        return (yield from exchange(session, request))
    except (UnknownRouteError, MethodNotAllowedError) as error:
        raise ProtocolError(f"this server has no retention: {error}") from None
