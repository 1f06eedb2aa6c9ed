"""Backups of a directory whose engine runs in this process, and restores from them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.engine import engine as engines
from headwater.engine.clock import SteadyClock
from headwater.engine.messages import Read
from headwater.errors import OffsetLostError, TailMovedError
from headwater.limits import Limits
from headwater.log.commands import Append, Delete, ForkRequest
from headwater.log.offsets import Offset
from headwater.log.state import StreamState
from headwater.store.embedded import index, newest, opening, timelines
from headwater.store.embedded.backup import backing_up, restoring, snapshot
from headwater.store.embedded.backup.backing_up import Backup, open_backup
from headwater.store.embedded.backup.failures import (
    BackupError,
    DamagedBackupError,
    DamagedSourceError,
    MissingError,
    TargetError,
    UnfitSourceError,
)
from headwater.store.embedded.backup.formats import Base, decode
from headwater.store.embedded.backup.restoring import restore
from headwater.store.embedded.backup.status import spans_of
from headwater.store.embedded.backup.targets import DirectoryTarget
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.journal import encode_header, segment_name
from headwater.store.embedded.layout import UnfinishedRestoreError
from headwater.store.embedded.salvage import salvage_directory
from tests.contract.stores import InlineFolder
from tests.unit.store.embedded.test_directory import append, create, settled
from tests.unit.store.embedded.test_directory import live as run_engine
from tests.waiting import wait_until, wait_until_async

UNFOLDED = Limits(segment_bytes=200_000, fold_idle_s=3600, disk_reserve_bytes=65_536)
FOLDED = Limits(segment_bytes=40_000, fold_idle_s=0.02, disk_reserve_bytes=65_536)
BASE_EVERY_S = 86_400.0


def now_ms() -> int:
    return int(time.time() * 1000)


def back_up(directory: Path, target: DirectoryTarget) -> int:
    """Back up once. Returns the number of new bases."""
    with open_backup(directory, target) as backup:
        return backup.step(BASE_EVERY_S).bases


async def stepped(backup: Backup) -> int:
    """Run a step in a thread while the engine runs. Returns the number of new bases."""
    return (await asyncio.to_thread(backup.step, BASE_EVERY_S)).bases


def restored(target: DirectoryTarget, directory: Path, at_ms: int | None = None) -> dict[str, bytes]:
    """Restore and check a directory. Returns the bytes of its streams."""
    restore(target, directory, at_ms, lambda *_: None)
    assert check_directory(directory, lambda _: None).problems == []
    reader = index.IndexReader(index.connect(directory / "index.db", write=False))
    try:
        return {state.path: _bytes(reader, state) for state in reader.states()}
    finally:
        reader.close()


def _bytes(reader: index.IndexReader, state: StreamState) -> bytes:
    content = b""
    while state.start + len(content) < state.tail:
        content += reader.read(state.id, state.start + len(content), state.tail, 1 << 20).data
    return content


@pytest.fixture(autouse=True)
def _inline_fold(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Fold in this process, because a worker process takes long to start, unless the test needs one."""
    if request.function is not test_bases_that_are_taken_while_the_fold_writes:
        monkeypatch.setattr(opening, "SubprocessFolder", InlineFolder)


def live(directory: Path, body: Callable[[Engine], Awaitable[None]], limits: Limits = UNFOLDED) -> None:
    run_engine(directory, body, limits)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def target(tmp_path: Path) -> DirectoryTarget:
    return DirectoryTarget(tmp_path / "target")


async def ticked() -> None:
    """Wait until the time has changed: what comes next has a later time than all before."""
    begun_ms = now_ms()
    await wait_until_async(lambda: now_ms() > begun_ms)


Body = Callable[[Engine], Awaitable[None]]


def writing(*texts: str, path: str = "a", folded: Path | None = None) -> Body:
    async def body(engine: Engine) -> None:
        if path not in [stream.path for stream in (await engine.page("", "", 1000)).streams]:
            await create(engine, path)
        for text in texts:
            await append(engine, path, text.encode())
        if folded is not None:
            await settled(folded)

    return body


