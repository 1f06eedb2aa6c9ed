"""Composes: appends whose data the server takes from ranges of its own streams."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from headwater.client.flows import own_path
from headwater.client.session import Session
from headwater.protocol.streams.composing import COMPOSE_TYPE, SourceRange, format_composition

__all__ = ["COMPOSE_TYPE", "composition"]


def composition(session: Session, sources: Iterable[SourceRange]) -> bytes:
    """The body of a compose. Each source is a URL path, or the URL of a stream on the client's server."""
    named = [_with_path(session, source) for source in sources]
    if not named:
        raise ValueError("nothing to compose")
    return format_composition(named)


def _with_path(session: Session, source: SourceRange) -> SourceRange:
    if source.stream.startswith("/"):
        return source
    own_path(session, source.stream)  # raises an error if the stream is on another server
    return msgspec.structs.replace(source, stream=urlsplit(source.stream).path)
