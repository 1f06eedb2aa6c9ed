"""Offsets as text: `{stream id}_{position}`, each 16 digits, so that text order is stream order."""

from __future__ import annotations

import re

from headwater import limits
from headwater.errors import InvalidOffsetError
from headwater.log.offsets import BEGINNING as FIRST
from headwater.log.offsets import Offset
from headwater.positions import BEGINNING, NOW

_SYNTAX = re.compile(rf"([0-9]{{{limits.OFFSET_DIGITS}}})_([0-9]{{{limits.OFFSET_DIGITS}}})")


def format_offset(offset: Offset) -> str:
    return f"{offset.id:016d}_{offset.position:016d}"


def parse_offset(token: str) -> Offset | None:
    """The offset that a client named; None for the tail. Whether it fits a stream is for the engine to say.

    The offset of all zeros is the beginning of any stream, as on other servers.
    """
    if token == BEGINNING:
        return FIRST
    if token == NOW:
        return None
    match = _SYNTAX.fullmatch(token)
    if match is None:
        raise InvalidOffsetError(f"expected -1, now or an offset the server gave, got {token[:80]!r}")
    return Offset(int(match[1]), int(match[2]))