def test_a_stopped_directory(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    live(directory, writing("one;", "two;"))
    assert back_up(directory, target) == 1
    assert restored(target, tmp_path / "copy") == {"a": b"one;two;"}


@pytest.mark.parametrize("limits", [UNFOLDED, FOLDED], ids=["unfolded", "folded"])
def test_restores_to_any_time_under_load(
    directory: Path, target: DirectoryTarget, tmp_path: Path, limits: Limits
) -> None:
    """The backup is behind, ahead of and level with the fold. A restore to a time has all writes before it."""
    written: list[tuple[int, int]] = []  # time and number of acknowledged messages
    body = "y" * 100

    async def write(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup:
            bases = await stepped(backup)
            for number in range(500):
                await append(engine, "a", f"{number:06d};{body}".encode())
                written.append((engine.now_ms(), number + 1))
                if number % 50 == 49:
                    bases += await stepped(backup)
                    if limits is FOLDED and number % 100 == 99:
                        await settled(directory)
            bases += await stepped(backup)
            assert bases == 1

    live(directory, write, limits)
    for seed in range(3):
        at_ms, count = random.Random(seed).choice(written)
        content = restored(target, tmp_path / f"copy{seed}", at_ms)["a"]
        least = max(known for moment_ms, known in written if moment_ms < at_ms)
        messages = len(content) // 107
        assert least <= messages <= count + 100
        assert content == b"".join(f"{number:06d};{body}".encode() for number in range(messages))


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "not held"])
@pytest.mark.parametrize("has_header", [True, False], ids=["header", "no header"])
def test_a_segment_that_a_killed_server_had_not_begun_is_read_again(
    directory: Path,
    target: DirectoryTarget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_held: bool,
    has_header: bool,
) -> None:
    """The next server begins another segment of the same number. Its batches are copied before a time is reached."""
    live(directory, writing("one;"))
    journal = directory / "journal"
    last = newest.read(RealDisk(journal)).newest
    unbegun = journal / segment_name(last.number + 1)
    header = encode_header(last.number + 1, 1234, last.salt) if has_header else b""
    unbegun.write_bytes(header.ljust(UNFOLDED.segment_bytes, b"\0"))
    monkeypatch.setattr(limits, "BACKUP_HOLD_S", 3600)  # segments are held at the beginning only
    if not is_held:
        monkeypatch.setattr(limits, "BACKUP_HELD_SEGMENTS_MAX", -1)

    async def body(engine: Engine) -> None:
        await append(engine, "a", b"two;")
        acknowledged_ms = now_ms()
        await ticked()
        copied = await asyncio.to_thread(backup.step, BASE_EVERY_S)
        assert copied.reached_ms > acknowledged_ms
        assert (copied.batches, copied.bases) == (1, 0)
        assert restored(target, tmp_path / "copy", copied.reached_ms) == {"a": b"one;two;"}

    with open_backup(directory, target) as backup:
        backup.step(BASE_EVERY_S)
        live(directory, body)


def test_nothing_is_copied_twice(directory: Path, target: DirectoryTarget) -> None:
    live(directory, writing(*(os.urandom(500_000).hex() for _ in range(8)), folded=directory), FOLDED)
    assert back_up(directory, target) == 1
    before = target.sizes("")
    assert back_up(directory, target) == 0
    assert target.sizes("").keys() == before.keys()
    live(directory, writing("small", folded=directory), FOLDED)  # folded before the backup, so a base is needed
    with open_backup(directory, target) as backup:
        done = backup.step(BASE_EVERY_S)
    assert done.bases == 1
    assert done.bytes < sum(before.values()) / 3


