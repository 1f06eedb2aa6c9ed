"""The route table: the handler of each method and path.

A template is a path, or a prefix and `{path}`, the path of a stream or table; below a table, without the last segment.
In templates of subscriptions `{id}` is one segment. The first template that matches is used. Every route supports
`OPTIONS`. Routes for neither streams nor tables, such as `/` and health checks, are outside both roots.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

import msgspec

from headwater import __version__
from headwater.errors import InvalidPathError, UnknownRouteError
from headwater.limits import (
    CACHED_TEXT_LENGTH_MAX,
    COMBINED_FORM_BYTES_MAX,
    PATHS_CACHED_MAX,
    ROUTES_MAX,
    SUBSCRIPTION_BODY_BYTES_MAX,
)
from headwater.protocol.streams.paths import LIVE_PATH, RESERVED, STATE_PATH, STREAM_ROOT, parse_path
from headwater.protocol.subscriptions.config import parse_id
from headwater.protocol.tables import paths as tables
from headwater.server import console, retention
from headwater.server.auth import sign
from headwater.server.auth.route_rules import (
    ADMIN,
    APPEND,
    CLAIM,
    COMBINED,
    CREATE,
    DELETE,
    LISTED,
    METRICS,
    NOTIFY,
    OPEN,
    READ,
    RETAIN,
    SERVER,
    SETTINGS,
    SUBSCRIBE,
    WAKE,
    Rule,
    administer_named,
    read_named,
    retain_named,
)
from headwater.server.auth.showing import show_caller
from headwater.server.compacting import requests as compacting
from headwater.server.http import NO_ROUTE, Request, Respond, Response
from headwater.server.observing import probes
from headwater.server.observing.top import top
from headwater.server.observing.usage import usage
from headwater.server.service import Service
from headwater.server.states.requests import read_state
from headwater.server.streams import combined, control, details, reads, writes
from headwater.server.streams.replies import json_response
from headwater.server.subscriptions import control as subscriptions
from headwater.server.tables import control as table_control
from headwater.server.tables import nurls
from headwater.server.tables import reads as table_reads
from headwater.server.tables import writes as table_writes
from headwater.server.tables.control import list_followers
from headwater.server.views.requests import list_views

Write: TypeAlias = Callable[[Service, Request, str, Respond], None]
Read: TypeAlias = Callable[[Service, Request, str], Awaitable[Response]]
Check: TypeAlias = Callable[[Service, Request, str], None]

CONTROL_ROOT = f"{STREAM_ROOT}{RESERVED}/"
SUBSCRIPTION_ROOT = f"{CONTROL_ROOT}subscriptions/"
SUBSCRIPTION = f"{SUBSCRIPTION_ROOT}{{id}}"
TABLE_ROOT = tables.TABLE_ROOT
TABLE_CONTROL_ROOT = f"{TABLE_ROOT}{tables.RESERVED}/"
NURL_TEMPLATE = f"{TABLE_ROOT}{{path}}/{tables.NOTIFY}"
TABLE_TRIM = f"{TABLE_ROOT}{{path}}/{tables.TRIM}"
TABLE_COMPACT = f"{TABLE_ROOT}{{path}}/{tables.COMPACT}"


class Route(NamedTuple):
    """A route. A handler of writes responds through a callback, without a task, because appends must be fast. A handler
    of reads is a coroutine because it may wait."""

    method: str
    template: str
    action: Rule  # the access rule
    write: Write | None = None
    read: Read | None = None
    check: Check | None = None  # of the head, before the body is read, beside the access rule
    body_bytes_max: int = 0  # of its requests, if that is less than the limit of the server
    # Only the server with the role answers it, if several share a store. Its responses are complete: none stays open.
    by_role: bool = False
    number: int = NO_ROUTE  # its index in the table


async def index(service: Service, request: Request, _: str) -> Response:
    """A short description with links, for people who open the server's URL."""
    return json_response(
        {
            "name": "headwater",
            "version": __version__,
            "description": "Durable Streams and STP tables over HTTP",
            "console": f"{request.mount}{console.PAGE}" if service.console else None,
            "token": console.needed_token(service),
            "routes": [f"{route.method} {request.mount}{route.template}" for route in ROUTES],
        }
    )


