"""The list of followers."""

from __future__ import annotations

from headwater.server.http import Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import json_response


async def list_followers(service: Service, request: Request, _: str) -> Response:
    return json_response({"followers": [] if service.followers is None else service.followers.status()})
