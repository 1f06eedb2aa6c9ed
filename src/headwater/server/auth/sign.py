"""`POST /v1/stream/__ds/sign?url=…&expires=…&action=…`: a URL for reads or appends without a token, for a while."""

from __future__ import annotations

from headwater.errors import ConflictError, InvalidQueryError, UnauthorizedError
from headwater.limits import SIGNED_URL_S, SIGNED_URL_S_MAX
from headwater.protocol.streams.headers import format_instant
from headwater.protocol.streams.reads import parse_query
from headwater.protocol.tables.paths import TABLE_ROOT
from headwater.server.auth.callers import ANONYMOUS
from headwater.server.auth.scopes import Action
from headwater.server.auth.signing import ACTIONS, PARAMETER
from headwater.server.http import Request, Respond
from headwater.server.references import parse_integer, stream_path, table_path
from headwater.server.service import Service
from headwater.server.streams.replies import json_response


def named_path(request: Request) -> str:
    """The path in the log of the stream or table that the parameter `url` names by its URL path."""
    url = parse_query(request.query).get("url", "").partition("?")[0]
    is_table = url.removeprefix(request.mount).startswith(TABLE_ROOT)
    return table_path(url, request.mount) if is_table else stream_path(url, request.mount)


def named_action(request: Request) -> Action:
    """The action that the parameter `action` names."""
    name = parse_query(request.query).get("action", Action.READ)
    for action in ACTIONS.values():
        if action == name:
            return action
    raise InvalidQueryError(f"action must be read or append, got {name[:80]!r}")


def sign(service: Service, request: Request, _: str, respond: Respond) -> None:
    query = parse_query(request.query)
    seconds = parse_integer(query, "expires", SIGNED_URL_S, SIGNED_URL_S_MAX)
    if service.authority is None:
        raise ConflictError("this server does not check access, so its URLs need no signature")
    if request.identity == ANONYMOUS:
        raise UnauthorizedError("a URL is signed with a token")
    action = named_action(request)
    value, until_s = service.authority.sign(request.caller, named_path(request), seconds, action)
    authority = request.authority or request.headers.get("host", "localhost")
    path, _, parameters = query["url"].partition("?")
    url = f"{request.scheme}://{authority}{path}?{parameters}{'&' if parameters else ''}{PARAMETER}={value}"
    respond(json_response({"url": url, "expires_at": format_instant(until_s * 1000)}))
