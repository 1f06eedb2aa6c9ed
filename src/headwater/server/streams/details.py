"""What a stream is, beside its bytes: origin, forks, producers, and what the caller may do. An extension."""

from __future__ import annotations

from headwater import limits
from headwater.engine.messages import StreamDetails
from headwater.log.events import Fork
from headwater.log.producers import ProducerState
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.paths import LOG_OWN_LAST
from headwater.server.auth.callers import Caller
from headwater.server.auth.scopes import ON_PATHS, Action
from headwater.server.http import Request, Response
from headwater.server.listing import readable_page
from headwater.server.service import Service
from headwater.server.streams.control import listed, named_stream
from headwater.server.streams.replies import json_response

_HASHED = "\n"  # before the digest that stands for a long producer id


async def details(service: Service, request: Request, _: str) -> Response:
    reply, caller = await service.engine.details(named_stream(request)), request.caller
    forked_from = _source(reply.stream.fork, caller)
    return json_response(
        {**listed(reply.stream), "forked_from": forked_from, "fork_count": reply.forks, **usage_of(reply, caller)}
    )


def usage_of(reply: StreamDetails, caller: Caller) -> dict[str, object]:
    """Who uses a stream or table, and what the caller may do with it."""
    stream = reply.stream
    return {
        "trimmed_bytes": stream.first,
        "live_readers": reply.readers,
        "actions": [action.value for action in ON_PATHS if caller.may(action, stream.path)],
        "producer_count": reply.producer_count,
        "producers": _producers(reply) if caller.may(Action.APPEND, stream.path) else None,
    }


async def forks(service: Service, request: Request, _: str) -> Response:
    """A page of the forks of a stream that the caller may read. Streams do not know their forks, so the list of streams
    is examined, a bounded part of it for each page."""
    path, after = named_stream(request), parse_query(request.query).get("after", "")
    stream = (await service.engine.details(path)).stream
    at: str | None = max(service.lists.read(after), LOG_OWN_LAST)
    known: list[dict[str, object]] = []
    examined, hidden = 0, False
    while at is not None and examined < limits.FORKS_EXAMINED_MAX:
        page = await readable_page(service.engine, service.lists, request.caller, "", at, limits.LIST_PAGE_MAX)
        below = [one for one in page.streams if one.fork is not None and one.fork.source_id == stream.id]
        known += [{**listed(one), "forked_from": _source(one.fork, request.caller)} for one in below]
        at, hidden = page.next_after, page.hidden
        examined += limits.LIST_PAGE_MAX
    next_after = None if at is None else service.lists.write(at, hidden=hidden)
    return json_response({"forks": known, "next_after": next_after})


def _source(fork: Fork | None, caller: Caller) -> dict[str, object] | None:
    """Where a stream was forked from. `path` is null if the caller may not read the source."""
    if fork is None:
        return None
    is_shown = caller.may(Action.READ, fork.source_path)
    return {
        "path": fork.source_path if is_shown else None,
        "offset": format_offset(fork.offset),
        "sub_offset": fork.sub_offset,
    }


def _producers(reply: StreamDetails) -> list[dict[str, object]]:
    return [_producer(key, state) for key, state in reply.producers]


def _producer(key: str, state: ProducerState) -> dict[str, object]:
    """A long id is kept as a digest only."""
    name = {"id": None, "digest": key[1:]} if key.startswith(_HASHED) else {"id": key}
    return {**name, "epoch": state.epoch, "seq": state.seq, "at": format_instant(state.at_ms)}
