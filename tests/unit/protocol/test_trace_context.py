"""W3C Trace Context: valid and invalid `traceparent` headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.trace_context import TraceContext, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{SPAN}-01"


def test_a_header_is_read_and_written() -> None:
    context = parse_traceparent(VALID)
    assert context == TraceContext(TRACE, SPAN, 1)
    assert context.sampled
    assert context.header() == VALID


def test_other_flags_are_kept() -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-02")
    assert context is not None
    assert not context.sampled
    assert context.header().endswith("-02")


def test_a_later_version_may_have_more_fields() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-what-comes") == TraceContext(TRACE, SPAN, 1)
    assert parse_traceparent(f"cc-{TRACE}-{SPAN}-01") == TraceContext(TRACE, SPAN, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"01-{TRACE}-{SPAN}-01.more",
        f"01-{TRACE}-{SPAN}-01-{'x' * 300}",
        f"00-{TRACE}-{SPAN}-٠١",
    ],
)
def test_invalid_headers_count_as_missing(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.text())
def test_any_text_is_parsed_or_ignored(text: str) -> None:
    context = parse_traceparent(text)
    assert context is None or parse_traceparent(context.header()) == context
