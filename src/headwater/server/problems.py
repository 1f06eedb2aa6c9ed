"""From error to response: the one place where a status and a problem body are made (RFC 9457)."""

from __future__ import annotations

import msgspec

from headwater.errors import HeadwaterError, MethodNotAllowedError
from headwater.server.http import Response

_encoder = msgspec.json.Encoder()


def problem(error: HeadwaterError, *, close: bool = False) -> Response:
    body = _encoder.encode(
        {
            "type": f"urn:headwater:{error.code}",
            "title": error.title,
            "status": error.status,
            "detail": error.detail or error.title,
            "retryable": error.retryable,
        }
    )
    headers = (
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
        *error.headers,
    )
    return Response(error.status, headers, (body,), close=close)


def method_not_allowed(method: str, allowed: tuple[str, ...]) -> MethodNotAllowedError:
    return MethodNotAllowedError(
        f"{method[:16]} is not one of {', '.join(allowed)}", headers=(("allow", ", ".join(allowed)),)
    )
