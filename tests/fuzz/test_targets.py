"""Every target with its seeds, with what once broke it, and with random bytes and pieces of seeds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.crashes import CRASHES
from tests.fuzz.inputs import Target
from tests.fuzz.targets import TARGETS

SLOW = {"native": 20, "asgi": 20, "both": 20, "settings": 40}  # examples of targets that take milliseconds


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    words = st.sampled_from((b"", *target.words, *target.seeds))
    mixed = st.lists(words | st.binary(max_size=4), max_size=12).map(b"".join)
    return st.builds(_spliced, st.sampled_from((b"", *target.seeds)), mixed, st.integers(0, 60), st.integers(0, 20))


def _spliced(seed: bytes, mixed: bytes, start: int, length: int) -> bytes:
    """A seed with a part of it replaced."""
    return seed[:start] + mixed + seed[start + length :]


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_crashes(name: str) -> None:
    for data in (b"", *TARGETS[name].seeds, *TARGETS[name].words, *CRASHES.get(name, ())):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    @settings(max_examples=SLOW.get(name, 100), suppress_health_check=list(HealthCheck))
    @given(inputs(TARGETS[name]))
    def check(data: bytes) -> None:
        TARGETS[name].run(data)

    check()


def test_crashes_belong_to_targets() -> None:
    assert set(CRASHES) <= set(TARGETS)
