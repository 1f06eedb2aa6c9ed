"""Offsets as text: `{stream id}_{position}`, each 16 digits, so that offsets sort as text."""

from __future__ import annotations

import re

from headwater import limits
from headwater.errors import InvalidOffsetError
from headwater.log.offsets import BEGINNING as FIRST
from headwater.log.offsets import Offset
from headwater.positions import BEGINNING, NOW

_SYNTAX = re.compile(rf"([0-9]{{{limits.OFFSET_DIGITS}}})_([0-9]{{{limits.OFFSET_DIGITS}}})")


def format_offset(offset: Offset) -> str:
    return f"{str(offset.id).zfill(16)}_{str(offset.position).zfill(16)}"  # half the time of a format with a width


def parse_offset(token: str) -> Offset | None:
    """Parse an offset from a client; None is the tail. The engine checks whether the stream has this offset.

    An offset of all zeros is the beginning of any stream, as on other servers.
    """
    if token == BEGINNING:
        return FIRST
    if token == NOW:
        return None
    match = _SYNTAX.fullmatch(token)
    if match is None:
        raise InvalidOffsetError(f"expected -1, now or an offset from the server, got {token[:80]!r}")
    return Offset(int(match[1]), int(match[2]))
