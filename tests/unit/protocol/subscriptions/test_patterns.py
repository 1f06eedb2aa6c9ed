from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater import limits
from headwater.errors import InvalidSubscriptionError
from headwater.protocol.subscriptions.patterns import parse_member, parse_pattern
from tests.fault.subscription_oracle import matches

names = st.sampled_from(["a", "b", "ab", "user-*", "é"])
paths = st.lists(names, min_size=1, max_size=6).map("/".join)
patterns = (
    st.lists(st.one_of(names, st.sampled_from(["*", "**"])), min_size=1, max_size=6)
    .filter(lambda segments: segments.count("**") <= limits.SUBSCRIPTION_DEEP_STARS_MAX)
    .map("/".join)
)


@given(patterns, paths)
@example("**", "a")
@example("a/**", "a")
@example("**/a/**/a", "a/a")
@example("*/**/*", "a/b")
def test_a_pattern_matches_as_an_independent_slow_matcher_says(text: str, path: str) -> None:
    assert parse_pattern(text).matches(path) is matches(text, path)


@given(patterns, paths)
def test_every_matching_path_begins_with_the_prefix(text: str, path: str) -> None:
    pattern = parse_pattern(text)
    if pattern.matches(path):
        assert path.startswith(pattern.prefix)


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("orders/*", "orders/1", True),
        ("orders/*", "orders", False),
        ("orders/*", "orders/1/2", False),
        ("/orders/*/", "orders/1", True),
        ("orders/**", "orders", True),
        ("orders/**", "orders/1/2", True),
        ("orders/**", "ordersx", False),
        ("user-*", "user-1", False),  # a star is a wildcard only as a whole segment
        ("user-*", "user-*", True),
        ("%2A", "*", True),
        ("%2A", "a", False),
        ("%2A%2A", "**", True),
        ("caf%C3%A9", "café", True),
    ],
)
def test_patterns_of_the_documentation(pattern: str, path: str, expected: bool) -> None:
    assert parse_pattern(pattern).matches(path) is expected


@pytest.mark.parametrize(
    "text",
    ["", "/", "a//b", "a/./b", "../a", "__ds", "__ds/*", "%FF", "a/%2F/b", "\0", "a" * 10_000, "/".join(["**"] * 9)],
)
def test_a_pattern_that_no_stream_could_match_is_refused(text: str) -> None:
    with pytest.raises(InvalidSubscriptionError):
        parse_pattern(text)


@pytest.mark.parametrize("text", ["", "/", "a//b", "a/..", "__ds/streams", "\0", "\ud800", "a" * 10_000])
def test_a_member_that_is_not_the_path_of_a_stream_is_refused(text: str) -> None:
    with pytest.raises(InvalidSubscriptionError):
        parse_member(text)


@given(paths)
def test_slashes_at_both_ends_of_a_member_are_ignored(path: str) -> None:
    assert parse_member(f"/{path}/") == path
