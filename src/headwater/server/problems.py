"""From error to response: the one place where a status and a problem body are made (RFC 9457)."""

from __future__ import annotations

import msgspec

from headwater.errors import HeadwaterError, MethodNotAllowedError
from headwater.limits import RETRY_AFTER_S
from headwater.server.http import Headers, Response

_UNAVAILABLE = 503
_RETRY_AFTER: Headers = (("retry-after", str(RETRY_AFTER_S)),)
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
    headers: Headers = (
        ("content-type", "application/problem+json"),
        ("cache-control", "no-store"),
        *error.headers,
    )
    if error.status == _UNAVAILABLE and not any(name == "retry-after" for name, _ in error.headers):
        headers += _RETRY_AFTER
    return Response(error.status, headers, (body,), close=close)


def method_not_allowed(method: str, allowed: tuple[str, ...]) -> MethodNotAllowedError:
    return MethodNotAllowedError(
        f"{method[:16]} is not one of {', '.join(allowed)}", headers=(("allow", ", ".join(allowed)),)
    )
