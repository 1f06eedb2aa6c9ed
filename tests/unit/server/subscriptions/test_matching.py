from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headwater.protocol.subscriptions.patterns import Pattern, parse_pattern
from headwater.server.subscriptions.matching import Matcher
from tests.unit.protocol.subscriptions.test_patterns import paths, patterns


def subscriptions_of(matcher: Matcher[int], path: str) -> set[int]:
    """The subscriptions whose patterns match. All bounds on the work give them, or nothing."""
    matching = matcher.by_pattern(path, 1_000_000)
    assert matching is not None
    assert len(matching) == len(set(matching))
    steps = sum(1 for _ in matcher.walk(path))
    assert matcher.by_pattern(path, steps) == matching
    assert steps == 0 or matcher.by_pattern(path, steps - 1) is None
    return set(matching)


@given(st.lists(patterns, max_size=12), st.lists(paths, max_size=8))
def test_a_path_has_the_subscriptions_whose_patterns_match(texts: list[str], looked_up: list[str]) -> None:
    matcher: Matcher[int] = Matcher()
    parsed = [parse_pattern(text) for text in texts]
    for number, pattern in enumerate(parsed):
        matcher.add_pattern(pattern, number)
    for path in looked_up:
        assert subscriptions_of(matcher, path) == {
            number for number, pattern in enumerate(parsed) if pattern.matches(path)
        }


class Changes(RuleBasedStateMachine):
    """Patterns and members come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.matcher: Matcher[int] = Matcher()
        self.patterns: dict[int, Pattern] = {}
        self.members: set[tuple[str, int]] = set()
        self.number = 0

    @rule(text=patterns)
    def add_pattern(self, text: str) -> None:
        self.number += 1
        self.patterns[self.number] = parse_pattern(text)
        self.matcher.add_pattern(self.patterns[self.number], self.number)

    @rule(data=st.data())
    def remove_pattern(self, data: st.DataObject) -> None:
        if self.patterns:
            number = data.draw(st.sampled_from(sorted(self.patterns)))
            self.matcher.remove_pattern(self.patterns.pop(number), number)

    @rule(path=paths, number=st.integers(0, 3))
    def add_member(self, path: str, number: int) -> None:
        self.matcher.add_member(path, number)
        self.members.add((path, number))

    @rule(path=paths, number=st.integers(0, 3))
    def remove_member(self, path: str, number: int) -> None:
        self.matcher.remove_member(path, number)  # also of one that is not there
        self.members.discard((path, number))

    @rule(path=paths)
    def look_up(self, path: str) -> None:
        matching = {number for number, pattern in self.patterns.items() if pattern.matches(path)}
        assert subscriptions_of(self.matcher, path) == matching
        assert set(self.matcher.members(path)) == {number for member, number in self.members if member == path}

    @invariant()
    def nothing_is_left(self) -> None:
        if not self.patterns:
            assert not self.matcher._root.below
            assert not self.matcher._root.ending
        assert set(self.matcher._members) == {path for path, _ in self.members}


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=25)
