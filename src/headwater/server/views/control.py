"""The list of views."""

from __future__ import annotations

from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import json_response
from headwater.server.views.definition import Definition


async def list_views(service: Service, request: Request, _: str) -> Response:
    """List the views that the caller may read, and whose sources it may read."""

    def is_shown(view: Definition) -> bool:
        return all(request.caller.may(Action.READ, path) for path in (view.target, view.source))

    return json_response({"views": [] if service.views is None else service.views.status(is_shown)})
