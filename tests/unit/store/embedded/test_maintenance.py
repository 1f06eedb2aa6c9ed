"""Background work of the embedded store in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from headwater import limits as bounds
from headwater.limits import Limits
from headwater.store.embedded.folder import Reclaimed
from headwater.store.embedded.maintenance import Maintenance
from tests.virtual_time import run

FOLD_S = 20 * bounds.MAINTAIN_S


class Journal:
    """Notes what is done with the files of segments."""

    def __init__(self) -> None:
        self.number = 1
        self.done: list[str] = []

    def check_spare(self) -> None: ...

    def check_room(self, count: int) -> None: ...

    def prepare(self) -> None:
        self.done.append("prepare")

    def recycle(self, number: int) -> None:
        self.done.append(f"recycle {number}")


class SlowFolder:
    async def fold(self, number: int) -> int:
        await asyncio.sleep(FOLD_S)
        return 1

    async def reclaim(self, *, urgent: bool) -> Reclaimed:
        return Reclaimed(0, garbage=False, more=False)

    async def close(self) -> None: ...


class Owner:
    full: str | None = None
    has_unfolded = False

    def has_deletions(self, segment: int) -> bool:
        return False

    async def folded(self, segment: int) -> None: ...

    def resume(self) -> None: ...

    def refuse_held(self, error: str) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


def _at_once(work: Callable[[], None], finished: Callable[[None, BaseException | None], None]) -> None:
    work()
    finished(None, None)


def test_no_file_is_filled_with_zeros_while_a_folded_segment_is_to_become_the_next_one() -> None:
    async def scenario() -> list[str]:
        journal: Any = Journal()
        reserve = SimpleNamespace(take=lambda: None, release=lambda: None)
        parts: Any = SimpleNamespace(folder=SlowFolder(), helper=SimpleNamespace(submit=_at_once), reserve=reserve)
        maintenance = Maintenance(journal, parts, Limits(), Owner(), ())
        await maintenance.start()
        await asyncio.sleep(bounds.MAINTAIN_S / 2)
        journal.done.clear()
        maintenance.folding.add(1)
        await asyncio.sleep(FOLD_S + 2 * bounds.MAINTAIN_S)
        await maintenance.stop()
        done: list[str] = journal.done
        return done

    done = run(scenario())
    assert done[0] == "recycle 1"
    assert "prepare" in done
