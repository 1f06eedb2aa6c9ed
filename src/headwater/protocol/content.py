"""Content types: their syntax, when two are the same, and how a stream of one is framed."""

from __future__ import annotations

import re
from functools import lru_cache

from headwater import limits
from headwater.errors import InvalidHeaderError
from headwater.types import ContentKind

DEFAULT_CONTENT_TYPE = "application/octet-stream"

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105
_SYNTAX = re.compile(rf"{_TOKEN}/{_TOKEN}\s*(;.*)?", re.DOTALL)


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """The type without parameters, in lower case: what counts when types are compared."""
    return content_type.partition(";")[0].strip().lower()


def same_type(one: str, other: str) -> bool:
    return one == other or media_type(one) == media_type(other)


def check_content_type(value: str) -> str:
    value = value.strip()
    if len(value) > limits.HEADER_VALUE_BYTES_MAX or not _SYNTAX.fullmatch(value):
        raise InvalidHeaderError(f"Content-Type must be type/subtype, got {value[:80]!r}")
    return value


def kind_of(content_type: str) -> ContentKind:
    media = media_type(content_type)
    if media == "application/json":
        return ContentKind.JSON
    return ContentKind.TEXT if media.startswith("text/") else ContentKind.BINARY
