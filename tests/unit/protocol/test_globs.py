"""Globs: what they match, and that matching is fast for every path."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.limits import PATH_BYTES_MAX
from headwater.protocol.globs import glob

_PARTS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]", "[ab]": "[ab]", "[!a]": "[^/a]"}


def matches_at_leisure(pattern: str, path: str) -> bool:
    """The same with an expression that backtracks."""
    parts = re.split(r"((?<![^/])\*\*/|\*\*|\*|\?|\[!?[ab]+\])", pattern.strip("/"))
    return re.fullmatch("".join([_PARTS.get(part, part) for part in parts]), path) is not None


@given(
    st.lists(st.sampled_from(["a", "b", "/", *_PARTS]), min_size=1, max_size=8).map("".join),
    st.text("ab/", max_size=12),
)
def test_a_glob_matches_as_with_backtracking(pattern: str, path: str) -> None:
    assert (glob(pattern).fullmatch(path) is not None) == matches_at_leisure(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("x/**/a", "x/a", True),
        ("x/**/a", "x/y/z/a", True),
        ("x**/a", "xa", False),
        ("x**/a", "xy/z/a", True),
        ("a[*]b", "a*b", True),
        ("a[/]b", "a/b", False),
        ("a[--0]b", "a/b", False),
    ],
)
def test_a_segment_of_stars_may_be_empty_and_a_character_is_not_a_slash(
    pattern: str, path: str, is_match: bool
) -> None:
    assert (glob(pattern).fullmatch(path) is not None) is is_match


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a*/*a*/*a*/*a*/x", "/".join(["a" * 250] * 4)),
        ("**a**b*c*d", "a" * 340 + "b" * 340 + "c" * 340),
        ("**a*a*b/**a*a*b", "/".join(["a" * 200] * 5)),
    ],
)
def test_patterns_with_many_stars(pattern: str, path: str) -> None:
    """`bench/bounds_bench.py` measures that they are matched in time."""
    assert len(path) <= PATH_BYTES_MAX
    assert glob(pattern).fullmatch(path) is None
