"""The route table: which handler answers which method at which path.

A template is a path, or a prefix and `{path}`: the rest of the path, which names a stream. The first template that
fits decides. `OPTIONS` is answered for every route alike. What does not concern streams, as `/` or a health check, is a
path of its own outside the stream root.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from headwater import __version__
from headwater.errors import InvalidPathError, UnknownRouteError
from headwater.limits import CACHED_TEXT_LENGTH_MAX, PATHS_CACHED_MAX
from headwater.protocol.streams.paths import RESERVED, STREAM_ROOT, parse_path
from headwater.server.http import Request, Respond, Response
from headwater.server.service import Service
from headwater.server.streams import control, reads, writes
from headwater.server.streams.replies import json_response

Write: TypeAlias = Callable[[Service, Request, str, Respond], None]
Read: TypeAlias = Callable[[Service, Request, str], Awaitable[Response]]

CONTROL_ROOT = f"{STREAM_ROOT}{RESERVED}/"


class Route(NamedTuple):
    """A handler that writes answers through a callback, without a task: it is the path that must be short. One that
    reads is a coroutine, since it may wait."""

    method: str
    template: str
    write: Write | None = None
    read: Read | None = None


async def index(service: Service, request: Request, _: str) -> Response:
    """What this is and where to go, for whoever opens the address of the server."""
    return json_response(
        {
            "name": "headwater",
            "version": __version__,
            "description": "Durable Streams over HTTP",
            "routes": [f"{route.method} {request.mount}{route.template}" for route in ROUTES],
        }
    )


ROUTES = (
    Route("GET", "/", read=index),
    Route("GET", f"{CONTROL_ROOT}streams", read=control.list_streams),
    Route("GET", f"{CONTROL_ROOT}splits", read=control.splits),
    Route("GET", f"{CONTROL_ROOT}records", read=control.records),
    Route("PUT", f"{STREAM_ROOT}{{path}}", write=writes.create),
    Route("POST", f"{STREAM_ROOT}{{path}}", write=writes.append),
    Route("GET", f"{STREAM_ROOT}{{path}}", read=reads.read),
    Route("HEAD", f"{STREAM_ROOT}{{path}}", read=reads.head),
    Route("DELETE", f"{STREAM_ROOT}{{path}}", write=writes.delete),
)

_FIXED: dict[str, dict[str, Route]] = {}
_STREAM: dict[str, Route] = {}
for _route in ROUTES:
    if _route.template.endswith("{path}"):
        _STREAM[_route.method] = _route
    else:
        _FIXED.setdefault(_route.template, {})[_route.method] = _route


Resolved: TypeAlias = tuple[dict[str, Route], str]


def _resolve(path: str) -> Resolved:
    """The routes of a path by method, and the stream path that it names."""
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed, ""
    if not path.startswith(STREAM_ROOT):
        raise UnknownRouteError(f"streams are below {STREAM_ROOT}; GET / lists the routes")
    name = path[len(STREAM_ROOT) :]
    if name == RESERVED or name.startswith(f"{RESERVED}/"):
        known = [template for template in _FIXED if template.startswith(CONTROL_ROOT)]
        raise UnknownRouteError(f"no such control API; there is {', '.join(known)}")
    parsed = parse_path(name)
    if parsed == RESERVED or parsed.startswith(f"{RESERVED}/"):
        raise InvalidPathError(f"paths below {RESERVED} are reserved")
    return _STREAM, parsed


class _Known(dict[str, Resolved]):
    """Paths that were resolved before. Clients choose them, so their number and their length are bounded."""

    def __missing__(self, path: str) -> Resolved:
        found = _resolve(path)
        if len(path) <= CACHED_TEXT_LENGTH_MAX:
            if len(self) >= PATHS_CACHED_MAX:
                del self[next(iter(self))]  # the oldest
            self[path] = found
        return found


resolve: Callable[[str], Resolved] = _Known().__getitem__  # as `_resolve`; no Python code runs for a known path
