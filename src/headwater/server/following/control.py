"""The list of followers."""

from __future__ import annotations

from headwater.protocol.tables.paths import log_path
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import json_response


async def list_followers(service: Service, request: Request, _: str) -> Response:
    known = [] if service.followers is None else service.followers.status()
    found = [status for status in known if request.caller.may(Action.READ, log_path(status.name))]
    return json_response({"followers": found})
