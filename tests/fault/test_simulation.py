"""The durable store and the engine on a simulated machine. `make simulate SEEDS=n` runs more seeds."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from headwater.engine.follower import StreamFollower
from headwater.engine.loading import Loader
from headwater.engine.rows import Rows
from headwater.engine.writer import Writer
from headwater.server.following.mirror import Mirror
from headwater.server.subscriptions.subscription import RunningSubscription
from headwater.server.subscriptions.subscriptions import Subscriptions
from headwater.server.tables.active import ActiveView
from headwater.server.tables.snapshots import SnapshotReader
from headwater.store.embedded import journal
from headwater.store.embedded.folding import Folding
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.maintenance import Maintenance
from headwater.store.embedded.store import EmbeddedStore
from tests.fault import lives
from tests.fault.clients import Clients
from tests.fault.document_clients import DocumentClients
from tests.fault.lives import History
from tests.fault.rows import check_damaged_row
from tests.fault.sim_disk import SimDisk
from tests.fault.subscription_clients import PATHS as SUBSCRIBED_PATHS
from tests.fault.subscription_clients import Subscribers
from tests.fault.table_clients import Tables
from tests.quick import quick

SEEDS = int(os.environ.get("SEEDS", "200"))
GROUPS = 20


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_guarantee_holds_after_every_crash(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            History(seed, conditional=0.3 * (seed % 2)).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_guarantee_of_subscriptions_holds_after_every_crash(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            subscribed(seed).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


def subscribed(seed: int) -> History:
    """A history with subscriptions."""
    return History(seed, paths=SUBSCRIBED_PATHS, subscribed=True)


def what_happened(history: History) -> tuple[str, object]:
    """Run a history. Returns a digest of its steps, and how many random numbers it has taken."""
    return history.run(), history.random.getstate()


@pytest.mark.parametrize("make", [History, subscribed])
@pytest.mark.parametrize("seed", quick(1, [1, 2, 3, 4, 5]))
def test_a_seed_determines_a_run(seed: int, make: Callable[[int], History]) -> None:
    """Also after another history in the same process."""
    first = what_happened(make(seed))
    assert what_happened(make(seed + 100)) != first
    assert what_happened(make(seed)) == first


@pytest.mark.parametrize("seed", quick(3, range(8)))
def test_damage_in_any_row_is_an_error_and_never_a_wrong_answer(seed: int) -> None:
    history = History(seed)
    history.run()
    history.disk.restart(power_lost=False)
    history.directory.index.restart()
    rng = random.Random(seed)
    damaged = {check_damaged_row(history.directory, rng).partition(".")[0] for _ in range(60)}
    assert damaged >= {"meta", "streams", "chunks", "documents"}


REACHED = [
    (Maintenance, "note_full"),
    (Folding, "_fold"),
    (Maintenance, "_roll"),
    (Folding, "_reclaim"),
    (Folding, "_note_failure"),
    (EmbeddedStore, "refuse_held"),
    (Writer, "_refuse"),
    (IndexReader, "read"),
    (EmbeddedStore, "_write"),
    (EmbeddedStore, "resume"),
    (Loader, "roll_back"),
    (Clients, "_follow"),
    (Clients, "_append_with_document"),
    (DocumentClients, "_delete"),
    (Clients, "check_times"),
    (Rows, "_search"),
    (Rows, "_last_rows"),
    (StreamFollower, "_read"),
    (ActiveView, "_snapshot"),
    (SnapshotReader, "read"),
    (Mirror, "_append_batches"),
    (Tables, "_fork_request"),
    (Tables, "_active"),
    (Tables, "_live"),
    (History, "_check_recovered"),
    (History, "_check_catalogue"),
]


REACHED_BY_SUBSCRIPTIONS = [
    (RunningSubscription, "_scan"),
    (RunningSubscription, "_forget_cursor"),
    (RunningSubscription, "_tell_again"),
    (RunningSubscription, "_delivered"),
    (RunningSubscription, "_retry"),
    (RunningSubscription, "release"),
    (RunningSubscription, "unname"),
    (Subscriptions, "_clear"),
    (Subscriptions, "_tell_late"),
    (RunningSubscription, "note_unknown"),
    (Subscribers, "_settle_one"),
    (Subscribers, "_check_repeat"),
    (Subscribers, "calm"),
]


def spy_on(monkeypatch: pytest.MonkeyPatch, functions: list[tuple[Any, str]]) -> set[str]:
    """The names of the functions that are called from now on."""
    seen: set[str] = set()

    def spying(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def spy(*arguments: object, **more: object) -> object:
            seen.add(name)
            return real(*arguments, **more)

        return spy

    for owner, name in functions:
        monkeypatch.setattr(owner, name, spying(name, getattr(owner, name)))
    return seen


def test_the_seeds_reach_the_rare_cases_of_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy_on(monkeypatch, REACHED_BY_SUBSCRIPTIONS)
    for seed in range(16):
        subscribed(seed).run()
    assert seen == {name for _, name in REACHED_BY_SUBSCRIPTIONS}


def test_the_seeds_reach_the_rare_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spy_on(monkeypatch, REACHED)
    copied = [(lives, name) for name in ("back_up_and_check", "damage_and_salvage", "check_damaged_row")]
    seen_copies = spy_on(monkeypatch, copied)
    refused: set[int] = set()
    refuse = SimDisk.refuse

    def refusing(disk: SimDisk, number: int, name: str) -> None:
        refused.add(number)
        refuse(disk, number, name)

    monkeypatch.setattr(SimDisk, "refuse", refusing)
    torn = []
    monkeypatch.setattr(journal, "_find_batch", lambda data, *more: torn.append(any(data[more[0] : more[0] + 600])))
    for seed in range(30):
        History(seed).run()
    assert seen == {name for _, name in REACHED}
    assert seen_copies == {name for _, name in copied}
    assert refused == {errno.ENOSPC, errno.EMFILE, errno.ENFILE}
    assert any(torn)  # an incomplete batch, not only the end of the journal
