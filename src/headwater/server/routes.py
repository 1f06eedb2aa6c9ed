"""The route table: which handler answers which method at which path."""

from __future__ import annotations

from headwater.errors import InvalidHeaderError, InvalidPathError, UnknownRouteError
from headwater.protocol.streams.paths import RESERVED, parse_path
from headwater.server.http import Request

STREAM_ROOT = "/v1/stream/"

# Resource → method → the name of the handler; `OPTIONS` is answered for every resource alike.
ROUTES: dict[str, dict[str, str]] = {
    "stream": {"PUT": "create", "POST": "append", "GET": "read", "HEAD": "head", "DELETE": "delete"},
    "streams": {"GET": "list_streams"},
    "splits": {"GET": "splits"},
}

CONTROL: dict[str, str] = {"streams": "streams", "splits": "splits"}


def resolve(request: Request) -> tuple[str, str]:
    """The resource of a request and, for a stream, its path."""
    path = request.path
    if not path.startswith(STREAM_ROOT):
        raise UnknownRouteError(f"streams are below {STREAM_ROOT}")
    name = path[len(STREAM_ROOT) :]
    if name == RESERVED or name.startswith(f"{RESERVED}/"):
        resource = CONTROL.get(name[len(RESERVED) + 1 :])
        if resource is None:
            raise UnknownRouteError(f"no such control API; there is {', '.join(CONTROL)}")
        return resource, ""
    parsed = parse_path(name)
    if parsed == RESERVED or parsed.startswith(f"{RESERVED}/"):
        raise InvalidPathError(f"paths below {RESERVED} are reserved")
    return "stream", parsed


def stream_path(reference: str, mount: str) -> str:
    """The stream path that a URL path in a header names."""
    name = reference.removeprefix(mount)
    if not name.startswith(STREAM_ROOT):
        raise InvalidHeaderError(f"expected the URL path of a stream, {mount}{STREAM_ROOT}…, got {reference[:80]!r}")
    return parse_path(name[len(STREAM_ROOT) :])
