"""A standby follows a target, whatever happens to the target and to the standby, and becomes a data directory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.store.embedded import index, layout, opening
from headwater.store.embedded.backup import restoring
from headwater.store.embedded.backup.backing_up import open_backup
from headwater.store.embedded.backup.failures import BackupError, TargetError
from headwater.store.embedded.backup.identity import identity_of
from headwater.store.embedded.backup.restoring import restore
from headwater.store.embedded.backup.standby import (
    Applied,
    Standby,
    follow_target,
    open_promotion,
    open_standby,
    source_of,
)
from headwater.store.embedded.backup.targets import DirectoryTarget
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.layout import StandbyError, UnfinishedRestoreError
from headwater.store.embedded.locking import DirectoryInUseError
from headwater.store.embedded.opening import open_store
from headwater.store.embedded.salvage import salvage_directory
from tests.command_line import invoke
from tests.contract.stores import InlineFolder
from tests.quick import quick
from tests.unit.store.embedded.backup.test_backing_up import (
    FOLDED,
    UNFOLDED,
    back_up,
    live,
    now_ms,
    restored,
    stepped,
    writing,
)
from tests.unit.store.embedded.test_directory import append, create
from tests.waiting import wait_until


class Killed(BaseException):
    """The process ends here."""


class Failing(DirectoryTarget):
    """A target of which an operation, counted from now, fails or kills."""

    left = -1
    error: BaseException = Killed()

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error

    def get(self, name: str) -> bytes:
        self._count()
        return super().get(name)

    def sizes(self, prefix: str, after: str = "") -> dict[str, int]:
        self._count()
        return super().sizes(prefix, after)


@pytest.fixture(autouse=True)
def _inline_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SubprocessFolder", InlineFolder)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def target(tmp_path: Path) -> Failing:
    return Failing(tmp_path / "target")


def step(to: Path, target: DirectoryTarget) -> Applied:
    with open_standby(to, target) as standby:
        return standby.step()


def promoted(to: Path, target: DirectoryTarget) -> dict[str, bytes]:
    """Promote a standby. Returns the bytes of its streams."""
    with open_promotion(to, target) as standby:
        standby.promote()
    return contents(to)


def timeline(directory: Path) -> int:
    reader = index.IndexReader(index.connect(directory / "index.db", write=False))
    try:
        return reader.meta().timeline
    finally:
        reader.close()


def contents(directory: Path) -> dict[str, bytes]:
    assert check_directory(directory, lambda _: None).problems == []
    from tests.fault.test_backups import contents_of

    return contents_of(directory)


@pytest.mark.slow
def test_a_standby_applies_new_parts_only(directory: Path, target: Failing, tmp_path: Path) -> None:
    to = tmp_path / "standby"

    async def body(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup, open_standby(to, target) as standby:
            for number in range(150):  # parts are merged after 64
                await append(engine, "a", f"{number};".encode())
                await stepped(backup)
                if number % 7 == 0 or number > 120:
                    applied = await asyncio.to_thread(standby.step)
                    assert applied.rebuilt == (number == 0)
                    assert applied.batches == (7 if 0 < number <= 119 else 1 if number > 121 else applied.batches)

    live(directory, body)
    assert step(to, target).batches == 0
    assert promoted(to, target) == {"a": "".join(f"{number};" for number in range(150)).encode()}


def test_a_server_refuses_a_standby_until_it_is_promoted(directory: Path, target: Failing, tmp_path: Path) -> None:
    to = tmp_path / "standby"
    live(directory, writing("one;"))
    back_up(directory, target)
    step(to, target)
    with pytest.raises(StandbyError, match="headwater promote"):
        open_store(to, UNFOLDED)
    assert promoted(to, target) == {"a": b"one;"}
    assert timeline(to) > now_ms() * 1000 > timeline(directory)  # offsets of lost data match nothing
    live(to, writing("two;"))
    assert identity_of(to).parent == identity_of(directory).id
    back_up(to, target)  # into the same target, as a new timeline
    assert restored(target, tmp_path / "copy") == {"a": b"one;two;"}
    with pytest.raises(BackupError, match="is a data directory"):
        step(to, target)


def test_a_gap_and_another_timeline_need_a_new_index(directory: Path, target: Failing, tmp_path: Path) -> None:
    to = tmp_path / "standby"
    live(directory, writing("one;"))
    back_up(directory, target)
    assert step(to, target).rebuilt
    live(directory, writing("two;", folded=directory), FOLDED)  # the journal in between is gone
    assert back_up(directory, target) == 1
    assert step(to, target).rebuilt
    assert not step(to, target).rebuilt
    restore(target, tmp_path / "other", None, lambda *_: None)
    live(tmp_path / "other", writing("three;"))
    back_up(tmp_path / "other", target)
    assert step(to, target).rebuilt
    assert promoted(to, target) == {"a": b"one;two;three;"}
    assert not list(to.rglob("index-*"))


def test_a_base_in_the_target_needs_no_new_index(directory: Path, target: Failing, tmp_path: Path) -> None:
    to = tmp_path / "standby"

    async def body(engine: Engine) -> None:
        await create(engine, "a")
        with open_backup(directory, target) as backup:
            await stepped(backup)
            assert (await asyncio.to_thread(step, to, target)).rebuilt
            await append(engine, "a", b"one;")
            await engine._store.fold()  # type: ignore[attr-defined]
            assert (await asyncio.to_thread(backup.step, 0.0)).bases == 1
            await append(engine, "a", b"two;")
            await stepped(backup)
        applied = await asyncio.to_thread(step, to, target)
        assert (applied.rebuilt, applied.batches) == (False, 2)

    live(directory, body)
    assert promoted(to, target) == {"a": b"one;two;"}


@pytest.mark.parametrize("seed", quick(1, range(8)))
def test_kills_and_errors_at_any_operation(seed: int, directory: Path, target: Failing, tmp_path: Path) -> None:
    """The standby is killed, or its target fails, at random operations; writes, gaps and restores go on meanwhile."""
    rng, to, source = random.Random(seed), tmp_path / "standby", directory
    live(source, writing("begin;"))
    back_up(source, target)
    for number in range(12):
        folded = source if rng.random() < 0.3 else None
        live(source, writing(f"{number};", folded=folded), FOLDED if folded else UNFOLDED)
        if rng.random() < 0.15:
            back_up(source, target)
            source = tmp_path / f"restored{number}"
            restore(target, source, None, lambda *_: None)
            live(source, writing("restored;"))
        back_up(source, target)
        target.left, target.error = rng.randint(1, 12), rng.choice((Killed(), TargetError("target", "gone")))
        with contextlib.suppress(Killed, TargetError):
            step(to, target)
        target.left = -1
    step(to, target)
    restore(target, tmp_path / "wanted", None, lambda *_: None)
    assert promoted(to, target) == contents(tmp_path / "wanted")


@pytest.mark.parametrize("kill", ["begin_timeline", "write_format", "rmtree"])
def test_a_promotion_that_is_killed_is_repeated(
    kill: str, directory: Path, target: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "standby"
    live(directory, writing("one;"))
    back_up(directory, target)
    step(to, target)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    places = {"begin_timeline": "headwater.store.embedded.backup.restoring.begin_timeline"}
    places |= {"write_format": "headwater.store.embedded.layout.write_format", "rmtree": "shutil.rmtree"}
    with monkeypatch.context() as patch:
        patch.setattr(places[kill], killed)
        with pytest.raises(Killed), open_promotion(to, target) as standby:
            standby.promote()
    with pytest.raises(BackupError, match=r"is being promoted|is a data directory"):
        step(to, target)
    with open_promotion(to, target) as standby:
        assert standby.is_moved
    assert promoted(to, target) == {"a": b"one;"}


class Kills:
    """Kills before one of the calls that change or sync names and files, counted from the beginning."""

    CALLS = ("rename", "mkdir", "unlink", "remove", "rmdir", "fsync", "fdatasync")

    def __init__(self, patch: pytest.MonkeyPatch, left: int) -> None:
        self.left = left
        for name in self.CALLS:
            patch.setattr(os, name, self._counted(getattr(os, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return call(*args, **more)

        return counted


def test_a_promotion_that_is_killed_at_any_call_is_repeated(
    directory: Path, target: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    step(tmp_path / "standby", target)
    for number in itertools.count(1):
        to = shutil.copytree(tmp_path / "standby", tmp_path / str(number))
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            kills = Kills(patch, number)
            invoke(["promote", str(to), "--force"])
        if (to / "FORMAT").exists():  # then it is complete, and a server opens it
            assert contents(shutil.copytree(to, tmp_path / f"{number} served")) == {"a": b"one;"}
        again = invoke(["promote", str(to), "--force", "--target", target.url])
        assert again.exit_code == 0, again.output
        assert not (to / "standby").exists()
        assert contents(to) == {"a": b"one;"}
        if kills.left > 0:
            break
    assert number > 20


def test_a_restore_that_is_killed_at_any_call_is_complete_or_refused(
    directory: Path, target: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    refused = 0
    for number in itertools.count(1):
        to = tmp_path / str(number)
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            kills = Kills(patch, number)
            restore(target, to, None, lambda *_: None)
        if (to / "FORMAT").exists():
            assert contents(to) == {"a": b"one;"}
        elif to.exists() and any(to.iterdir()):
            refused += 1
            with pytest.raises(UnfinishedRestoreError):
                open_store(to, UNFOLDED)
        if kills.left > 0:
            break
    assert refused > 5


def test_a_standby_that_was_promoted_in_part_does_not_follow(
    directory: Path, target: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "standby"
    live(directory, writing("one;"))
    back_up(directory, target)
    step(to, target)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(layout, "write_format", full)
        with pytest.raises(OSError, match="no space"), open_promotion(to, target) as standby:
            standby.promote()
    with pytest.raises(BackupError, match="Finish it with: headwater promote"):
        step(to, target)
    assert promoted(to, target) == {"a": b"one;"}


def test_a_standby_follows_a_server_that_was_restored_and_salvaged(
    directory: Path, target: Failing, tmp_path: Path
) -> None:
    to, other = tmp_path / "standby", tmp_path / "other"
    live(directory, writing("one;"))
    back_up(directory, target)
    at_ms = now_ms()
    step(to, target)
    live(directory, writing("lost;"))
    back_up(directory, target)
    step(to, target)
    restore(target, other, at_ms, lambda *_: None)
    live(other, writing("two;"))
    back_up(other, target)
    assert step(to, target).rebuilt
    live(other, writing("three;", "four;"))
    max((other / "journal").glob("0*.journal")).unlink()
    assert salvage_directory(other).lost
    live(other, writing("five;"))
    back_up(other, target)
    step(to, target)
    wanted = restored(target, tmp_path / "wanted")
    assert wanted["a"].startswith(b"one;")
    assert b"lost" not in wanted["a"]
    assert wanted["a"].endswith(b"five;")
    assert promoted(to, target) == wanted
    assert timeline(to) > timeline(other)
    live(to, writing("six;"))
    assert check_directory(to, lambda _: None).problems == []


def test_what_a_kill_left_in_the_write_ahead_log_is_promoted(
    directory: Path, target: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the target: everything that the standby has applied is there."""
    to, image = tmp_path / "standby", tmp_path / "image"
    live(directory, writing("one;"))
    back_up(directory, target)
    step(to, target)

    async def more(engine: Engine) -> None:
        with open_backup(directory, target) as backup:
            for text in (b"two;", b"three;", b"four;"):
                await append(engine, "a", text)
                await stepped(backup)

    live(directory, more)

    class Image(DirectoryTarget):
        parts = 0

        def get(self, name: str) -> bytes:
            self.parts += "/journal/" in name
            if self.parts == 3:
                shutil.copytree(to, image)  # as a kill at this moment leaves it
                raise Killed
            return super().get(name)

    monkeypatch.setattr(restoring, "_portions", lambda batches: ([batch] for batch in batches))
    monkeypatch.setattr(IndexWriter, "checkpoint", lambda *_, **__: None)
    with pytest.raises(Killed), open_standby(to, Image(tmp_path / "target")) as standby:
        standby.step()
    assert next(image.glob("standby/*-wal")).stat().st_size > 0
    assert promoted(image, target) == {"a": b"one;two;three;"}


