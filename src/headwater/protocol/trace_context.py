"""W3C Trace Context: the `traceparent` header, which connects the spans of a request across programs."""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT = "traceparent"

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_LENGTH_MAX = 256
_SAMPLED = 1


class TraceContext(NamedTuple):
    """The trace that a request belongs to, and the span of its sender."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    flags: int = _SAMPLED

    @property
    def sampled(self) -> bool:
        """Whether the sender records its span and requests the same from others."""
        return bool(self.flags & _SAMPLED)

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags & 0xFF:02x}"


def parse_traceparent(text: str) -> TraceContext | None:
    """Parse a `traceparent` header; None if it is invalid, which is treated as missing.

    Later versions may add fields at the end. Version 00 has no more fields, and version ff is forbidden.
    """
    fields = _TRACEPARENT.fullmatch(text.strip(" \t")) if len(text) <= _LENGTH_MAX else None
    if fields is None:
        return None
    version, trace_id, span_id, flags, more = fields.groups()
    if version == "ff" or (version == "00" and more is not None) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, int(flags, 16))