async def settings(service: Service, request: Request, _: str) -> Response:
    """The settings with which the server was started."""
    return json_response(service.settings)


def _subscription(action: str, rule: Rule, write: Write, check: Check | None = None) -> Route:
    """The route of a POST to a subscription."""
    template = f"{SUBSCRIPTION}/{action}"
    return Route(
        "POST", template, rule, write=write, check=check, body_bytes_max=SUBSCRIPTION_BODY_BYTES_MAX, by_role=True
    )


_ROUTES = (
    Route("GET", "/", OPEN, read=index),
    Route("GET", "/healthz", OPEN, read=probes.healthz),
    Route("HEAD", "/healthz", OPEN, read=probes.healthz),
    Route("GET", "/readyz", OPEN, read=probes.readyz),
    Route("HEAD", "/readyz", OPEN, read=probes.readyz),
    Route("GET", "/metrics", METRICS, read=probes.metrics),
    Route("GET", console.PAGE, OPEN, read=console.page),
    Route("HEAD", console.PAGE, OPEN, read=console.page),
    Route("GET", f"{console.FILES}{{path}}", OPEN, read=console.file),
    Route("HEAD", f"{console.FILES}{{path}}", OPEN, read=console.file),
    Route("GET", f"{CONTROL_ROOT}streams", LISTED, read=control.list_streams),
    Route("GET", f"{CONTROL_ROOT}splits", read_named(control.named_stream), read=control.splits),
    Route("GET", f"{CONTROL_ROOT}records", read_named(control.named_stream), read=control.records),
    Route("GET", STATE_PATH, read_named(control.named_stream), read=read_state),
    Route("HEAD", STATE_PATH, read_named(control.named_stream), read=read_state),
    Route("GET", f"{CONTROL_ROOT}details", read_named(control.named_stream), read=details.details),
    Route("GET", f"{CONTROL_ROOT}forks", read_named(control.named_stream), read=details.forks),
    Route("GET", f"{CONTROL_ROOT}caller", LISTED, read=show_caller),
    Route("GET", LIVE_PATH, COMBINED, read=combined.follow),
    Route("POST", LIVE_PATH, COMBINED, read=combined.follow, body_bytes_max=COMBINED_FORM_BYTES_MAX),
    Route("POST", f"{CONTROL_ROOT}trim", retain_named(control.named_stream), write=retention.trim_stream),
    Route(
        "POST",
        f"{CONTROL_ROOT}compact",
        retain_named(control.named_stream),
        write=compacting.compact_stream,
        by_role=True,
    ),
    Route("GET", f"{CONTROL_ROOT}top", SERVER, read=top),
    Route("GET", f"{CONTROL_ROOT}usage", SERVER, read=usage),
    Route("GET", f"{CONTROL_ROOT}settings", SETTINGS, read=settings),
    Route("POST", f"{CONTROL_ROOT}sign", read_named(sign.named_path, sign.named_action), write=sign.sign),
    Route("GET", f"{CONTROL_ROOT}jwks.json", OPEN, read=subscriptions.jwks, by_role=True),
    Route("POST", f"{CONTROL_ROOT}rotate-key", SERVER, write=subscriptions.rotate_key, by_role=True),
    Route("GET", f"{CONTROL_ROOT}subscriptions", LISTED, read=subscriptions.list_all, by_role=True),
    Route(
        "PUT",
        SUBSCRIPTION,
        SUBSCRIBE,
        write=subscriptions.create,
        body_bytes_max=SUBSCRIPTION_BODY_BYTES_MAX,
        by_role=True,
    ),
    Route("GET", SUBSCRIPTION, LISTED, read=subscriptions.show, by_role=True),
    Route("DELETE", SUBSCRIPTION, SUBSCRIBE, write=subscriptions.delete, by_role=True),
    _subscription("streams", SUBSCRIBE, subscriptions.add_streams),
    Route("DELETE", f"{SUBSCRIPTION}/streams/{{path}}", SUBSCRIBE, write=subscriptions.remove_stream, by_role=True),
    _subscription("callback", WAKE, subscriptions.callback, subscriptions.check_token),
    _subscription("claim", CLAIM, subscriptions.claim),
    _subscription("ack", WAKE, subscriptions.ack, subscriptions.check_token),
    _subscription("release", WAKE, subscriptions.release, subscriptions.check_token),
    Route("PUT", f"{STREAM_ROOT}{{path}}", CREATE, write=writes.create),
    Route("POST", f"{STREAM_ROOT}{{path}}", APPEND, write=writes.append),
    Route("GET", f"{STREAM_ROOT}{{path}}", READ, read=reads.read),
    Route("HEAD", f"{STREAM_ROOT}{{path}}", READ, read=reads.head),
    Route("PATCH", f"{STREAM_ROOT}{{path}}", RETAIN, write=retention.retain),
    Route("DELETE", f"{STREAM_ROOT}{{path}}", DELETE, write=writes.delete),
    Route("GET", f"{TABLE_CONTROL_ROOT}tables", LISTED, read=table_control.list_tables),
    Route("GET", f"{TABLE_CONTROL_ROOT}details", read_named(table_control.named_table), read=table_control.details),
    Route("GET", f"{TABLE_CONTROL_ROOT}followers", LISTED, read=list_followers, by_role=True),
    Route("GET", f"{TABLE_CONTROL_ROOT}views", LISTED, read=list_views, by_role=True),
    Route(
        "GET",
        f"{TABLE_CONTROL_ROOT}nurls",
        administer_named(table_control.named_table),
        read=nurls.list_nurls,
        by_role=True,
    ),
    Route("PUT", f"{TABLE_ROOT}{{path}}", CREATE, write=table_writes.create, by_role=True),
    Route("POST", f"{TABLE_ROOT}{{path}}", APPEND, write=table_writes.append),
    Route("GET", f"{TABLE_ROOT}{{path}}", READ, read=table_reads.read),
    Route("HEAD", f"{TABLE_ROOT}{{path}}", READ, read=table_reads.head),
    Route("PATCH", f"{TABLE_ROOT}{{path}}", RETAIN, write=retention.retain),
    Route("DELETE", f"{TABLE_ROOT}{{path}}", DELETE, write=table_writes.delete, by_role=True),
    Route("POST", NURL_TEMPLATE, NOTIFY, write=nurls.notify, by_role=True),
    Route("GET", NURL_TEMPLATE, ADMIN, read=nurls.read),
    Route("HEAD", NURL_TEMPLATE, ADMIN, read=nurls.head),
    Route("DELETE", NURL_TEMPLATE, SUBSCRIBE, write=nurls.withdraw, by_role=True),
    Route("POST", TABLE_TRIM, RETAIN, write=retention.trim_table),
    Route("POST", TABLE_COMPACT, RETAIN, write=compacting.compact_table, by_role=True),
)
ROUTES = tuple([route._replace(number=number) for number, route in enumerate(_ROUTES)])
if len(ROUTES) > ROUTES_MAX:
    raise RuntimeError(f"{len(ROUTES)} routes are more than ROUTES_MAX")

