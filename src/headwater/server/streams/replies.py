"""What responses of several handlers share: headers, and for finite answers to reads the entity tag, 304 and the
content encoding, which are chosen in one way for streams and tables."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headwater.engine.messages import VisibleStream
from headwater.limits import COMPRESS_BYTES_MIN
from headwater.log.commands import Reply
from headwater.protocol.conditions import encoded, matched
from headwater.protocol.streams import headers
from headwater.protocol.streams.offsets import format_offset
from headwater.protocol.streams.retention import retention_headers
from headwater.server.compression import Encoder, choose_encoding
from headwater.server.http import Headers, Request, Response
from headwater.server.service import Service

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


def created_response(reply: Reply, request: Request, end: tuple[str, str], path: str) -> Response:
    """The answer to a PUT: a header that says where the stream or table ends, and its URL if it is new."""
    described: Headers = (
        ("content-type", reply.content_type),
        end,
        *retention_headers(reply.retention),
        *([CLOSED] if reply.closed else ()),
    )
    if reply.existed:
        return Response(200, described)
    authority = request.authority or request.headers.get("host", "localhost")
    return Response(201, (*described, ("location", f"{request.scheme}://{authority}{request.mount}{path}")))


def json_response(value: object) -> Response:
    return Response(200, (("content-type", "application/json"), NO_STORE), (msgspec.json.encode(value),))


class Coding(NamedTuple):
    """The content encoding of an answer."""

    headers: Headers  # the entity tag, which differs for each encoding, and the encoding if there is one
    encoding: str | None = None
    encoder: Encoder | None = None  # of an encoded answer in pieces


def not_modified(request: Request, known_headers: Headers, tag: str) -> Response | None:
    """304 if the client has this answer in any content encoding."""
    if_none_match = request.headers.get("if-none-match")
    known = None if if_none_match is None else matched(if_none_match, tag)
    return None if known is None else Response(304, (*known_headers, ("etag", known)))


def choose_coding(service: Service, request: Request, tag: str, size_bytes: int, *, in_pieces: bool = False) -> Coding:
    """Choose an encoding that the client accepts. There is none for a small answer, nor for one in pieces if too many
    of these are being encoded."""
    accepted = request.headers.get("accept-encoding")
    encoding = None if accepted is None or size_bytes < COMPRESS_BYTES_MIN else choose_encoding(accepted)
    if encoding is None:
        return Coding((("etag", tag),))
    encoder = service.encoders.open(encoding) if in_pieces else None
    if in_pieces and encoder is None:
        return Coding((("etag", tag),))
    return Coding((("etag", encoded(tag, encoding)), ("content-encoding", encoding)), encoding, encoder)