def test_bases_that_are_taken_while_the_fold_writes(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    counts: list[int] = []

    async def write(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup:
            for _ in range(6):
                copying = asyncio.ensure_future(asyncio.to_thread(backup.step, 0.0))
                while not copying.done():
                    await append(engine, "a", b"z" * 2_000)
                    counts.append(engine.now_ms())
                with contextlib.suppress(UnfitSourceError):  # the writer never pauses; a live backup tries again too
                    await copying
            await stepped(backup)

    live(directory, write, FOLDED)
    bases = [name for name in target.sizes("") if "/bases/" in name]
    assert len(bases) >= 3
    taken = [int(name.rpartition("-")[2]) for name in bases]
    spans = spans_of(target)  # there may be a gap: a small segment may be removed before it is linked
    covered = [moment_ms for moment_ms in taken if any(span.from_ms <= moment_ms <= span.to_ms for span in spans)]
    assert covered
    for number, taken_ms in enumerate(covered):
        content = restored(target, tmp_path / f"copy{number}", taken_ms)["a"]
        assert len(content) // 2_000 >= sum(moment_ms < taken_ms for moment_ms in counts)


def test_a_restore_to_a_time_before_a_deletion(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    moments: list[int] = []

    async def write(engine: Engine) -> None:
        await create(engine, "precious", body=b"all of it")
        with open_backup(directory, target) as backup:
            await stepped(backup)
            await ticked()
            moments.append(engine.now_ms())
            await ticked()
            await engine.execute(Delete("precious", engine.now_ms()))
            await ticked()
            moments.append(engine.now_ms())
            await ticked()
            await stepped(backup)

    live(directory, write)
    assert restored(target, tmp_path / "before", moments[0]) == {"precious": b"all of it"}
    assert restored(target, tmp_path / "after", moments[1]) == {}
    with pytest.raises(BackupError, match=r"is not in .* Choose a time from 20.*Z to 20"):
        restored(target, tmp_path / "future", moments[1] + 100_000)
    assert not (tmp_path / "future").exists()


def test_small_parts_are_merged(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    moments: list[int] = []

    async def write(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup:
            for number in range(150):
                await append(engine, "a", f"{number:03d};".encode())
                await stepped(backup)
                moments.append(engine.now_ms())
                await ticked()
            await stepped(backup)

    live(directory, write, FOLDED)
    assert 2 <= len([name for name in target.sizes("") if "/journal/" in name]) <= 2 + 150 % 64 + 1
    for number in (20, 100, 149):
        content = restored(target, tmp_path / f"copy{number}", moments[number])["a"]
        assert content == b"".join(f"{count:03d};".encode() for count in range(number + 1))


# Interruptions


class Failing(DirectoryTarget):
    """Accepts a number of puts, then fails."""

    left = 0

    def put(self, name: str, data: bytes) -> None:
        if self.left == 0:
            raise TargetError(self.url, "no room")
        self.left -= 1
        super().put(name, data)


def test_a_backup_continues_after_every_put_that_fails(directory: Path, tmp_path: Path) -> None:
    live(directory, writing(*(os.urandom(200_000).hex() for _ in range(8)), folded=directory), FOLDED)
    live(directory, writing("one;", "two;"))
    target = Failing(tmp_path / "target")
    for puts in range(1, 30):
        with open_backup(directory, target) as backup:
            target.left = puts % 3 + 1
            try:
                backup.step(BASE_EVERY_S)
                break
            except TargetError:
                """The next one continues."""
    assert 2 < puts < 20
    whole = restored(target, tmp_path / "copy")["a"]
    assert whole.endswith(b"one;two;")
    assert len(whole) == 8 * 400_000 + 8


def test_a_failed_step_is_retried(directory: Path, tmp_path: Path) -> None:
    target = Failing(tmp_path / "target")
    target.left = -1

    async def write(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup:
            await stepped(backup)
            target.left = 0
            for text in (b"one;", b"two;"):
                await append(engine, "a", text)
                with pytest.raises(TargetError):
                    await stepped(backup)
            target.left = -1
            assert await stepped(backup) == 0

    live(directory, write)
    assert restored(target, tmp_path / "copy") == {"a": b"one;two;"}


def test_a_base_that_is_ahead_of_the_journal_when_the_backup_is_killed(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next backup continues after the copied journal, not after the base."""
    real_frozen, real_record = snapshot.frozen, Backup.record
    moments: list[int] = []

    async def write(engine: Engine) -> None:
        loop = asyncio.get_running_loop()

        async def more() -> None:
            for text in (b"two;", b"six;"):
                await append(engine, "a", text)
                moments.append(engine.now_ms())
                await ticked()
            await settled(directory)

        def frozen_later(path: Path) -> object:
            asyncio.run_coroutine_threadsafe(more(), loop).result()
            monkeypatch.setattr(Backup, "record", killed)
            return real_frozen(path)

        def killed(self: Backup) -> None:
            raise TargetError("target", "killed")

        await create(engine, "a")
        with open_backup(directory, target) as backup:
            await stepped(backup)
            await append(engine, "a", b"one;")
            monkeypatch.setattr(backing_up, "frozen", frozen_later)
            with pytest.raises(TargetError, match="killed"):
                await asyncio.to_thread(backup.step, 0.0)
            monkeypatch.setattr(backing_up, "frozen", real_frozen)
            monkeypatch.setattr(Backup, "record", real_record)
            later = Backup(directory, target, backup._journal, backup._watch, lambda *_: None)
            assert await stepped(later) == 0

    live(directory, write, FOLDED)
    assert [span.problem for span in spans_of(target)] == [""]
    assert restored(target, tmp_path / "middle", moments[0]) == {"a": b"one;two;"}
    assert restored(target, tmp_path / "end") == {"a": b"one;two;six;"}


def test_two_backups_exclude_each_other(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    live(directory, writing("one;"))
    with open_backup(directory, target):
        with pytest.raises(BackupError, match=r"the target is in use by process \d+, which backs up .+ too"):
            back_up(directory, target)
        assert back_up(directory, DirectoryTarget(tmp_path / "other")) == 1
    live(tmp_path / "data2", writing("two;"))
    with target.lock(), pytest.raises(BackupError, match=r"in use by process .*, another backup"):
        back_up(tmp_path / "data2", target)


def test_a_target_is_for_one_directory(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    live(tmp_path / "data2", writing("two;"))
    with pytest.raises(BackupError, match="has backups of another directory"):
        back_up(tmp_path / "data2", target)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.new").write_text("not ours")
    with pytest.raises(BackupError, match="is not empty and has no backup"):
        back_up(directory, DirectoryTarget(tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious.new"]


def test_a_target_of_a_killed_backup_is_accepted(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    """The backup was killed while it wrote the first file."""
    (tmp_path / "target").mkdir()
    for name in ("lock", "FORMAT.123.new"):
        (tmp_path / "target" / name).write_text("half")
    live(directory, writing("one;"))
    assert back_up(directory, target) == 1
    assert not list((tmp_path / "target").rglob("*.new"))


def test_a_restored_directory_is_backed_up_to_the_same_target(
    directory: Path, target: DirectoryTarget, tmp_path: Path
) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    backed_up_ms = now_ms()
    wait_until(lambda: now_ms() > backed_up_ms)
    live(directory, writing("lost;"))
    back_up(directory, target)
    copy = tmp_path / "copy"
    assert restored(target, copy, spans_of(target)[0].from_ms) == {"a": b"one;"}
    live(copy, writing("two;"))
    back_up(copy, target)
    assert len({span.timeline for span in spans_of(target)}) == 2
    assert restored(target, tmp_path / "newest") == {"a": b"one;two;"}
    assert restored(target, tmp_path / "older", spans_of(target)[0].to_ms) == {"a": b"one;lost;"}


def test_a_clock_that_was_fast_for_a_while(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore to a time needs all writes before it in the backup, also if the clock was fast before."""
    live(directory, writing("one;"))
    back_up(directory, target)
    monkeypatch.setattr(backing_up, "now_ms", lambda: now_ms() + 3_600_000)
    back_up(directory, target)
    monkeypatch.setattr(backing_up, "now_ms", now_ms)
    back_up(directory, target)
    assert spans_of(target)[-1].to_ms <= now_ms()
    live(directory, writing("two;"))
    with pytest.raises(BackupError, match="is not in"):
        restored(target, tmp_path / "copy", now_ms())
    back_up(directory, target)
    assert restored(target, tmp_path / "copy", spans_of(target)[-1].to_ms) == {"a": b"one;two;"}


def test_a_clock_that_was_fast_at_the_first_base(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(directory, writing("one;"))
    monkeypatch.setattr(backing_up, "now_ms", lambda: now_ms() + 3_600_000)
    back_up(directory, target)
    monkeypatch.setattr(backing_up, "now_ms", now_ms)
    live(directory, writing("two;"))
    back_up(directory, target)
    assert restored(target, tmp_path / "copy") == {"a": b"one;two;"}


@pytest.mark.parametrize("texts", [("new;",), ("new;", "own;"), ("new;", "own;", "end;")])
def test_a_salvaged_journal_begins_a_timeline(
    directory: Path, target: DirectoryTarget, tmp_path: Path, texts: tuple[str, ...]
) -> None:
    live(directory, writing("one;", "two;", "six;"))
    back_up(directory, target)
    segment = next((directory / "journal").glob("0*.journal"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"two;")] ^= 1
    segment.write_bytes(data)
    salvage_directory(directory)
    live(directory, writing(*texts))
    back_up(directory, target)
    assert restored(target, tmp_path / "copy") == {"a": f"one;{''.join(texts)}".encode()}


@pytest.mark.parametrize("limits", [UNFOLDED, FOLDED], ids=["unfolded", "folded"])
def test_a_directory_that_was_set_back_begins_a_timeline(
    directory: Path, target: DirectoryTarget, tmp_path: Path, limits: Limits
) -> None:
    """As after restoring a disk snapshot: new batches get sequences that the target already has."""
    folded = directory if limits is FOLDED else None
    live(directory, writing("one;", folded=folded), limits)
    back_up(directory, target)
    shutil.copytree(directory, tmp_path / "snapshot")
    live(directory, writing("two;", "six;", "ten;", folded=folded), limits)
    back_up(directory, target)
    shutil.rmtree(directory)
    (tmp_path / "snapshot").rename(directory)
    live(directory, writing("new;", folded=folded), limits)
    back_up(directory, target)
    assert restored(target, tmp_path / "copy") == {"a": b"one;new;"}


def lose_newest(journal: Path) -> None:
    max(journal.glob("0*.journal")).unlink()


def lose_all(journal: Path) -> None:
    for segment in journal.glob("0*.journal"):
        segment.unlink()


def lose_record(journal: Path) -> None:
    (journal / "newest").unlink()


def cut_newest(journal: Path) -> None:
    newest = max(journal.glob("0*.journal"))
    os.truncate(newest, newest.stat().st_size // 2)


def damage_middle(journal: Path) -> None:
    """Zero the first batches of the oldest segment, so that valid ones follow."""
    with open(min(journal.glob("0*.journal")), "r+b") as segment:
        segment.seek(100)
        segment.write(bytes(200))


@pytest.mark.parametrize("damage", [lose_newest, lose_all, lose_record, cut_newest, damage_middle])
@pytest.mark.parametrize("before", [False, True], ids=["first", "continued"])
def test_a_stopped_directory_without_its_whole_journal_is_not_backed_up(
    damage: Callable[[Path], None], before: bool, directory: Path, target: DirectoryTarget, tmp_path: Path
) -> None:
    live(directory, writing("one;"))
    if before:
        back_up(directory, target)
    live(directory, writing(*["x" * 100] * 10))
    damage(directory / "journal")
    with pytest.raises(DamagedSourceError, match=f"is damaged.*headwater check {directory}"):
        back_up(directory, target)
    if before:
        assert restored(target, tmp_path / "copy") == {"a": b"one;"}
    salvage_directory(directory)
    back_up(directory, target)  # what is left


def test_a_backup_that_was_interrupted_at_the_beginning(directory: Path, tmp_path: Path) -> None:
    """A base without the journal after it lacks unfolded writes."""
    live(directory, writing("one;"))
    target = Failing(tmp_path / "target")
    target.left = 4  # the format, a block, the base, the timeline
    with pytest.raises(TargetError):
        back_up(directory, target)
    assert any("/bases/" in name for name in target.sizes(""))
    assert spans_of(target) == []
    with pytest.raises(BackupError, match="has no complete backup"):
        restored(target, tmp_path / "copy")


# Faults of the target


def test_a_target_that_is_not_mounted(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    """There is an empty directory at its path for a while. Nothing is written to it."""
    root, away = tmp_path / "target", tmp_path / "away"

    async def write(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup:
            await stepped(backup)
            root.rename(away)
            root.mkdir()
            await append(engine, "a", b"one;")
            with pytest.raises(TargetError, match="may not be mounted"):
                await stepped(backup)
            root.rmdir()
            away.rename(root)
            assert await stepped(backup) == 0

    live(directory, write)
    assert restored(target, tmp_path / "copy") == {"a": b"one;"}


def test_a_missing_part(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    moments = []

    async def write(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup:
            for text in (b"one;", b"two;", b"six;"):
                await append(engine, "a", text)
                await stepped(backup)
                moments.append(engine.now_ms())
                await ticked()

    live(directory, write)
    parts = [name for name in target.sizes("") if "/journal/" in name]
    target.remove([parts[1]])
    number = int(parts[1].rpartition("/")[2].split("-")[0])
    with pytest.raises(MissingError, match=f"lacks batches {number} to {number} of the journal"):
        restored(target, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert "lacks batches" in spans_of(target)[0].problem
    assert back_up(directory, target) == 1  # the next backup notices it
    assert restored(target, tmp_path / "newest") == {"a": b"one;two;six;"}


@pytest.mark.parametrize("folder", ["blocks", "bases", "journal", "timelines"])
def test_a_changed_byte(directory: Path, target: DirectoryTarget, tmp_path: Path, folder: str) -> None:
    live(directory, writing("one;"), FOLDED)
    back_up(directory, target)
    live(directory, writing("two;"))
    back_up(directory, target)
    path = next(path for path in (tmp_path / "target").rglob("*") if path.is_file() and path.parent.name == folder)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedBackupError, match=f"{path.name} is damaged"):
        restored(target, tmp_path / "copy")


def test_a_partly_restored_directory_is_not_served(directory: Path, target: DirectoryTarget, tmp_path: Path) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    target.remove([name for name in target.sizes("") if "/blocks/" in name])
    with pytest.raises(MissingError, match=r"lacks .*/blocks/"):
        restored(target, tmp_path / "copy")
    for use in (
        lambda: live(tmp_path / "copy", writing("two;")),
        lambda: restored(target, tmp_path / "copy"),
        lambda: check_directory(tmp_path / "copy", lambda _: None),
    ):
        with pytest.raises(UnfinishedRestoreError, match="remove it, and run headwater restore again"):
            use()


# Retention

DAY_MS = 86_400_000


def set_clocks(monkeypatch: pytest.MonkeyPatch, wall_ms: int, up_ms: int) -> None:
    """Set the wall clock and the time since boot of the server and of the backup."""
    clock = functools.partial(SteadyClock, elapsed=lambda: up_ms / 1000, wall=lambda: wall_ms / 1000)
    monkeypatch.setattr(engines, "SteadyClock", clock)
    monkeypatch.setattr(backing_up, "now_ms", lambda: wall_ms)


def test_retention_keeps_what_restores_need(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bases of four days. Only files that restores to the last two days need are kept."""
    real = now_ms()
    day_ms = DAY_MS
    for day in range(4):
        set_clocks(monkeypatch, real - (3 - day) * day_ms, day * day_ms)
        live(directory, writing(f"{day};", os.urandom(50_000).hex(), folded=directory), FOLDED)
        with open_backup(directory, target) as backup:
            assert backup.step(3600).bases == 1
    before = target.sizes("")
    assert len(spans_of(target)) == 4
    with open_backup(directory, target) as backup:
        backup.step(86_400 * 2)
        assert backup.prune(keep_s=1.5 * 86_400) > 0
        assert backup.prune(keep_s=1.5 * 86_400) == 0
    left = target.sizes("")
    assert len(left) < len(before)
    assert [span.from_ms for span in spans_of(target)] == [real - day_ms * 2, real - day_ms, real]
    for number, span in enumerate(spans_of(target)):
        content = restored(target, tmp_path / f"copy{number}", span.from_ms)["a"]
        assert content.count(b";") == number + 2


@pytest.mark.parametrize("off_days", [40, -40], ids=["ahead", "behind"])
@pytest.mark.parametrize("is_corrected", [True, False], ids=["for a day", "for good"])
def test_a_wrong_wall_clock_removes_no_history(
    directory: Path, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch, off_days: int, is_corrected: bool
) -> None:
    """Four days, the third with a wrong clock. Everything is younger than the ten days to keep."""
    real = now_ms()
    for day in range(4):
        is_wrong = day == 2 or (day == 3 and not is_corrected)
        set_clocks(monkeypatch, real + (day + (off_days if is_wrong else 0)) * DAY_MS, day * DAY_MS)
        live(directory, writing(f"{day};", folded=directory), FOLDED)
        with open_backup(directory, target) as backup:
            assert backup.step(3600).bases == 1, day
            bases = {name for name in target.sizes("") if "/bases/" in name}
            assert backup.prune(keep_s=10 * 86_400) == 0, day
            assert bases <= target.sizes("").keys()
    assert len(bases) == 4


def test_a_timeline_that_ended_with_a_wrong_clock_is_kept(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = now_ms()
    set_clocks(monkeypatch, real - 40 * DAY_MS, 0)
    live(directory, writing("one;"))
    back_up(directory, target)
    set_clocks(monkeypatch, real - 40 * DAY_MS, 41 * DAY_MS)  # it was set back
    live(directory, writing("two;"))
    back_up(directory, target)
    set_clocks(monkeypatch, real, 41 * DAY_MS)
    again = tmp_path / "again"
    restore(target, again, None, lambda *_: None)
    live(again, writing("three;"))
    with open_backup(again, target) as backup:
        backup.step(BASE_EVERY_S)
        backup.prune(keep_s=10 * 86_400)
    assert len(target.sizes("timelines/")) == 2


def test_a_block_that_was_removed_is_copied_again(
    directory: Path, target: DirectoryTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may have the same block again later."""
    real = now_ms()
    set_clocks(monkeypatch, real, 0)
    live(directory, writing("one;", folded=directory), FOLDED)
    with open_backup(directory, target) as backup:
        backup.step(BASE_EVERY_S)
        first = (directory / "index.db").read_bytes()
        live(directory, writing("two;", folded=directory), FOLDED)
        backup._take_base(new_range=True)
        set_clocks(monkeypatch, real + 60_000, 60_000)
        live(directory, writing("three;"))
        assert backup.step(BASE_EVERY_S).bases == 0
        assert backup.prune(keep_s=0) > 1
        (directory / "index.db").write_bytes(first)
        backup._take_base(new_range=True)
    base = max((name for name in target.sizes("") if "/bases/" in name), key=lambda name: name.rpartition("-")[2])
    digests = decode(base, target.get(base), Base).blocks
    assert {f"{base.partition('/')[0]}/blocks/{digest.hex()}" for digest in digests} <= target.sizes("").keys()


# Offsets of lost data


async def seen(engine: Engine, path: str = "a") -> tuple[Offset, int, bytes]:
    """The tail, the version of the entity tag there, and all bytes."""
    info = await engine.info(path)
    whole = (await engine.read(Read(path, bytes_max=1 << 20))).data
    return info.offset(info.tail), info.version(info.tail), whole


def test_offsets_of_data_that_a_restore_lost_are_refused(
    directory: Path, target: DirectoryTarget, tmp_path: Path
) -> None:
    lost: list[tuple[Offset, int, bytes]] = []
    kept: list[tuple[Offset, int, bytes]] = []

    async def first(engine: Engine) -> None:
        await writing("one", "two")(engine)
        kept.append(await seen(engine))

    async def second(engine: Engine) -> None:
        await append(engine, "a", b"lost1")
        await append(engine, "a", b"lost2")
        lost.append(await seen(engine))

    async def after(engine: Engine) -> None:
        [(tail, version, _)], [(lost_tail, lost_version, lost_bytes)] = kept, lost
        assert (await seen(engine))[:2] == (tail, version)  # the same bytes have the same names
        for grown in (b"new01", b"new02", b"new03"):
            with pytest.raises(OffsetLostError):
                await engine.read(Read("a", lost_tail))
            with pytest.raises(OffsetLostError):
                await engine.read(Read("a", tail, until=lost_tail))
            with pytest.raises(TailMovedError):
                await engine.execute(Append("a", engine.now_ms(), b"x", "text/plain", ends=(lost_tail,)))
            with pytest.raises(OffsetLostError):
                await create(engine, "fork", fork=ForkRequest("a", lost_tail))
            reply = await engine.execute(Append("a", engine.now_ms(), grown, "text/plain"))
            assert reply.tail is not None
            assert reply.tail.id > lost_tail.id
            assert (await engine.read(Read("a", tail, bytes_max=1 << 20))).data.startswith(b"new01")
        info = await engine.info("a")
        assert info.tail > len(lost_bytes)
        assert info.version(lost_tail.position) != lost_version
        await create(engine, "later")
        assert (await engine.info("later")).id > info.offset(info.tail).id

    live(directory, first)
    back_up(directory, target)
    live(directory, second)
    restore(target, tmp_path / "copy", None, lambda *_: None)
    live(tmp_path / "copy", after)
    live(tmp_path / "copy", writing("more"))  # the names are durable
    assert check_directory(tmp_path / "copy", lambda _: None).problems == []
    names = state_of(tmp_path / "copy").names
    [(_, _, kept_bytes)], [(lost_tail, _, _)] = kept, lost
    assert [one.start for one in names.timelines] == [len(kept_bytes)]
    with pytest.raises(OffsetLostError):
        names.resolve(1000, lost_tail, names.timelines[-1].id)


def state_of(directory: Path) -> StreamState:
    states: list[StreamState] = []

    async def body(engine: Engine) -> None:
        state = await engine._store.load("a")
        assert state is not None
        states.append(state)

    live(directory, body)
    return states[0]


def test_a_timeline_is_later_than_all_data_of_the_target_although_the_clock_is_behind(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(directory, writing("one"))
    back_up(directory, target)
    reached_us = now_ms() * 1000 - 60_000_000
    monkeypatch.setattr(restoring, "now_us", lambda: 0)
    for name in ("copy", "copy2"):
        restore(target, tmp_path / name, None, lambda *_: None)
        reader = index.IndexReader(index.connect(tmp_path / name / "index.db", write=False))
        assert reader.meta().timeline > max(reached_us, reader.meta().next_id)
        reader.close()


def test_check_finds_data_of_a_timeline_that_the_index_lacks(
    directory: Path, target: DirectoryTarget, tmp_path: Path
) -> None:
    live(directory, writing("one"))
    back_up(directory, target)
    restore(target, tmp_path / "copy", None, lambda *_: None)
    live(tmp_path / "copy", writing("two"))
    connection = index.connect(tmp_path / "copy" / "index.db", write=True)
    index.write_meta(connection, "timeline", 0)
    connection.close()
    [problem] = check_directory(tmp_path / "copy", lambda _: None).problems
    assert "which the index lacks" in problem


def timeline_of(directory: Path) -> int:
    reader = index.IndexReader(index.connect(directory / "index.db", write=False))
    try:
        return reader.meta().timeline
    finally:
        reader.close()


def test_restores_of_the_same_backup_begin_different_timelines(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no clock tells them apart: ids of the directory are ahead of it, as after a promotion."""
    live(directory, writing("one"))
    back_up(directory, target)
    monkeypatch.setattr(restoring, "now_us", lambda: 0)
    for name in ("copy", "copy2"):
        restore(target, tmp_path / name, None, lambda *_: None)
    assert timeline_of(tmp_path / "copy") != timeline_of(tmp_path / "copy2")


def test_a_timeline_that_began_after_the_base_is_restored(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise data that is appended after the restore would continue a timeline of lost data."""
    live(directory, writing("one", "two", "three"))
    back_up(directory, target)
    ahead_us = (now_ms() + 86_400_000) * 1000  # the clock is ahead for a moment
    monkeypatch.setattr(timelines, "now_us", lambda: ahead_us)
    began = timelines.begin_timeline(directory)
    live(directory, writing("four"))
    assert back_up(directory, target) == 0
    assert restored(target, tmp_path / "copy") == {"a": b"onetwothreefour"}
    live(tmp_path / "copy", writing("five"))
    assert timeline_of(tmp_path / "copy") > began
    assert [one.id for one in state_of(tmp_path / "copy").timelines] == [began, timeline_of(tmp_path / "copy")]


def test_a_later_timeline_is_the_newest_although_its_clock_is_behind(
    directory: Path, target: DirectoryTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    restore(target, tmp_path / "copy", None, lambda *_: None)
    live(tmp_path / "copy", writing("two;"))
    real = backing_up.now_ms
    monkeypatch.setattr(backing_up, "now_ms", lambda: real() - 3_600_000)
    back_up(tmp_path / "copy", target)
    assert restored(target, tmp_path / "copy2") == {"a": b"one;two;"}
