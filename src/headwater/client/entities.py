"""Entities of a stream of state events, which the server has folded: flows of requests for one or a page of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from headwater.client.effects import Flow, HttpReply, HttpRequest
from headwater.client.flows import head, own_path, record_moment
from headwater.client.session import Session, exchange, with_query
from headwater.errors import MethodNotAllowedError, ProtocolError, StreamNotFoundError, UnknownRouteError
from headwater.log.json_framing import UNREADABLE
from headwater.protocol.streams.paths import RESERVED

T = TypeVar("T")


class StreamEntity(msgspec.Struct, frozen=True):
    """An entity of a stream of state events, in the state that the stream has at `offset`.

    `text` is the JSON of its value as it was written.
    """

    type: str
    key: str
    text: bytes
    offset: str

    @property
    def value(self) -> Any:
        """The value as plain objects."""
        return msgspec.json.decode(self.text)

    def decode(self, kind: Callable[..., T]) -> T:
        """The value as an object of a type, such as a Struct."""
        value: T = msgspec.json.decode(self.text, type=kind)
        return value


class _Entity(msgspec.Struct):
    type: str
    key: str
    value: msgspec.Raw
    offset: str

    def public(self) -> StreamEntity:
        return StreamEntity(self.type, self.key, bytes(self.value), self.offset)


class _Page(msgspec.Struct):
    entities: list[_Entity]
    next: str | None


class EntityPages:
    """A walk over the pages of a state, or of the entities of one type."""

    def __init__(self, session: Session, url: str, entity_type: str | None, at: str | datetime | None, page: int):
        self._session = session
        self._url = url
        self._query = {"type": entity_type, "at": _moment(at), "limit": str(page)}
        self._after: str | None = None
        self.is_over = False

    def read(self) -> Flow[list[StreamEntity]]:
        """The next page, which may be empty."""
        reply = yield from _get(self._session, self._url, after=self._after, **self._query)
        page = _decoded(reply, _Page)
        self._after, self.is_over = page.next, page.next is None
        return [entity.public() for entity in page.entities]


def entity(session: Session, url: str, entity_type: str, key: str, at: str | datetime | None) -> Flow[StreamEntity]:
    reply = yield from _get(session, url, type=entity_type, key=key, at=_moment(at))
    return _decoded(reply, _Entity).public()


def _moment(at: str | datetime | None) -> str | None:
    return record_moment(at) if isinstance(at, datetime) else at


def _get(session: Session, url: str, **query: str | None) -> Flow[HttpReply]:
    state_url = with_query(f"{session.root}{RESERVED}/state", path=own_path(session, url), **query)
    try:
        return (yield from exchange(session, HttpRequest("GET", state_url)))
    except StreamNotFoundError as error:
        yield from head(session, url)  # raises if the stream itself does not exist
        reason: Exception = error
    except (UnknownRouteError, MethodNotAllowedError) as error:
        reason = error
    raise _unsupported(reason)


def _decoded(reply: HttpReply, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.body, type=kind)
    except UNREADABLE as error:
        raise _unsupported(error) from None


def _unsupported(reason: Exception) -> ProtocolError:
    return ProtocolError(f"this server does not fold streams of state events; use a StreamDB: {reason}")
