"""Requests for views: the headers of a PUT that create one, and the list."""

from __future__ import annotations

from headwater.errors import InvalidHeaderError
from headwater.log.commands import Create, Reply
from headwater.protocol.state.view_headers import parse_stream_view, parse_table_view
from headwater.protocol.streams import headers
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Response
from headwater.server.references import stream_path, table_path
from headwater.server.service import Service
from headwater.server.streams.replies import json_response
from headwater.server.views.definition import Definition


def table_view(request: Request, path: str) -> Definition | None:
    """The view that a PUT of a table asks for; None if it asks for a plain table."""
    view = parse_table_view(request.headers)
    if view is None:
        return None
    _check_plain(request)
    source = stream_path(view.source, request.mount)
    request.caller.require(Action.READ, source)
    return Definition(path, source, view.type)


def stream_view(request: Request, path: str) -> Definition | None:
    """The same for a stream."""
    view = parse_stream_view(request.headers)
    if view is None:
        return None
    _check_plain(request)
    source = table_path(view.source, request.mount)
    request.caller.require(Action.READ, source)
    return Definition(path, source, view.type, view.record)


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


async def list_views(service: Service, request: Request, _: str) -> Response:
    """List the views that the caller may read, and whose sources it may read."""

    def is_shown(view: Definition) -> bool:
        return all(request.caller.may(Action.READ, path) for path in (view.target, view.source))

    if service.views is not None:
        await service.views.forget_gone()
    return json_response({"views": [] if service.views is None else service.views.status(is_shown)})
