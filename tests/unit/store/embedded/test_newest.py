"""Segments of the journal that were lost, cut or replaced are noticed, and what was never begun is not missed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.engine import Engine
from headwater.store.embedded import newest
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.journal import HEADER_BYTES, CorruptJournalError, segment_name
from headwater.store.embedded.journal_writer import DiskFullError, JournalWriter
from headwater.store.embedded.newest import Newest
from headwater.store.embedded.opening import open_store
from headwater.store.embedded.salvage import salvage_directory
from tests.command_line import invoke
from tests.fault.sim_disk import SimDisk
from tests.journals import NEW, at, new_journal
from tests.quick import quick
from tests.unit.store.embedded.test_directory import UNFOLDED, append, content, create, live

SLOT = 4096


@pytest.fixture(params=["stopped", "killed"])
def directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with 20 acknowledged appends that are not folded."""
    return written(tmp_path / "data", killed=request.param == "killed", monkeypatch=monkeypatch)


def written(directory: Path, *, killed: bool, monkeypatch: pytest.MonkeyPatch) -> Path:
    async def body(engine: Engine) -> None:
        await create(engine, "a")
        for number in range(20):
            await append(engine, "a", f"{number};".encode())

    with monkeypatch.context() as patch:
        if killed:
            patch.setattr(JournalWriter, "end", lambda self: None)
        live(directory, body)
    return directory


def journal(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "journal").iterdir())}


def segment(directory: Path) -> Path:
    return directory / "journal" / segment_name(1)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)


def remove_all(directory: Path) -> None:
    for path in (directory / "journal").iterdir():
        path.unlink()