_FIXED: dict[str, dict[str, Route]] = {}
_STREAM: dict[str, Route] = {}
_TABLE: dict[str, Route] = {}
_BELOW_TABLE: dict[str, dict[str, Route]] = {}  # by the last segment
_CONSOLE: dict[str, Route] = {}
_SUBSCRIPTION: dict[str, dict[str, Route]] = {}  # by what follows the id
for _route in ROUTES:
    if _route.template == f"{STREAM_ROOT}{{path}}":
        _STREAM[_route.method] = _route
    elif _route.template == f"{TABLE_ROOT}{{path}}":
        _TABLE[_route.method] = _route
    elif _route.template.startswith(SUBSCRIPTION):
        _rest = _route.template.removeprefix(SUBSCRIPTION).removesuffix("{path}")
        _SUBSCRIPTION.setdefault(_rest, {})[_route.method] = _route
    elif _route.template in (NURL_TEMPLATE, TABLE_TRIM, TABLE_COMPACT):
        _BELOW_TABLE.setdefault(_route.template.rpartition("/")[2], {})[_route.method] = _route
    elif _route.template.startswith(console.FILES):
        _CONSOLE[_route.method] = _route
    else:
        _FIXED.setdefault(_route.template, {})[_route.method] = _route


class Resolved(msgspec.Struct, frozen=True, gc=False):
    """The routes of a path by method, and the path in the log that it names. Many are cached, so the garbage collector
    does not look at them."""

    routes: dict[str, Route]
    path: str


