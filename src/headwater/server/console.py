"""The console: a page and the files that it loads. They hold no data: the page asks the public API, with the token of
whoever looks at it.

The policy of the page allows scripts with the nonce of this response only, so that a stream of JavaScript, which has
the same origin, can never be one of them; and it forbids every way to make markup or a script from text (Trusted
Types).
"""

from __future__ import annotations

import functools
import secrets

from headwater.console import load_files
from headwater.errors import UnknownRouteError
from headwater.protocol.streams.paths import CONSOLE
from headwater.server import compression
from headwater.server.http import Headers, Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import NO_CACHE, NO_STORE, VARY

PAGE = CONSOLE
FILES = f"{PAGE}/"

_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_FOR_EVER = "public, max-age=31536000, immutable"
_ALONE_FILE: Headers = (("content-security-policy", "default-src 'none'"), ("referrer-policy", "no-referrer"))
_ALONE: Headers = (
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("x-frame-options", "DENY"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)


async def page(service: Service, request: Request, _: str) -> Response:
    """The page itself. It is made for each request, because its nonce must not be used twice."""
    _check_on(service)
    nonce = secrets.token_urlsafe(16)
    body = load_files().page_for(nonce, needed_token(service))
    policy = ("content-security-policy", _POLICY.format(nonce=nonce))
    return Response(200, (("content-type", "text/html; charset=utf-8"), NO_STORE, policy, *_ALONE), (body,))


async def file(service: Service, request: Request, path: str) -> Response:
    """A script or the style sheet. The page names the version of the files in their paths, so browsers keep them."""
    _check_on(service)
    if not path:
        return Response(308, (("location", f"..{PAGE}"), NO_STORE))
    version, _, name = path.partition("/")
    known = load_files().files.get(name)
    if known is None:
        raise UnknownRouteError(f"the console has no file of this name; its page is {PAGE}")
    # A page that was open while the server was updated gets files of another version, and must not keep them.
    caching = ("cache-control", _FOR_EVER) if version == load_files().version else NO_CACHE
    headers: Headers = (("content-type", known.content_type), caching, VARY, *_ALONE_FILE)
    encoding = compression.choose_encoding(request.headers.get("accept-encoding", ""))
    if encoding is None:
        return Response(200, headers, (known.body,))
    return Response(200, (*headers, ("content-encoding", encoding)), (_encoded(name, encoding),))


@functools.cache
def _encoded(name: str, encoding: str) -> bytes:
    return compression.encode((load_files().files[name].body,), encoding)


def needed_token(service: Service) -> str:
    """Whether requests need a token: `none`, `required`, or `optional` if some requests are allowed without one."""
    if service.authority is None:
        return "none"
    return "optional" if service.authority.rules.anonymous.scopes else "required"


def _check_on(service: Service) -> None:
    if not service.console:
        raise UnknownRouteError("this server has no console; headwater serve --console has one")