def cut_in_the_middle(directory: Path) -> None:
    written_bytes = len(segment(directory).read_bytes().rstrip(b"\0"))
    with open(segment(directory), "r+b") as file:
        file.truncate(written_bytes // 2)


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "the segment is removed": (lambda d: segment(d).unlink(), segment_name(1)),
    "the segment is emptied": (lambda d: segment(d).write_bytes(b""), segment_name(1)),
    "its first sector is zeroed": (lambda d: overwrite(segment(d), 0, bytes(512)), segment_name(1)),
    "it is zeroed": (lambda d: segment(d).write_bytes(bytes(segment(d).stat().st_size)), segment_name(1)),
    "it is cut": (cut_in_the_middle, segment_name(1)),
    "all files are removed": (remove_all, newest.NAME),
    "the record is removed": (lambda d: (d / "journal" / newest.NAME).unlink(), newest.NAME),
    "the record is emptied": (lambda d: (d / "journal" / newest.NAME).write_bytes(b""), newest.NAME),
    "both slots are zeroed": (lambda d: overwrite(d / "journal" / newest.NAME, 0, bytes(2 * SLOT)), newest.NAME),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_loss_is_refused_and_nothing_is_changed(directory: Path, harm: str) -> None:
    damage, name = HARMS[harm]
    damage(directory)
    before = journal(directory)
    with pytest.raises(CorruptJournalError, match=name):
        open_store(directory, UNFOLDED)
    assert journal(directory) == before
    assert any(name in problem for problem in check_directory(directory, lambda _: None).problems)
    result = invoke(["serve", "--data-dir", str(directory), "--port", "0"])
    assert result.exit_code == 1
    assert "headwater check" in result.stderr


@pytest.mark.parametrize("harm", quick(3, HARMS))
def test_salvage_says_what_is_lost_and_the_directory_opens_again(directory: Path, harm: str) -> None:
    HARMS[harm][0](directory)
    salvaged = salvage_directory(directory)
    assert salvaged.lost
    assert check_directory(directory, lambda _: None).problems == []

    async def go_on(engine: Engine) -> None:
        if "record" in harm or "slots" in harm:
            assert await content(engine, "a") == b"".join(f"{number};".encode() for number in range(20))
        await create(engine, "b", body=b"more")

    live(directory, go_on)
    assert check_directory(directory, lambda _: None).problems == []


def test_a_segment_of_another_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (written(tmp_path / name, killed=True, monkeypatch=monkeypatch) for name in ("one", "other"))
    shutil.copy(segment(other), segment(one))
    with pytest.raises(CorruptJournalError, match="not the segment that was written here"):
        open_store(one, UNFOLDED)


def test_a_journal_of_another_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fold(engine: Engine) -> None:
        await engine._store.fold()  # type: ignore[attr-defined]

    one, other = (written(tmp_path / name, killed=False, monkeypatch=monkeypatch) for name in ("one", "other"))
    for directory in (one, other):
        live(directory, fold)
    shutil.rmtree(one / "journal")
    shutil.copytree(other / "journal", one / "journal")
    with pytest.raises(CorruptJournalError, match="different directories"):
        open_store(one, UNFOLDED)


def test_an_older_copy_of_the_segment_is_refused_after_a_stop(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    copy = tmp_path / "copy"

    async def body(engine: Engine) -> None:
        await create(engine, "a", body=b"1;")
        shutil.copy(segment(directory), copy)
        await append(engine, "a", b"2;")

    live(directory, body)
    shutil.copy(copy, segment(directory))
    with pytest.raises(CorruptJournalError, match=r"ends with batch 1, but the journal was closed after batch 2"):
        open_store(directory, UNFOLDED)


def test_an_older_copy_of_the_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "data"

    async def nothing(_: Engine) -> None:
        """Only create the directory."""

    live(directory, nothing)
    before = (directory / "journal" / newest.NAME).read_bytes()
    written(directory, killed=True, monkeypatch=monkeypatch)
    (directory / "journal" / newest.NAME).write_bytes(before)
    with pytest.raises(CorruptJournalError, match="was begun after the newest segment that is recorded"):
        open_store(directory, UNFOLDED)


def test_a_damaged_slot_is_noticed_unless_it_may_be_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = written(tmp_path / "data", killed=True, monkeypatch=monkeypatch)
    recorded = newest.read(RealDisk(directory / "journal"))
    record = directory / "journal" / newest.NAME
    whole = record.read_bytes()
    overwrite(record, (recorded.generation + 1) % 2 * SLOT, b"x")  # the older one
    with pytest.raises(CorruptJournalError, match="a slot of the record"):
        open_store(directory, UNFOLDED)
    record.write_bytes(whole)
    overwrite(record, recorded.generation % 2 * SLOT, b"x")  # the newer one: its segment is there

    async def look(engine: Engine) -> None:
        assert (await content(engine, "a")).endswith(b";19;")

    live(directory, look)
    assert not newest.read(RealDisk(directory / "journal")).torn


def test_a_segment_that_was_never_begun_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between its header and its record: it has no acknowledged batch."""
    directory = tmp_path / "data"

    def write(self: newest.NewestRecord, record: Newest) -> None:
        raise OSError(28, "No space left on device")

    async def body(engine: Engine) -> None:
        with pytest.raises(Exception, match="No space left"):
            await create(engine, "a", body=b"1;")

    with monkeypatch.context() as patch:
        patch.setattr(newest.NewestRecord, "write", write)
        patch.setattr("headwater.store.embedded.recovery._settle_record", newest_of)
        live(directory, body)
    assert segment(directory).read_bytes()[:4] == b"HWJ\n"

    async def look(engine: Engine) -> None:
        assert (await engine.page("", "", 10)).streams == ()

    live(directory, look)
    assert check_directory(directory, lambda _: None).problems == []


def newest_of(disk: RealDisk, _: object) -> newest.NewestRecord:
    return newest.open_record(disk, newest.read(disk))


@given(st.data())
def test_any_flipped_byte_of_the_record_is_noticed_or_harmless(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        disk = RealDisk(Path(folder))
        newest.replace(disk, Newest(3, 77, 5, 4096))
        record = newest.open_record(disk, newest.read(disk))
        record.write(Newest(4, 78, 9, 4096))
        record.close()
        position = data.draw(st.integers(0, 2 * SLOT - 1))
        whole = bytearray((Path(folder) / newest.NAME).read_bytes())
        whole[position] ^= data.draw(st.integers(1, 255))
        (Path(folder) / newest.NAME).write_bytes(whole)
        stored = newest.read(disk)
        if stored.newest != Newest(4, 78, 9, 4096):
            assert stored.torn
            assert stored.newest == Newest(3, 77, 5, 4096)
        elif position % SLOT < HEADER_BYTES:
            assert stored.torn


def test_a_segment_that_could_not_grow_on_a_full_disk_is_not_taken_for_one_that_was_cut() -> None:
    """A failed allocation cuts the file to what was allocated. The record must not claim more, whenever a crash is."""
    disk = SimDisk(random.Random(0))
    writer = new_journal(disk, segment_bytes=1 << 20, salt=lambda: 7)
    writer.frugal = True
    writer.place(b"\x90", at(1)).sync()
    writer.settle()
    disk.full = True
    with pytest.raises(DiskFullError):
        writer.place(bytes(400_000), at(2))
    [segment] = newest.read_segments(disk, NEW)
    assert [batch.sequence for batch in segment.batches] == [1]
