"""What a caller may learn about its own credential: its name, its scopes and when it expires."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headwater.protocol.streams.headers import format_instant
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Response
from headwater.server.streams.replies import json_response

if TYPE_CHECKING:
    from headwater.server.service import Service


async def show_caller(service: Service, request: Request, _: str) -> Response:
    """`scopes` null: access is not checked."""
    caller = request.caller
    expires_at = None if math.isinf(caller.until_s) else format_instant(round(caller.until_s * 1000))
    return json_response(
        {
            "name": caller.name or None,
            "scopes": None if caller.scopes is None else caller.scopes.texts,
            "administers": caller.may_administer,
            "sees_settings": caller.may_on_server(Action.SETTINGS),
            "expires_at": expires_at,
        }
    )
