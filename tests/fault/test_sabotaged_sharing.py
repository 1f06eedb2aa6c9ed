"""Each rule of the engine over a shared store is broken in turn, and the simulation must notice it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headwater.engine.catalogue import LoadedStream
from headwater.engine.committer import Committer
from headwater.engine.freshness import Freshness, VersionChecks
from headwater.engine.reader import DurableReader
from headwater.engine.readings import Readings
from headwater.engine.sharing import Sharing
from headwater.engine.watching import Watcher
from headwater.engine.writer import Writer
from headwater.store.contract import Key
from tests.fault.shared_lives import SharedHistory
from tests.fault.shared_sim import SimDatabase, SimSharedStore
from tests.quick import quick

SEEDS_MAX = 2000  # the search ends with the first seed that notices a sabotage

pytestmark = pytest.mark.timeout(0)


def errors_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    """404, 409 and other answers without events are said from memory."""
    patch.setattr(Writer, "_answer_when_certain", lambda _, __, answer, answered, ___: answered(answer))


def reads_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    async def unchecked(_: Freshness, __: LoadedStream) -> None:
        """The stream is taken for current."""

    patch.setattr(Freshness, "recheck", unchecked)


def documents_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    async def document(reader: DurableReader, key: str) -> Any:
        return (await reader._loader.load_document(key)).durable

    patch.setattr(DurableReader, "document", document)


def a_check_joins_a_query_that_was_sent(patch: pytest.MonkeyPatch) -> None:
    version, ask = VersionChecks.version, VersionChecks._ask
    sent: dict[int, tuple[dict[Key, int], asyncio.Future[dict[Key, int]]]] = {}  # the last query of each server

    async def joining(self: VersionChecks, key: Key, known: int) -> int:
        commits, answer = sent.get(id(self), ({}, None))
        if answer is not None and not answer.done() and key in commits:
            return (await asyncio.shield(answer)).get(key, commits[key])
        return await version(self, key, known)

    async def noted(self: VersionChecks, known: dict[Key, int], answer: asyncio.Future[dict[Key, int]]) -> None:
        sent[id(self)] = known, answer
        await ask(self, known, answer)

    patch.setattr(VersionChecks, "version", joining)
    patch.setattr(VersionChecks, "_ask", noted)


def a_check_replaces_a_state_with_pending_events(patch: pytest.MonkeyPatch) -> None:
    """The publication of the events adds their bytes to a tail that has them already."""

    async def recheck(self: Freshness, stream: LoadedStream) -> None:
        state = await self._store.load_id(stream.id)
        if state is None:
            self.drop(stream)
        elif state.version > stream.durable_version:
            stream.tail, stream.closed = state.tail, state.closed

    patch.setattr(Freshness, "recheck", recheck)


def the_epoch_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A late transaction is stored, although its writer was told that it is not."""
    patch.setattr(SimDatabase, "is_current", lambda *_: True)


def what_became_of_a_lost_batch_is_guessed(patch: pytest.MonkeyPatch) -> None:
    async def guessed(self: SimSharedStore, _: Any) -> list[int]:
        await self._fenced()
        return []

    patch.setattr(SimSharedStore, "_resolved", guessed)


def a_batch_is_stored_whatever_became_of_the_one_before(patch: pytest.MonkeyPatch) -> None:
    """It was decided on the states after that one, and its server was told that it is not stored."""
    patch.setattr(SimDatabase, "follows", lambda *_: True)


def states_that_a_decision_only_reads_are_not_named(patch: pytest.MonkeyPatch) -> None:
    """A record is stored whatever was decided on."""
    note = Readings.note

    def forgetful(self: Readings, record: Any) -> None:
        note(self, record)
        self.expects.clear()

    patch.setattr(Readings, "note", forgetful)


def later_records_on_the_same_states_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "withdraw_sharing", lambda *_: [])


def records_that_depend_on_others_overtake_them(patch: pytest.MonkeyPatch) -> None:
    """The version that they expect may be that of another server's record."""

    def overtaking(self: Committer, add: Callable[[], None]) -> None:
        waiting, self._waiting = self._waiting, []
        add()
        self._is_paused = False
        self._start()
        self._waiting = waiting + self._waiting
        if self._waiting and not self._in_progress and not self._scheduled:
            self._start()

    patch.setattr(Committer, "commit_alone", overtaking)


def records_of_a_batch_that_was_not_stored_wait_behind_others(patch: pytest.MonkeyPatch) -> None:
    """What was decided after them may be stored before them."""
    fail = Committer._fail

    def misplacing(self: Committer, batch: Any, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, []
        fail(self, batch, error)
        self._waiting = waiting + self._waiting

    patch.setattr(Committer, "_fail", misplacing)


def outdated_states_are_not_held(patch: pytest.MonkeyPatch) -> None:
    """Commands are decided on states that are being taken back."""
    restore = Sharing.restore

    def careless(self: Sharing, *arguments: Any, **more: Any) -> None:
        restore(self, *arguments, **more)
        self._held = _Nothing()

    patch.setattr(Sharing, "restore", careless)


class _Nothing(dict[Any, Any]):
    """A dictionary that keeps nothing, and allows everything to be deleted."""

    def __ior__(self, other: Any) -> Any:  # type: ignore[misc]
        return self

    def __delitem__(self, key: Any) -> None:
        """There is nothing."""


def expiry_is_said_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    async def unstored(_: DurableReader, __: LoadedStream) -> bool:
        return False

    patch.setattr(DurableReader, "_expire", unstored)
    patch.setattr(Writer, "_expired_path", lambda *_: None)


def live_readers_are_not_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Freshness, "tell", lambda *_: None)


def announcements_are_trusted(patch: pytest.MonkeyPatch) -> None:
    """There is no poll behind them."""

    async def nothing(_: Watcher) -> None:
        """Nobody asks."""

    patch.setattr(Watcher, "_poll_live", nothing)


def a_new_reader_is_not_looked_after(patch: pytest.MonkeyPatch) -> None:
    """What was announced before it followed the stream is lost, with the poll."""
    patch.setattr(Watcher, "look", lambda *_: None)


def ids_of_a_path_need_not_rise(patch: pytest.MonkeyPatch) -> None:
    """An id is used although a later stream was created and deleted at the path since it was taken."""
    patch.setattr(SimDatabase, "is_too_old", lambda *_: False)


SABOTAGES: list[Callable[[pytest.MonkeyPatch], None]] = [
    errors_are_not_checked,
    reads_are_not_checked,
    documents_are_not_checked,
    a_check_joins_a_query_that_was_sent,
    a_check_replaces_a_state_with_pending_events,
    the_epoch_is_ignored,
    what_became_of_a_lost_batch_is_guessed,
    a_batch_is_stored_whatever_became_of_the_one_before,
    records_of_a_batch_that_was_not_stored_wait_behind_others,
    states_that_a_decision_only_reads_are_not_named,
    later_records_on_the_same_states_are_kept,
    records_that_depend_on_others_overtake_them,
    outdated_states_are_not_held,
    expiry_is_said_before_it_is_stored,
    live_readers_are_not_woken,
    announcements_are_trusted,
    a_new_reader_is_not_looked_after,
    ids_of_a_path_need_not_rise,
]


@pytest.mark.parametrize("sabotage", quick(2, SABOTAGES))
def test_a_sabotage_of_sharing_is_noticed(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            SharedHistory(seed).run()
        except Exception:  # noqa: BLE001 - a violated guarantee, or an error of a server
            return
    pytest.fail(f"{SEEDS_MAX} histories went well")
