"""Which subscriptions a path belongs to, also for patterns that are made to be slow."""

from __future__ import annotations

import itertools

import pytest

from headwater import limits
from headwater.errors import InvalidSubscriptionError
from headwater.protocol.subscriptions.patterns import parse_pattern
from headwater.server.subscriptions.matching import Matcher

STEPS = 1_000_000
SEGMENTS = ("a", "b", "*", "**")


def matcher_of(*texts: str) -> Matcher[str]:
    matcher: Matcher[str] = Matcher()
    for text in texts:
        matcher.add_pattern(parse_pattern(text), text)
    return matcher


def test_the_tree_finds_the_patterns_that_match() -> None:
    texts = ["/".join(parts) for length in (1, 2, 3, 4) for parts in itertools.product(SEGMENTS, repeat=length)]
    matcher = matcher_of(*texts)
    for length in (1, 2, 3, 4):
        for path in map("/".join, itertools.product("abc", repeat=length)):
            expected = {text for text in texts if parse_pattern(text).matches(path)}
            names = matcher.by_pattern(path, STEPS)
            assert names is not None
            assert len(names) == len(set(names))
            assert set(names) == expected


def test_a_walk_that_takes_too_many_steps_is_left_to_turns() -> None:
    texts = [f"**/{'/'.join(parts)}/z" for parts in itertools.product("a*", repeat=8)]
    matcher = matcher_of(*texts)
    path = "/".join(["a"] * 30)
    assert matcher.by_pattern(path, 100) is None
    assert matcher.by_pattern(f"{path}/z", STEPS) == [one for one in matcher.walk(f"{path}/z") if one is not None]
    assert matcher.by_pattern("elsewhere", 100) == []


def test_many_subscriptions_of_a_path_are_left_to_turns() -> None:
    matcher: Matcher[int] = Matcher()
    for number in range(200):
        matcher.add_pattern(parse_pattern("**"), number)
    assert matcher.by_pattern("a", 100) is None
    assert matcher.by_pattern("a", STEPS) == list(range(200))


def test_a_pattern_has_a_bounded_number_of_segments() -> None:
    longest = "/".join(["*"] * limits.SUBSCRIPTION_PATTERN_SEGMENTS_MAX)
    assert parse_pattern(longest).text == longest
    with pytest.raises(InvalidSubscriptionError, match="segments"):
        parse_pattern(f"{longest}/a")
