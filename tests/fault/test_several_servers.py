"""Two and three engines over one simulated store. `make simulate SEEDS=n` runs more seeds."""

from __future__ import annotations

import os

import pytest

from headwater.engine.freshness import Freshness
from headwater.engine.sharing import Sharing
from headwater.engine.watching import Watcher
from headwater.engine.writer import Writer
from tests.fault.shared_clients import LiveReader, SharedClients
from tests.fault.shared_lives import SharedHistory
from tests.fault.shared_sim import Machine, SimDatabase, SimSharedStore
from tests.fault.test_simulation import spy_on
from tests.quick import quick

SEEDS = int(os.environ.get("SEEDS", "440"))
GROUPS = 20


@pytest.mark.parametrize("group", quick(2, range(GROUPS)))
def test_every_guarantee_holds_over_a_shared_store(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            SharedHistory(seed).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("seed", quick(1, [1, 2, 3, 4, 5]))
def test_a_seed_determines_a_run_of_several_servers(seed: int) -> None:
    assert SharedHistory(seed).run() == SharedHistory(seed).run()
    assert SharedHistory(seed).run() != SharedHistory(seed + 100).run()


REACHED = [
    (Sharing, "restore"),
    (Sharing, "_apply"),
    (Writer, "_take_back"),
    (Writer, "_refuse_shared"),
    (Writer, "_put_off"),
    (Writer, "_decide_after_expiry"),
    (Writer, "_renew_shared"),
    (Freshness, "take"),
    (Freshness, "drop"),
    (Freshness, "tell"),
    (Watcher, "moved"),
    (Watcher, "_poll_live"),
    (SimSharedStore, "_resolved"),
    (SimDatabase, "fence"),
    (SimDatabase, "lock"),
    (Machine, "resume"),
    (LiveReader, "check_end"),
    (SharedClients, "_check_duplicate"),
]


def test_the_seeds_reach_the_rare_cases_of_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy_on(monkeypatch, REACHED)
    for seed in range(30):
        SharedHistory(seed).run()
    assert seen == {name for _, name in REACHED}
