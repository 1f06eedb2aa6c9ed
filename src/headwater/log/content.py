"""Content types: how they are compared, and how the records of each are framed."""

from __future__ import annotations

import enum
from functools import lru_cache

from headwater import limits

DEFAULT_CONTENT_TYPE = "application/octet-stream"


class ContentKind(enum.IntEnum):
    """How a stream's bytes are framed. It is derived from the content type when the stream is created.

    A table is a stream of rows. Tables are created as tables, not by a content type.
    """

    BINARY = 0
    TEXT = 1
    JSON = 2
    ROWS = 3  # of a table, numbered by this server
    MIRROR = 4  # of a table, numbered by another server


# Constants, because in Python 3.11 `ContentKind.ROWS` takes ten times as long as `ROWS`.
ROWS = ContentKind.ROWS  # all kinds from this one on are tables


def kind_of(content_type: str) -> ContentKind:
    media = media_type(content_type)
    if media == "application/json":
        return ContentKind.JSON
    return ContentKind.TEXT if media.startswith("text/") else ContentKind.BINARY


def same_type(one: str, other: str) -> bool:
    return one == other or media_type(one) == media_type(other)


def media_type(content_type: str) -> str:
    """The type without parameters, in lower case. Only this part is compared."""
    if len(content_type) > limits.HEADER_VALUE_BYTES_MAX:  # is refused, so it is not cached
        return _media_type(content_type)
    return _known_media_type(content_type)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


_known_media_type = lru_cache(maxsize=1024)(_media_type)
