"""Finds the subscriptions that a stream belongs to, by its path.

Patterns are kept in a tree of their segments. A path is followed through it, with all places that it has reached at the
same time. Usually these are few, however many subscriptions there are. Patterns can be made for which they are many, so
a walk can be done in steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from headwater.protocol.subscriptions.patterns import ANY, ONE, Pattern, Wildcard

T = TypeVar("T")


class _Node(Generic[T]):
    """A place in patterns: what may follow, and the subscriptions whose pattern ends here."""

    __slots__ = ("below", "ending", "repeats")

    def __init__(self, *, repeats: bool = False) -> None:
        self.below: dict[str | Wildcard, _Node[T]] = {}
        self.ending: dict[T, None] = {}
        self.repeats = repeats  # it stands after `**`, which matches further segments


class Matcher(Generic[T]):
    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._members: dict[str, dict[T, None]] = {}  # by path

    def add_pattern(self, pattern: Pattern, subscription: T) -> None:
        node = self._root
        for segment in pattern.segments:
            if segment not in node.below:
                node.below[segment] = _Node(repeats=segment is ANY)
            node = node.below[segment]
        node.ending[subscription] = None

    def remove_pattern(self, pattern: Pattern, subscription: T) -> None:
        nodes = [self._root]
        for segment in pattern.segments:
            nodes.append(nodes[-1].below[segment])
        del nodes[-1].ending[subscription]
        for segment, node, parent in zip(
            reversed(pattern.segments), reversed(nodes[1:]), reversed(nodes[:-1]), strict=True
        ):
            if node.ending or node.below:
                break
            del parent.below[segment]

    def add_member(self, path: str, subscription: T) -> None:
        self._members.setdefault(path, {})[subscription] = None

    def remove_member(self, path: str, subscription: T) -> None:
        named = self._members.get(path, {})
        named.pop(subscription, None)
        if not named:
            self._members.pop(path, None)

    def members(self, path: str) -> Mapping[T, None]:
        """The subscriptions that name the stream."""
        return self._members.get(path, {})

    def by_pattern(self, path: str, steps_max: int) -> list[T] | None:
        """The subscriptions whose pattern matches the path. None: that takes more than so many steps."""
        matching: list[T] = []
        for count, subscription in enumerate(self.walk(path)):
            if count >= steps_max:
                return None
            if subscription is not None:
                matching.append(subscription)
        return matching

    def walk(self, path: str) -> Iterator[T | None]:
        """The subscriptions whose pattern matches the path, and None for each place that was passed on the way."""
        reached = _with_none([self._root])
        for name in path.split("/"):
            after: dict[_Node[T], None] = {}
            for node in reached:
                yield None
                if node.repeats:
                    after[node] = None
                for segment in (name, ONE):
                    below = node.below.get(segment)
                    if below is not None:
                        after[below] = None
            if not after:
                return
            reached = _with_none(after)
        for node in reached:
            yield from list(node.ending)


def _with_none(nodes: Iterable[_Node[T]]) -> dict[_Node[T], None]:
    """The places with those after each `**`, which may match no segment."""
    reached: dict[_Node[T], None] = {}
    for node in nodes:
        at: _Node[T] | None = node
        while at is not None and at not in reached:
            reached[at] = None
            at = at.below.get(ANY)
    return reached
