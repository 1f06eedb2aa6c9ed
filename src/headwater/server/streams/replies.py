"""Response headers that several handlers of streams share."""

from __future__ import annotations

import msgspec

from headwater.engine.messages import VisibleStream
from headwater.protocol.streams import headers
from headwater.protocol.streams.offsets import format_offset
from headwater.server.http import Response

CLOSED = (headers.CLOSED, "true")
UP_TO_DATE = (headers.UP_TO_DATE, "true")
NO_STORE = ("cache-control", "no-store")
NO_CACHE = ("cache-control", "no-cache")
VARY = ("vary", "accept-encoding")
UNBUFFERED = ("x-accel-buffering", "no")  # otherwise nginx and other proxies would buffer live responses
# A stream may contain an HTML page. A browser must not run its scripts or load its resources.
SANDBOX = ("content-security-policy", "sandbox; default-src 'none'")


def offset_text(stream: VisibleStream, position: int) -> str:
    return format_offset(stream.offset(position))


def json_response(found: object) -> Response:
    return Response(200, (("content-type", "application/json"), NO_STORE), (msgspec.json.encode(found),))
