"""Patterns of subscriptions: globs over the paths of streams, segment by segment.

A segment `*` matches one segment, and `**` any number of segments, also none. A star is a wildcard only as a whole
segment: `user-*` is a name. `%2A` is a star in a name. Patterns are compared with decoded paths.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from headwater import limits
from headwater.errors import InvalidPathError, InvalidSubscriptionError
from headwater.protocol.streams.paths import RESERVED, check_path


class Wildcard(NamedTuple):
    """A segment that is not a name."""

    text: str


ONE = Wildcard("*")
ANY = Wildcard("**")
_WILDCARDS = {wildcard.text: wildcard for wildcard in (ONE, ANY)}


class Pattern(NamedTuple):
    text: str  # as it was given, without slashes at both ends
    segments: tuple[str | Wildcard, ...]

    @property
    def prefix(self) -> str:
        """The text with which every matching path begins."""
        names: list[str] = []
        for at, segment in enumerate(self.segments):
            if isinstance(segment, Wildcard):
                return "/".join(names) + ("/" if names and segment is ONE and at else "")
            names.append(segment)
        return "/".join(names)

    def matches(self, path: str) -> bool:
        """Whether the pattern matches a path. The work is bounded by the product of their numbers of segments."""
        reached = _closure(self.segments, {0})
        for name in path.split("/"):
            reached = _closure(self.segments, _after(self.segments, reached, name))
            if not reached:
                return False
        return len(self.segments) in reached


def _after(segments: tuple[str | Wildcard, ...], reached: set[int], name: str) -> set[int]:
    """The places in the pattern after one more segment of the path."""
    places: set[int] = set()
    for place in reached:
        if place < len(segments):
            segment = segments[place]
            if segment is ANY:
                places.add(place)
            elif segment is ONE or segment == name:
                places.add(place + 1)
    return places


def _closure(segments: tuple[str | Wildcard, ...], places: set[int]) -> set[int]:
    """The places with those after each `**`, which may match nothing."""
    reached = set(places)
    for place in places:
        at = place
        while at < len(segments) and segments[at] is ANY:
            at += 1
            reached.add(at)
    return reached


def parse_pattern(text: str) -> Pattern:
    """Parse a pattern. InvalidSubscriptionError if no stream could match it."""
    trimmed = text.strip("/")
    if len(trimmed.encode("utf-8", "surrogatepass")) > limits.PATH_BYTES_MAX:
        raise InvalidSubscriptionError(f"the pattern is longer than {limits.PATH_BYTES_MAX} bytes")
    segments = tuple([_WILDCARDS.get(segment) or _name(segment, text) for segment in trimmed.split("/")])
    if len(segments) > limits.SUBSCRIPTION_PATTERN_SEGMENTS_MAX:
        raise InvalidSubscriptionError(f"a pattern has at most {limits.SUBSCRIPTION_PATTERN_SEGMENTS_MAX} segments")
    if sum(segment is ANY for segment in segments) > limits.SUBSCRIPTION_DEEP_STARS_MAX:
        raise InvalidSubscriptionError(f"a pattern has ** at most {limits.SUBSCRIPTION_DEEP_STARS_MAX} times")
    if segments[0] == RESERVED:
        raise InvalidSubscriptionError(f"paths below {RESERVED} are reserved")
    return Pattern(trimmed, segments)


def _name(segment: str, pattern: str) -> str:
    try:
        return check_path(unquote_to_bytes(segment).decode())
    except (InvalidPathError, UnicodeError) as error:
        raise InvalidSubscriptionError(f"{pattern[:80]!r} is not a pattern of paths: {error}") from None


def parse_member(text: str) -> str:
    """The path of a stream in the body of a request, as `orders/1`."""
    path = text.strip("/")
    try:
        if len(path.encode()) > limits.PATH_BYTES_MAX:
            raise InvalidSubscriptionError(f"a path is longer than {limits.PATH_BYTES_MAX} bytes")
        check_path(path)
    except (InvalidPathError, UnicodeError) as error:
        raise InvalidSubscriptionError(f"{path[:80]!r} is not the path of a stream: {error}") from None
    if path.split("/", 1)[0] == RESERVED:
        raise InvalidSubscriptionError(f"paths below {RESERVED} are reserved, got {path[:80]!r}")
    return path
