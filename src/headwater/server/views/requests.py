"""The headers of a PUT that create a view."""

from __future__ import annotations

from headwater.errors import InvalidHeaderError
from headwater.log.commands import Create, Reply
from headwater.protocol.state.view_headers import parse_stream_view, parse_table_view
from headwater.protocol.streams import headers
from headwater.server.auth.scopes import Action
from headwater.server.http import Request
from headwater.server.references import stream_path, table_path
from headwater.server.service import Service
from headwater.server.views.definition import Definition


def table_view(request: Request, path: str) -> Definition | None:
    """The view that a PUT of a table asks for; None if it asks for a plain table."""
    asked = parse_table_view(request.headers)
    if asked is None:
        return None
    _check_plain(request)
    source = stream_path(asked.source, request.mount)
    request.caller.require(Action.READ, source)
    return Definition(path, source, asked.type)


def stream_view(request: Request, path: str) -> Definition | None:
    """The same for a stream."""
    asked = parse_stream_view(request.headers)
    if asked is None:
        return None
    _check_plain(request)
    source = table_path(asked.source, request.mount)
    request.caller.require(Action.READ, source)
    return Definition(path, source, asked.type, asked.record)


def _check_plain(request: Request) -> None:
    if request.body or headers.parse_closed(request.headers) or headers.FORKED_FROM in request.headers:
        raise InvalidHeaderError("a view has no body, is not closed and is no fork when it is created")


async def create(service: Service, command: Create, view: Definition | None) -> Reply:
    """Create what a PUT asks for, a view or not."""
    views = service.views
    if views is not None and (view is not None or views.holds(command.path)):
        return await views.create(command, view)
    if view is not None:
        raise InvalidHeaderError("this server has no views")
    return await service.engine.execute(command)
