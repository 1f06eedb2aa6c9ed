"""Each safeguard of compaction is removed in turn, and the simulation must notice it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.engine import rows
from headwater.engine.messages import RowPosition, RowReply
from headwater.log import deciding, offsets
from headwater.log import state as log_state
from headwater.log.offsets import Names, Snapshot
from headwater.log.state import StreamState
from headwater.server.compacting import contents
from tests.fault.compaction_lives import CompactedHistory
from tests.quick import quick

SEEDS_MAX = 400  # the search ends with the first seed that notices a sabotage

pytestmark = pytest.mark.timeout(0)


def offsets_without_an_id_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """An offset in a snapshot could be one of the stream."""

    def at(names: Names, position: int) -> offsets.Offset:
        if position < 0:
            return offsets.Offset(names.stream_id, position - offsets.SNAPSHOTS_FIRST)
        return offsets.Offset(names._id(position), position)

    patch.setattr(Names, "at", at)


def no_grace_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamState, "replaced_until", lambda state, _: max([one.next for one in state.snapshots], default=0))
    patch.setattr(StreamState, "_grace_ms", lambda state: state.snapshots[-1].at_ms)


def forks_without_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    inherited = Names.inherited

    def without(names: Names, position: int) -> Names:
        return msgspec.structs.replace(inherited(names, position), snapshots=())

    patch.setattr(Names, "inherited", without)


def snapshots_of_forks_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    fork = deciding._fork

    def uncounted(*arguments: Any) -> Any:
        created, events = fork(*arguments)
        return created, events[:2]

    patch.setattr(deciding, "_fork", uncounted)


def snapshots_are_never_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(deciding, "_released", lambda *_: ())


def what_was_trimmed_meanwhile_comes_back(patch: pytest.MonkeyPatch) -> None:
    compact = deciding._compact

    def careless(states: Any, state: StreamState, command: Any) -> Any:
        return compact(states, state, msgspec.structs.replace(command, first=state.first))

    patch.setattr(deciding, "_compact", careless)


def reading_continues_before_the_snapshot_ends(patch: pytest.MonkeyPatch) -> None:
    def too_early(piece: Any, part: Any) -> Any:
        return msgspec.structs.replace(piece, next=max(0, part.next - 1)) if piece.next == part.end else piece

    patch.setattr("headwater.engine.reader._at_next", too_early)


def deletions_that_are_missing_are_not_known(patch: pytest.MonkeyPatch) -> None:
    finish = contents.TableContent.finish

    def forgetful(content: contents.TableContent) -> contents.ContentSize:
        return msgspec.structs.replace(finish(content), complete_since=0)

    patch.setattr(contents.TableContent, "finish", forgetful)


def deleted_entities_are_live(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contents, "DELETE", "no operation")


def a_trim_keeps_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    def kept(snapshots: tuple[Snapshot, ...], position: int, *, keeps_snapshot: bool) -> tuple[Snapshot, ...]:
        return tuple([one for one in snapshots if one.next < position])

    for module in (log_state, deciding):
        patch.setattr(module, "dropped_by", kept)


def rows_of_a_snapshot_follow_any_row(patch: pytest.MonkeyPatch) -> None:
    async def careless(self: rows.Rows, stream: Any, since_id: int) -> Any:
        table = stream.info()
        snapshot = next((one for one in table.names.snapshots if one.next == table.first), None)
        if snapshot is None:
            return RowReply(table, RowPosition(table.first), since_id)
        return RowReply(table, await self._search_snapshot(stream, snapshot, since_id), since_id)

    patch.setattr(rows.Rows, "_find_in_snapshot", careless)


def a_new_reader_gets_the_oldest_snapshot_and_what_follows_the_newest(patch: pytest.MonkeyPatch) -> None:
    parts = Names.parts

    def wrong(names: Names, start: int, end: int) -> Any:
        for part in parts(names, start, end):
            yield part._replace(owner=names.snapshots[0].id) if part.start < 0 else part

    patch.setattr(Names, "parts", wrong)


SABOTAGES = [
    deletions_that_are_missing_are_not_known,
    forks_without_the_snapshot,
    no_grace_time,
    offsets_without_an_id_of_their_own,
    snapshots_of_forks_are_not_counted,
    snapshots_are_never_released,
    what_was_trimmed_meanwhile_comes_back,
    reading_continues_before_the_snapshot_ends,
    deleted_entities_are_live,
    a_trim_keeps_the_snapshot,
    rows_of_a_snapshot_follow_any_row,
    a_new_reader_gets_the_oldest_snapshot_and_what_follows_the_newest,
]


@pytest.mark.parametrize("sabotage", quick(2, SABOTAGES))
def test_a_sabotage_is_noticed(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            CompactedHistory(seed).run()
        except Exception:  # noqa: BLE001 - a violated guarantee, or an error of the server
            return
    pytest.fail(f"{SEEDS_MAX} histories went well")


def test_nothing_is_noticed_without_a_sabotage() -> None:
    """The histories of the first seeds, which the sabotages fail, go well."""
    for seed in range(3):
        CompactedHistory(seed).run()
