"""Damaged data directories and directories with other files: refused or reported, never served."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import limits
from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import DamagedDataError
from headwater.limits import Limits
from headwater.store.embedded import index
from headwater.store.embedded.backup.backing_up import open_backup
from headwater.store.embedded.backup.restoring import restore
from headwater.store.embedded.backup.targets import DirectoryTarget
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.fold_worker import open_worker
from headwater.store.embedded.folder import IndexLockedError
from headwater.store.embedded.journal import UnknownFormatError, segment_numbers
from headwater.store.embedded.layout import DamagedIndexError, LockedIndexError, MissingFileError
from headwater.store.embedded.opening import open_store
from tests.command_line import invoke
from tests.contract.stores import InlineFolder
from tests.unit.store.embedded.test_directory import (
    FOLDED,
    UNFOLDED,
    WHOLE,
    append,
    content,
    create,
    fill,
    live,
    settled,
)


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything folded."""
    directory = tmp_path_factory.mktemp("folded") / "data"

    async def write(engine: Engine) -> None:
        await fill(engine)
        await settled(directory)

    live(directory, write, FOLDED)
    return directory


@pytest.fixture
def directory(folded: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return shutil.copytree(folded, tmp_path / "data")


def corrupt_chunk(directory: Path) -> None:
    connection = sqlite3.connect(directory / "index.db")
    connection.execute("UPDATE chunks SET data = zeroblob(length(data)) WHERE id = (SELECT max(id) FROM chunks)")
    connection.commit()
    connection.close()


def test_a_damaged_chunk_is_not_served_and_named(directory: Path) -> None:
    corrupt_chunk(directory)

    async def read(engine: Engine) -> None:
        with pytest.raises(DamagedDataError, match=r"the chunk of stream \d+ at \d+ is damaged"):
            await asyncio.gather(*[engine.read(Read(path, bytes_max=10**6)) for path in ("a", "fork")])

    live(directory, read)
    assert any("is damaged" in problem for problem in check_directory(directory, lambda _: None).problems)


def test_a_damaged_chunk_is_not_merged_into_a_good_one(directory: Path) -> None:
    corrupt_chunk(directory)

    async def grow(engine: Engine) -> None:
        for path in ("a",):
            for number in range(50):
                await append(engine, path, b"y" * 100, seq=f"9{number:04d}")
        await settled(directory)

    live(directory, grow, FOLDED)
    assert any("is damaged" in problem for problem in check_directory(directory, lambda _: None).problems)


@pytest.fixture
def displaced(directory: Path, moved: int) -> Iterator[tuple[index.IndexReader, int, int]]:
    """An index in which the last chunk of a stream begins later than it did, the stream and where the chunk began."""
    connection = index.connect(directory / "index.db", write=True)
    counts = connection.execute("SELECT count(*), stream_id, max(start) FROM chunks GROUP BY stream_id").fetchall()
    count, stream_id, start = max(counts)
    assert count > 1
    connection.execute(
        "UPDATE chunks SET start = start + ? WHERE stream_id = ? AND start = ?", (moved, stream_id, start)
    )
    reader = index.IndexReader(connection)
    yield reader, stream_id, start
    reader.close()


@pytest.mark.timeout(30)  # a search could go on without end
@pytest.mark.parametrize("moved", [1, 2, 1_000])
def test_a_search_by_time_over_a_displaced_chunk_is_an_error(displaced: tuple[index.IndexReader, int, int]) -> None:
    reader, stream_id, _ = displaced
    with pytest.raises(DamagedDataError):
        reader.position_at(stream_id, 0, 1 << 60)


@pytest.mark.parametrize("moved", [2, 1_000])
def test_bytes_before_a_displaced_chunk_are_missing(displaced: tuple[index.IndexReader, int, int]) -> None:
    reader, stream_id, start = displaced
    with pytest.raises(DamagedDataError, match="are missing"):
        reader.boundary(stream_id, start + 1)
    with pytest.raises(DamagedDataError, match="are missing"):
        reader.read(stream_id, start, start + 1, 100)


@pytest.mark.parametrize("times", [False, True], ids=["ends", "times"])
def test_damage_outside_the_data_is_found(directory: Path, times: bool) -> None:
    connection = sqlite3.connect(directory / "index.db")
    column = "times" if times else "ends"
    rows = connection.execute(f"SELECT id FROM chunks WHERE length({column}) > 0").fetchall()
    connection.execute(f"UPDATE chunks SET {column} = zeroblob(length({column})) WHERE id = ?", rows[0])
    connection.commit()
    connection.close()
    assert any("is damaged" in problem for problem in check_directory(directory, lambda _: None).problems)


@pytest.mark.parametrize(
    "change",
    [
        "path = 'b'",
        "deadline_ms = 5",
        "state = replace(CAST(state AS TEXT), 'text/plain', 'text/qlain')",
        "state = (SELECT state FROM streams WHERE path = 'fork')",
        "hash = hash + 1",
        "checksum = checksum + 1",
        "producers = producers + 1",
    ],
)
def test_a_damaged_row_is_an_error_of_its_stream_alone(
    directory: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = sqlite3.connect(directory / "index.db")
    connection.execute(f"UPDATE streams SET {change} WHERE path = 'a'")
    connection.commit()
    connection.close()

    async def use(engine: Engine) -> None:
        for _ in range(3):
            with pytest.raises(DamagedDataError) as caught:
                await engine.info("a")
            assert caught.value.status == 500
            assert not caught.value.retryable
        with pytest.raises(DamagedDataError):
            await engine.page("", "", 10)
        await create(engine, "other", body=b"served")
        await engine._store.fold()  # type: ignore[attr-defined]
        assert (await engine.read(Read("other", bytes_max=100))).data == b"served"
        assert engine.report().store.damaged_reads == 4

    live(directory, use)
    named = [record for record in caplog.records if "run: headwater check" in record.message]
    assert len(named) == len({record.message for record in named}) <= 2  # each damage is logged once
    assert check_directory(directory, lambda _: None).problems


def test_a_fork_whose_source_has_a_damaged_id_is_damaged_and_not_deleted(directory: Path) -> None:
    with contextlib.closing(sqlite3.connect(directory / "index.db")) as connection:
        connection.execute("UPDATE streams SET id = id - 8 WHERE path = 'a'")
        connection.commit()

    async def use(engine: Engine) -> None:
        for path in ("a", "fork"):
            with pytest.raises(DamagedDataError):
                await engine.read(Read(path, bytes_max=100))

    live(directory, use)


def test_a_fold_leaves_a_damaged_row_as_it_is_and_folds_the_rest(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("headwater.store.embedded.opening.SubprocessFolder", InlineFolder)

    async def use(engine: Engine) -> None:
        await engine.info("a")  # now it is in memory
        connection = sqlite3.connect(directory / "index.db")
        connection.execute("UPDATE streams SET checksum = checksum + 1 WHERE path = 'a'")
        connection.commit()
        connection.close()
        await append(engine, "a", b"kept;", seq="99999")
        await create(engine, "other", body=b"served")
        await engine._store.fold()  # type: ignore[attr-defined]

    async def look(engine: Engine) -> None:
        with pytest.raises(DamagedDataError):
            await engine.info("a")
        assert (await engine.read(Read("other", bytes_max=100))).data == b"served"

    live(directory, use)
    assert "its changes in segment" in caplog.text
    with contextlib.closing(sqlite3.connect(directory / "index.db")) as connection:
        assert connection.execute(
            "SELECT count(*) FROM chunks WHERE instr(data, CAST('kept;' AS BLOB))"
        ).fetchone() == (1,)
    live(directory, look)


def test_damaged_garbage_deletes_no_chunk_of_a_stream(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.store.embedded.opening.SubprocessFolder", InlineFolder)
    connection = sqlite3.connect(directory / "index.db")
    connection.execute("INSERT OR REPLACE INTO garbage SELECT id, 0, 9223372036854775807, 7 FROM streams")
    connection.commit()
    connection.close()

    async def look(engine: Engine) -> None:
        await create(engine, "other", body=b"x")
        await engine._store.fold()  # type: ignore[attr-defined]
        assert await content(engine, "a") == WHOLE

    assert any("of garbage is damaged" in problem for problem in check_directory(directory, lambda _: None).problems)
    live(directory, look)


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
def test_a_missing_or_empty_index_is_refused(directory: Path, content: bytes | None) -> None:
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (directory / name).unlink(missing_ok=True)
    if content is not None:
        (directory / "index.db").write_bytes(content)
    with pytest.raises(MissingFileError, match=r"index\.db is missing or empty; restore"):
        open_store(directory, UNFOLDED)
    result = invoke(["serve", "--data-dir", str(directory), "--port", "0"])
    assert result.exit_code == 1
    assert "index.db is missing or empty" in result.stderr


def test_a_missing_journal_is_refused(directory: Path) -> None:
    (directory / "journal").rename(directory.parent / "elsewhere")
    with pytest.raises(MissingFileError, match="journal is missing"):
        open_store(directory, UNFOLDED)


@pytest.mark.parametrize("folding", [FOLDED, UNFOLDED], ids=["folded", "unfolded"])
@pytest.mark.parametrize("left", [None, b""], ids=["removed", "emptied"])
def test_a_missing_format_is_refused_and_nothing_is_changed(
    directory: Path, folding: Limits, left: bytes | None
) -> None:
    """Without the file, a directory looks like one whose creation was interrupted, which is created again."""

    async def write(engine: Engine) -> None:
        await append(engine, "a", b"more")
        if folding is FOLDED:
            await settled(directory)

    live(directory, write, folding)
    (directory / "FORMAT").unlink()
    if left is not None:
        (directory / "FORMAT").write_bytes(left)
    for name in ("reserve", "journal/spare.journal"):  # as on a full disk
        (directory / name).unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in directory.rglob("*.*") if not path.name.endswith(("-shm", ".lock"))}
    for use in (lambda: open_store(directory, UNFOLDED), lambda: check_directory(directory, lambda _: None)):
        with pytest.raises(MissingFileError, match=r"FORMAT is missing or empty; restore"):
            use()
    assert {path: path.read_bytes() for path in before} == before


def test_check_says_what_to_do(directory: Path) -> None:
    async def write(engine: Engine) -> None:
        await append(engine, "a", b"more")

    live(directory, write, UNFOLDED)
    max((directory / "journal").glob("0*.journal")).unlink()
    result = invoke(["check", str(directory)])
    assert result.exit_code == 1
    assert "the segment is missing" in result.stderr
    assert "headwater restore TARGET" in result.stderr
    assert f"headwater check {directory} --salvage" in result.stderr
    assert invoke(["check", str(directory), "--salvage"]).exit_code == 0
    corrupt_chunk(directory)
    result = invoke(["check", str(directory)])
    assert result.exit_code == 1
    assert "headwater restore TARGET" in result.stderr
    assert "--salvage" not in result.stderr


def test_a_malformed_index_is_refused(directory: Path) -> None:
    (directory / "index.db-wal").unlink(missing_ok=True)
    (directory / "index.db").write_bytes(b"this is not a database" * 1000)
    with pytest.raises(DamagedIndexError, match=r"index\.db is damaged: .*; restore"):
        open_store(directory, UNFOLDED)


@pytest.fixture
def locked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose index another program has locked for good."""
    monkeypatch.setattr(limits, "INDEX_LOCK_WAIT_S", 0.01)
    other = sqlite3.connect(directory / "index.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    yield directory
    other.close()


def test_an_index_that_another_program_has_locked_is_not_called_damaged(locked: Path) -> None:
    for use in (lambda: open_store(locked, UNFOLDED), lambda: check_directory(locked, lambda _: None)):
        with pytest.raises(LockedIndexError, match=r"index\.db is locked by another program.*end it"):
            use()


def test_a_fold_says_that_another_program_has_locked_the_index(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write(engine: Engine) -> None:
        await append(engine, "a", b"more")

    live(directory, write, UNFOLDED)
    monkeypatch.setattr(limits, "INDEX_LOCK_WAIT_S", 0.01)
    worker = open_worker(directory)
    other = sqlite3.connect(directory / "index.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    [number] = segment_numbers(RealDisk(directory / "journal"))
    with pytest.raises(IndexLockedError, match="end it"):
        worker.handle(f"fold {number}").check()
    other.close()
    assert worker.handle(f"fold {number}").error is None
    worker.close()


def test_a_directory_with_other_files_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("not ours")
    with pytest.raises(UnknownFormatError, match="not empty"):
        open_store(tmp_path, UNFOLDED)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_files_are_for_their_owner_only(directory: Path, tmp_path: Path) -> None:
    target = DirectoryTarget(tmp_path / "target")
    with open_backup(directory, target) as backup:
        backup.step(3600)
    restore(target, tmp_path / "copy", None, lambda *_: None)
    for root in (directory, tmp_path / "target", tmp_path / "copy"):
        for path in (root, *root.rglob("*")):
            expected = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == expected, path


def test_a_symlinked_lock_truncates_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "data" / "owner.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        open_store(tmp_path / "data", UNFOLDED)
    assert (tmp_path / "victim").read_text() == "precious"


def test_the_fold_worker_imports_nothing_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sqlite3.py").write_text("import os; open('executed', 'w').close()\n")
    monkeypatch.chdir(tmp_path)

    async def write(engine: Engine) -> None:
        await create(engine, "a", body=b"x")
        await settled(tmp_path / "data")

    live(tmp_path / "data", write, FOLDED)
    assert not os.path.exists("executed")
    assert check_directory(tmp_path / "data", lambda _: None).problems == []


def test_the_index_is_not_mapped_into_memory(directory: Path) -> None:
    """A page that cannot be read would kill the process (SIGBUS) instead of failing one request."""
    for write in (False, True):
        connection = index.connect(directory / "index.db", write=write)
        assert connection.execute("PRAGMA mmap_size").fetchone() in (None, (0,))
        connection.close()