def test_a_promotion_ends_the_process_that_follows(directory: Path, target: Failing, tmp_path: Path) -> None:
    to, reports, stop = tmp_path / "standby", list[str](), threading.Event()
    live(directory, writing("one;"))
    back_up(directory, target)

    def follow() -> None:
        with open_standby(to, target) as standby:
            follow_target(standby, stop, 0.01, reports.append)

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: source_of(to) is not None)
    with pytest.raises(DirectoryInUseError):
        step(to, target)
    assert promoted(to, target) == {"a": b"one;"}
    thread.join()
    assert reports == ["the standby has a new copy of the index", "the standby is being promoted"]


def test_a_target_that_is_away_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKUP_RETRY_S", 0.001)
    outcomes: Iterable[object] = iter([TargetError("t", "away"), OSError("away"), Applied(1, False, 5)])
    stop, reports = threading.Event(), list[str]()

    class Steps(Standby):
        is_promoting = False

        def __init__(self) -> None:
            """Without a directory."""

        def step(self) -> Applied:
            outcome = next(outcomes, None)  # type: ignore[call-overload]
            if isinstance(outcome, BaseException):
                raise outcome
            stop.set()
            assert isinstance(outcome, Applied)
            return outcome

    follow_target(Steps(), stop, 0.0, reports.append)
    assert ["tries again" in text for text in reports] == [True, True, False]
    assert reports[-1] == "the standby is up to date"


def test_other_directories_are_refused(directory: Path, target: Failing, tmp_path: Path) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(BackupError, match="not empty and not a standby"):
        step(tmp_path / "full", target)
    step(tmp_path / "standby", target)
    with pytest.raises(BackupError, match=r"follows .*target\. Use another directory"):
        step(tmp_path / "standby", DirectoryTarget(tmp_path / "elsewhere"))


def test_a_target_that_is_not_mounted_may_come_back(directory: Path, target: Failing, tmp_path: Path) -> None:
    live(directory, writing("one;"))
    back_up(directory, target)
    step(tmp_path / "standby", target)
    (tmp_path / "target").rename(tmp_path / "away")
    with pytest.raises(TargetError, match="may not be mounted"):
        step(tmp_path / "standby", target)
    (tmp_path / "away").rename(tmp_path / "target")
    assert step(tmp_path / "standby", target) == Applied(0, False, step(tmp_path / "standby", target).reached_ms)
