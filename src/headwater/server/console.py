"""The console: a page and the files that it loads. They hold no data: the page asks the public API, with the token of
whoever looks at it.

The policy of the page allows scripts with the nonce of this response only, so that a stream of JavaScript, which has the
same origin, can never be one of them; and it forbids every way to make markup or a script from text (Trusted Types).
"""

from __future__ import annotations

import secrets

from headwater.console import NONCE, ConsoleFile, load_files
from headwater.errors import UnknownRouteError
from headwater.protocol.conditions import etag
from headwater.server import compression
from headwater.server.http import Headers, Request, Response
from headwater.server.service import Service
from headwater.server.streams.replies import NO_CACHE, NO_STORE, VARY, choose_coding, not_modified

PAGE = "/console"
FILES = f"{PAGE}/"

_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
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
    body = load_files()[""].body.replace(NONCE, nonce.encode())
    policy = ("content-security-policy", _POLICY.format(nonce=nonce))
    return Response(200, (("content-type", "text/html; charset=utf-8"), NO_STORE, policy, *_ALONE), (body,))


async def file(service: Service, request: Request, path: str) -> Response:
    """A script or a style sheet. Browsers ask each time whether it has changed, which it does with the version."""
    _check_on(service)
    if not path:
        return Response(308, (("location", f"..{PAGE}"), NO_STORE))
    known = load_files().get(path)
    if known is None:
        raise UnknownRouteError(f"the console has no file of this name; its page is {PAGE}")
    return await _answer(service, request, known)


async def _answer(service: Service, request: Request, known: ConsoleFile) -> Response:
    tag = etag(known.version, 0, len(known.body), closed=True)
    shared: Headers = (
        NO_CACHE,
        VARY,
        ("content-security-policy", "default-src 'none'"),
        ("referrer-policy", "no-referrer"),
    )
    unchanged = not_modified(request, shared, tag)
    if unchanged is not None:
        return unchanged
    coding = choose_coding(service, request, tag, len(known.body))
    body = known.body
    if coding.encoding is not None:
        body = await compression.encode_body((body,), coding.encoding, service.limits.compress_inline_bytes)
    return Response(200, (("content-type", known.content_type), *shared, *coding.headers), (body,))


def _check_on(service: Service) -> None:
    if not service.console:
        raise UnknownRouteError("this server has no console; headwater serve --console has one")
