"""Each safeguard is removed in turn, and the simulation must notice it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from headwater.engine import Engine
from headwater.engine.catalogue import Catalogue
from headwater.engine.clock import SteadyClock
from headwater.engine.loading import Loader
from headwater.engine.messages import VisibleStream
from headwater.engine.reader import DurableReader
from headwater.engine.writer import Writer
from headwater.errors import HeadwaterError
from headwater.log import deciding, row_framing
from headwater.log.commands import Append
from headwater.log.content import ContentKind
from headwater.log.events import Appended, Record
from headwater.log.state import StreamState
from headwater.server import composing
from headwater.server.composing import Composer, NamedRange
from headwater.server.following.mirror import Mirror
from headwater.server.tables import feeds, snapshots
from headwater.server.tables.active import LiveRows
from headwater.store.contract import Commit, Done
from headwater.store.embedded import index, journal, journal_writer, newest, recovery, salvage
from headwater.store.embedded.backup.failures import GapError
from headwater.store.embedded.backup.tailing import JournalTail
from headwater.store.embedded.disk import Disk, File
from headwater.store.embedded.folder import FoldInterruptedError, WorkerAnswer
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import CorruptJournalError, Segment, segment_name
from headwater.store.embedded.journal_writer import JournalFailedError, seal_tail
from headwater.store.embedded.newest import NewestRecord
from headwater.store.embedded.recovery import Unsealed
from headwater.store.embedded.store import EmbeddedStore
from headwater.store.embedded.syncing import Synced
from headwater.store.pieces import Piece, RecordEnd
from tests.fault import copies, lives
from tests.fault.lives import History
from tests.fault.oracle import BrokenPromiseError
from tests.fault.rows import check_damaged_row
from tests.fault.sim import SimFolder, SimSyncer
from tests.fault.world import STREAMS

RECORD_AT_A_TIME = 10  # bytes of a read
SEEDS_MAX = 2_000  # the search ends with the first seed that notices a sabotage, so only a failing test tries them all
FOUND = (BrokenPromiseError, CorruptJournalError, HeadwaterError, OSError, RuntimeError)


pytestmark = pytest.mark.timeout(0)


def caught(**sabotage: object) -> str:
    """The first violated guarantee or error of the server. Which seed has it changes with the simulation."""
    for seed in range(SEEDS_MAX):
        try:
            History(seed, **sabotage).run()  # type: ignore[arg-type]
        except FOUND as error:
            return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


# The journal


class NoSync(SimSyncer):
    def sync(self, file: File, synced: Synced) -> None:
        synced(None)


def test_a_missing_sync_is_caught() -> None:
    assert caught(make_syncer=NoSync)


def test_a_missing_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoChecksum:
        @staticmethod
        def crc32(data: object, value: int = 0) -> int:
            return 0

    monkeypatch.setattr(journal, "zlib", NoChecksum)
    assert caught()


class NoAtomicity(EmbeddedStore):
    """Stores the data of an append first and its producer afterwards."""

    def commit(self, batch: Sequence[Commit], done: Done) -> None:
        data, producers = [], []
        for entry in batch:
            event = entry.record[-1]
            if isinstance(event, Appended) and event.producer and event.data:
                data.append(Commit((msgspec.structs.replace(event, producer=None),), entry.after, None))
                late = msgspec.structs.replace(event, data=b"", position=event.position + len(event.data))
                producers.append(Commit((late,), entry.after, None))
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
    assert caught(make_store=NoAtomicity)


def test_descriptors_that_run_out_for_good_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "failure", JournalFailedError)
    assert caught()


# Recovery


def settle_without_sync(disk: Disk, last: Segment, sequence: int) -> Unsealed | None:
    return None if last.sealed else Unsealed(disk.open(segment_name(last.number)), last.end, last.salt)


def test_recovery_without_a_sync_of_the_page_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_sync", lambda disk, numbers: None)
    monkeypatch.setattr(recovery, "_settle", settle_without_sync)
    assert caught()


def test_recovery_that_needs_disk_space_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(disk: Disk, last: Segment, sequence: int) -> Unsealed | None:
        if not last.sealed:
            seal_tail(disk, last, 4096)
        return None

    monkeypatch.setattr(recovery, "_settle", settle)
    assert caught()


# The record of the newest segment


def test_a_record_that_is_not_written_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NewestRecord, "write", lambda self, found: None)
    assert caught()


def test_a_record_that_is_not_checked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = newest.read

    def read(disk: Disk) -> newest.Recorded:
        try:
            return real(disk)
        except CorruptJournalError:
            return newest.Recorded("", newest.Newest(0, 0, 1), 1, torn=True)

    monkeypatch.setattr(newest, "read", read)
    assert caught()


# Rows of the index


@pytest.mark.parametrize(("check", "table"), [("check_row", "streams"), ("_check_absent", "documents")])
def test_rows_that_are_not_verified_are_caught(monkeypatch: pytest.MonkeyPatch, check: str, table: str) -> None:
    monkeypatch.setattr(index, check, lambda *_: None)
    assert damaged_rows(table)


def test_producers_that_vanish_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class AnySum(int):
        def __ne__(self, other: object) -> bool:
            return False

    monkeypatch.setattr(index, "producers_sum", lambda rows: AnySum())
    assert damaged_rows("producers")


def damaged_rows(table: str) -> str:
    """The first wrong answer after damage in a row of a table."""
    for seed in range(SEEDS_MAX):
        history = History(seed)
        rng = random.Random(seed)
        try:
            history.run()
            history.disk.restart(power_lost=False)
            history.directory.index.restart()
            for _ in range(100):
                check_damaged_row(history.directory, rng, [table])
        except (BrokenPromiseError, LookupError, ValueError, msgspec.MsgspecError) as error:
            return repr(error)
    return ""


# Time


def test_a_clock_that_jumps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteadyClock, "now_ms", lambda self: int(self._wall() * 1000))
    assert "time" in caught()


# Loads


def test_loads_that_miss_a_deletion_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalogue, "removals", property(lambda self: 0, lambda self, value: None), raising=False)
    assert caught(paths=STREAMS)


def test_loads_that_miss_a_fold_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: EmbeddedStore, question: Any, query: Any = None) -> Any:
        return await (query or self._ask_index)(question)

    monkeypatch.setattr(EmbeddedStore, "_ask_current_index", ask)
    assert caught()


def test_a_refused_batch_that_is_not_rolled_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def roll_back(self: Loader, streams: object, documents: object) -> None:
        """Do nothing."""

    monkeypatch.setattr(Loader, "roll_back", roll_back)
    assert caught()


# The model


def test_documents_without_a_version_check_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = deciding._written

    def written(view: deciding.NewestStates, documents: Any) -> Record:
        return real(view, tuple(msgspec.structs.replace(document, expected=None) for document in documents))

    monkeypatch.setattr(deciding, "_written", written)
    assert caught()


def test_conditions_that_are_not_checked_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "check_end", lambda _state, _ends: None)
    assert "the tail had moved" in caught(conditional=0.3)


def test_decreasing_times_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "max", lambda before, now: now, raising=False)
    assert caught()


def test_renewals_that_are_not_recorded_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writer, "renew", lambda self, stream, now_ms: None)
    assert caught()


def test_expired_streams_that_can_be_read_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DurableReader, "_check_live", lambda self, stream, now_ms: stream.check_not_deleted())
    assert caught()


def test_ancestors_that_are_not_released_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = deciding._removal

    def removal(view: deciding.NewestStates, state: StreamState, now_ms: int) -> Record:
        return real(view, state, now_ms)[:2]

    monkeypatch.setattr(deciding, "_removal", removal)
    assert caught()


# Tables


def test_seqnos_with_gaps_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = row_framing.stored

    def stored(kind: ContentKind, body: bytes, last_seqno: int, at_ms: int) -> tuple[bytes, int]:
        return real(kind, body, last_seqno + (kind is ContentKind.ROWS and last_seqno == 7), at_ms)

    monkeypatch.setattr(row_framing, "stored", stored)
    assert "do not count" in caught()


def test_rows_that_are_not_as_they_were_sent_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = row_framing.numbered

    def stripped(changes: bytes, first_seqno: int, timestamp: str) -> tuple[bytes, int]:
        return real(b"\n".join([change.rstrip() for change in changes.split(b"\n")]), first_seqno, timestamp)

    monkeypatch.setattr(row_framing, "numbered", stripped)
    assert "not what was appended" in caught()


def test_a_compose_of_a_part_of_the_data_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = composing.Composer._prepared

    async def prepared(
        self: Composer, engine: Engine, draft: Append, sources: Sequence[NamedRange], *more: Any
    ) -> Append:
        return await real(self, engine, draft, sources[:1], *more)

    monkeypatch.setattr(composing.Composer, "_prepared", prepared)
    assert caught()


def test_a_composed_duplicate_that_is_stored_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_producer(target: VisibleStream, command: Append) -> Append:
        return msgspec.structs.replace(real(target, command), producer=None)

    real = composing._of
    monkeypatch.setattr(composing, "_of", without_producer)
    assert caught()


def test_rows_of_a_fork_that_are_looked_for_in_its_source_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def records(self: Piece) -> list[RecordEnd]:
        return [
            RecordEnd(min(run.start + run.ends[index], self.next), run.time(index))
            for run, first, last, _ in self.ranges
            for index in range(first, last)
        ]

    monkeypatch.setattr(Piece, "records", records)
    # Otherwise the first slice that is read has the records before the row, too, whatever record it is said to be in.
    monkeypatch.setattr(lives, "LIMITS", msgspec.structs.replace(lives.LIMITS, read_chunk_bytes=RECORD_AT_A_TIME))
    assert "returned other rows" in caught()


def test_a_deletion_that_is_published_before_it_is_durable_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalogue, "visible_by_id", Catalogue.by_id)
    assert "did not find it" in caught()


def test_rows_up_to_since_id_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "position_after", lambda rows, since_id: 0)
    assert "returned other rows" in caught()


def test_an_active_view_that_misses_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LiveRows.apply
    monkeypatch.setattr(LiveRows, "apply", lambda self, rows: real(self, rows.replace(b"\t-\tk5\t", b"\t+\tk5\t")))
    assert "active view" in caught()


def test_a_snapshot_that_is_not_complete_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = snapshots.write

    async def write(engine: Engine, table_id: int, position: int, last_seqno: int, rows: list[bytes]) -> object:
        return await real(engine, table_id, position, last_seqno, rows[:-1])

    monkeypatch.setattr(snapshots, "write", write)
    assert "active view" in caught()


def test_a_mirror_that_forgets_its_position_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_framing, "check_order", lambda rows, last_seqno: row_framing.last_seqno_of(rows))
    real = Mirror.__init__

    def forgetful(self: Mirror, *more: Any) -> None:
        real(self, *more)
        self.last_seqno = 0

    monkeypatch.setattr(Mirror, "__init__", forgetful)
    assert "other rows than" in caught()  # than the remote table, or than the table has


# Commands


def test_a_backup_without_the_journal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies.Following, "step", lambda self, bytes_max=0: False)
    assert caught()


def test_a_backup_that_overlooks_a_gap_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = JournalTail.read

    def read(self: JournalTail, bytes_max: int) -> Any:
        try:
            return real(self, bytes_max)
        except GapError:
            return None

    monkeypatch.setattr(JournalTail, "read", read)
    assert caught()


def test_a_fold_that_loses_bytes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = IndexWriter.put_bytes

    def put_bytes(self: IndexWriter, stream_id: int, *more: Any) -> None:
        if random.Random(stream_id).random() < 0.5:
            real(self, stream_id, *more)

    monkeypatch.setattr(IndexWriter, "put_bytes", put_bytes)
    assert caught()


def test_a_salvage_that_leaves_damage_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "_is_end", lambda *_: True)
    assert caught()


# A fold worker that dies


def test_an_answer_of_a_dead_worker_that_counts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment would be removed, although it may not be folded."""
    real = SimFolder._ask

    def ask(self: SimFolder, task: str) -> WorkerAnswer:
        try:
            return real(self, task)
        except FoldInterruptedError:
            return WorkerAnswer(task)

    monkeypatch.setattr(SimFolder, "_ask", ask)
    assert caught()