def _resolve(path: str) -> Resolved:
    fixed = _FIXED.get(path)
    if fixed is not None:
        return Resolved(fixed, "")
    if path.startswith(TABLE_ROOT):
        return _resolve_table(path[len(TABLE_ROOT) :])
    if path.startswith(console.FILES):
        return Resolved(_CONSOLE, path[len(console.FILES) :])
    if not path.startswith(STREAM_ROOT):
        raise UnknownRouteError(f"streams are below {STREAM_ROOT}, tables below {TABLE_ROOT}; GET / lists the routes")
    name = path[len(STREAM_ROOT) :]
    if path.startswith(SUBSCRIPTION_ROOT):
        return _resolve_subscription(path[len(SUBSCRIPTION_ROOT) :])
    if name == RESERVED or name.startswith(f"{RESERVED}/"):
        known = [template for template in _FIXED if template.startswith(CONTROL_ROOT)]
        raise UnknownRouteError(f"no such control API; there is {', '.join(known)}")
    parsed = parse_path(name)
    if parsed == RESERVED or parsed.startswith(f"{RESERVED}/"):
        raise InvalidPathError(f"paths below {RESERVED} are reserved")
    return Resolved(_STREAM, parsed)


def _resolve_subscription(rest: str) -> Resolved:
    """The path of a subscription, as scopes name it, is `__ds/subscriptions/` and its id."""
    raw, slash, below = rest.partition("/")
    action, separator, member = below.partition("/")
    routes = _SUBSCRIPTION.get(f"{slash}{action}{separator}") if bool(separator) == bool(member) else None
    if routes is None:
        raise subscriptions.unknown(rest)
    return Resolved(routes, f"{subscriptions.PATHS}{parse_id(raw)}")


def _resolve_table(name: str) -> Resolved:
    if name == tables.RESERVED or name.startswith(f"{tables.RESERVED}/"):
        known = [template for template in _FIXED if template.startswith(TABLE_CONTROL_ROOT)]
        raise UnknownRouteError(f"no such control API; there is {', '.join(known)}")
    address = tables.parse_address(name)
    return Resolved(_BELOW_TABLE.get(address.below, _TABLE), tables.log_path(address.name))


class _Known(OrderedDict[str, Resolved]):
    """A cache of resolved paths. Clients choose them, so their number and length are bounded. To find the oldest in a
    plain dictionary of this size takes ten times as long as to resolve a path."""

    def __missing__(self, path: str) -> Resolved:
        resolved = _resolve(path)
        if len(path) <= CACHED_TEXT_LENGTH_MAX:
            if len(self) >= PATHS_CACHED_MAX:
                self.popitem(last=False)
            self[path] = resolved
        return resolved


resolve: Callable[[str], Resolved] = _Known().__getitem__  # `_resolve` with a cache, without Python code for a hit
