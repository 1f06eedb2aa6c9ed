"""The durable store and the engine over a simulated disk, seed by seed: `make simulate SEEDS=n` for more of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pytest

from headwater.log.events import Appended
from headwater.store.contract import Commit, Done
from headwater.store.embedded import journal
from headwater.store.embedded.disk import File
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.maintenance import Maintenance
from headwater.store.embedded.store import EmbeddedStore
from headwater.store.embedded.syncing import Synced
from tests.fault.lives import History
from tests.fault.sim import SimSyncer

SEEDS = int(os.environ.get("SEEDS", "300"))
GROUPS = 20


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("group", range(GROUPS))
def test_every_promise_survives_every_crash(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            History(seed).run()
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_is_a_run(seed: int) -> None:
    assert History(seed).run() == History(seed).run()
    assert History(seed).run() != History(seed + 100).run()


REACHED = [
    (Maintenance, "note_full"),
    (Maintenance, "_fold"),
    (Maintenance, "_roll"),
    (Maintenance, "_reclaim"),
    (IndexReader, "read"),
    (EmbeddedStore, "_write"),
    (EmbeddedStore, "resume"),
]


def test_the_seeds_reach_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    for owner, name in REACHED:
        original = getattr(owner, name)

        def spy(self: object, *arguments: object, _name: str = name, _original: object = original) -> object:
            seen.add(_name)
            return _original(self, *arguments)  # type: ignore[operator]

        monkeypatch.setattr(owner, name, spy)
    torn = []
    monkeypatch.setattr(journal, "_find_batch", lambda data, *more: torn.append(any(data[more[0] : more[0] + 600])))
    for seed in range(45):
        History(seed).run()
    assert seen == {name for _, name in REACHED}
    assert any(torn)  # a batch that was broken off, and not just the end of the journal


# A simulation that cannot fail proves nothing: take away what durability rests on, and it must notice.


def caught(seeds: int, **sabotage: object) -> bool:
    for seed in range(seeds):
        try:
            History(seed, **sabotage).run()  # type: ignore[arg-type]
        except BaseException:  # noqa: BLE001 - a broken promise, or a store that refuses to open
            return True
    return False


class NoSync(SimSyncer):
    def sync(self, file: File, synced: Synced) -> None:
        synced(None)


def test_a_missing_sync_is_caught() -> None:
    assert caught(60, make_syncer=NoSync)


def test_a_missing_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoChecksum:
        @staticmethod
        def crc32(data: object, value: int = 0) -> int:
            return 0

    monkeypatch.setattr(journal, "zlib", NoChecksum)
    assert caught(60)


class NoAtomicity(EmbeddedStore):
    """Keeps the data of an append first and its producer afterwards."""

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        data, producers = [], []
        for entry in batch:
            event = entry.record[-1]
            if isinstance(event, Appended) and event.producer and event.data:
                data.append(Commit((msgspec.structs.replace(event, producer=None),), entry.after))
                late = msgspec.structs.replace(event, data=b"", position=event.position + len(event.data))
                producers.append(Commit((late,), entry.after))
            else:
                data.append(entry)
        if len(data) != 1 or not producers:
            super().commit(batch, done)
            return

        def then(error: BaseException | None) -> None:
            if error is None:
                EmbeddedStore.commit(self, producers, done)
            else:
                done(error)

        super().commit(data, then)


def test_missing_atomicity_is_caught() -> None:
    assert caught(120, make_store=NoAtomicity)
