"""The body of a compose: an append that takes its data from streams of the same server.

    POST /v1/stream/orders
    Content-Type: application/vnd.headwater.compose+json

    {"sources": [{"stream": "/v1/stream/parts/1", "offset": "-1", "until": "0001_0064"}, …]}

It is the append whose body is the data of the ranges, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headwater import limits
from headwater.errors import BodyTooLargeError, EmptyBodyError, InvalidComposeError
from headwater.log.content import media_type
from headwater.positions import BEGINNING

COMPOSE_TYPE = "application/vnd.headwater.compose+json"
ZSTD_TYPE = "application/zstd"  # of a source whose bytes are a compressed body of an append


class SourceRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A range of a stream: its URL path (a client also takes its URL), and two of its offsets. Without `until` it ends
    at the tail."""

    stream: str
    offset: str = BEGINNING
    until: str | None = None


class Composition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sources: list[SourceRange]


_decode = msgspec.json.Decoder(Composition).decode


def is_compose(content_type: str | None) -> bool:
    """Whether the body of an append has this form. Asked of every append."""
    return content_type is not None and content_type.startswith("application/vnd.") and _is_compose(content_type)


def _is_compose(content_type: str) -> bool:
    return media_type(content_type) == COMPOSE_TYPE


def parse_composition(body: bytes) -> list[SourceRange]:
    if len(body) > limits.COMPOSE_FORM_BYTES_MAX:
        raise BodyTooLargeError(f"the list of sources may have {limits.COMPOSE_FORM_BYTES_MAX} bytes")
    if not body:
        raise EmptyBodyError('a compose needs a body, {"sources": [{"stream": …, "offset": …, "until": …}]}')
    try:
        sources = _decode(body).sources
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidComposeError(f'the body must be {{"sources": [{{"stream": …}}, …]}}: {error}') from None
    if not 1 <= len(sources) <= limits.COMPOSE_SOURCES_MAX:
        raise InvalidComposeError(f"a compose has 1 to {limits.COMPOSE_SOURCES_MAX} sources, this one {len(sources)}")
    return sources


def format_composition(sources: Iterable[SourceRange]) -> bytes:
    return msgspec.json.encode(Composition(list(sources)))
