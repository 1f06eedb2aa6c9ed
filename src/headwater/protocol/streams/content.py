"""The syntax of a Content-Type header."""

from __future__ import annotations

import re

from headwater import limits
from headwater.errors import InvalidHeaderError

_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105
_SYNTAX = re.compile(rf"{_TOKEN}/{_TOKEN}\s*(;.*)?", re.DOTALL)


def check_content_type(value: str) -> str:
    value = value.strip()
    if len(value) > limits.HEADER_VALUE_BYTES_MAX or not _SYNTAX.fullmatch(value):
        raise InvalidHeaderError(f"Content-Type must be type/subtype, got {value[:80]!r}")
    return value
