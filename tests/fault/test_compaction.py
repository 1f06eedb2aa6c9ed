"""Compaction and trims on a simulated machine that crashes. `make simulate SEEDS=n` runs more seeds."""

from __future__ import annotations

import pytest

from tests.fault.compaction_lives import CompactedHistory
from tests.fault.test_simulation import GROUPS, SEEDS, what_happened
from tests.quick import quick


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_guarantee_of_compaction_holds_after_every_crash(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            CompactedHistory(seed).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("seed", quick(2, range(8)))
def test_a_seed_determines_a_run(seed: int) -> None:
    """Also after another history in the same process."""
    first = what_happened(CompactedHistory(seed))
    assert what_happened(CompactedHistory(seed + 100)) != first
    assert what_happened(CompactedHistory(seed)) == first


@pytest.mark.slow
def test_the_seeds_reach_the_rare_cases() -> None:
    reached: set[str] = set()
    for seed in range(8):
        history = CompactedHistory(seed)
        history.run()
        reached |= history.compactions.reached
    assert reached == {
        "compact",
        "skip",
        "fork",
        "trim",
        "trimmed",
        "snapshot",
        "rows of a snapshot",
        "last rows",
        "followed",
    }
