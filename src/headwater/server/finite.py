"""Finite answers to reads: the entity tag, 304, and the content encoding, chosen in one way for streams and tables."""

from __future__ import annotations

from typing import NamedTuple

from headwater.limits import COMPRESS_BYTES_MIN
from headwater.protocol.streams.etags import encoded, matched
from headwater.server.compression import Encoder, choose_encoding
from headwater.server.http import Headers, Request, Response
from headwater.server.service import Service


class Coding(NamedTuple):
    """The content encoding of an answer."""

    headers: Headers  # the entity tag, which differs for each encoding, and the encoding if there is one
    encoding: str | None = None
    encoder: Encoder | None = None  # of an encoded answer in pieces


def not_modified(request: Request, headers: Headers, tag: str) -> Response | None:
    """304 if the client has this answer in any content encoding."""
    if_none_match = request.headers.get("if-none-match")
    known = None if if_none_match is None else matched(if_none_match, tag)
    return None if known is None else Response(304, (*headers, ("etag", known)))


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
