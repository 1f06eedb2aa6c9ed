"""The lists of tables and of followers, and the details of a table."""

from __future__ import annotations

from headwater import limits
from headwater.engine.messages import VisibleStream
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.streams.paths import parse_path, quote_path
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.paths import check_name, log_path, name_of
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Response
from headwater.server.listing import readable_page
from headwater.server.references import parse_integer
from headwater.server.service import Service
from headwater.server.streams.details import usage_of
from headwater.server.streams.replies import json_response
from headwater.server.tables.replies import speaking_of, table_type


async def list_tables(service: Service, request: Request, _: str) -> Response:
    query = parse_query(request.query)
    limit = parse_integer(query, "limit", limits.LIST_PAGE_DEFAULT, limits.LIST_PAGE_MAX)
    prefix, after = log_path(query.get("prefix", "")), log_path(service.lists.read(query.get("after", "")))
    page = await readable_page(service.engine, service.lists, request.caller, prefix, after, limit)
    next_after = None
    if page.next_after is not None:
        next_after = service.lists.write(name_of(page.next_after), hidden=page.hidden)
    return json_response({"tables": [_listed(table) for table in page.streams], "next_after": next_after})


def _listed(table: VisibleStream) -> dict[str, object]:
    kind = table_type(table)
    return {
        "name": name_of(table.path),
        "content_type": table.content_type,
        "schema": kind.schema,
        "version": kind.version,
        "first_seqno": table.first_seqno,
        "last_seqno": table.last_seqno,
        "bytes": table.size(table.begin, table.tail),
        "closed": table.closed,
        "created_at": format_instant(table.created_ms),
        "ttl_seconds": table.ttl_s,
        "expires_at": None if table.deadline_ms is None else format_instant(table.deadline_ms),
        "retention": table.retention,
    }


def named_table(request: Request) -> str:
    """The table that the parameter `name` names."""
    return log_path(check_name(parse_path(quote_path(parse_query(request.query).get("name", "")))))


async def details(service: Service, request: Request, _: str) -> Response:
    """What a table is, beside its rows: who uses it, what is kept, and what the caller may do."""
    path = named_table(request)
    with speaking_of(path):
        reply = await service.engine.details(path)
    return json_response({**_listed(reply.stream), **usage_of(reply, request.caller)})


async def list_followers(service: Service, request: Request, _: str) -> Response:
    known = [] if service.followers is None else service.followers.status()
    statuses = [status for status in known if request.caller.may(Action.READ, log_path(status.name))]
    return json_response({"followers": statuses})
