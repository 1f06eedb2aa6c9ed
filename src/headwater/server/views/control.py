"""The list of views."""

from __future__ import annotations

from headwater.server.http import Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import json_response


async def list_views(service: Service, request: Request, _: str) -> Response:
    return json_response({"views": [] if service.views is None else service.views.status()})
