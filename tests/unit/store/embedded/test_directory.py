"""Data directories: restarted, damaged, checked, salvaged and refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from headwater import limits as bounds
from headwater.engine import Engine
from headwater.engine.messages import Read
from headwater.errors import OffsetLostError, SequenceRegressionError, TooManyStreamsError
from headwater.limits import Limits
from headwater.log.commands import Append, Create, Delete, ForkRequest
from headwater.log.content import ContentKind
from headwater.log.events import Created
from headwater.log.offsets import Offset
from headwater.log.producers import ProducerTuple
from headwater.store.embedded import index
from headwater.store.embedded.checking import check_directory
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.index import IndexReader, write_meta
from headwater.store.embedded.journal import CorruptJournalError, UnknownFormatError, encode_records
from headwater.store.embedded.journal_writer import JournalWriter
from headwater.store.embedded.locking import DirectoryInUseError
from headwater.store.embedded.opening import open_store
from headwater.store.embedded.salvage import salvage_directory
from tests.command_line import invoke
from tests.contract.stores import InlineFolder
from tests.journals import at, new_journal
from tests.waiting import LIMIT_S, wait_until_async

UNFOLDED = Limits(fold_idle_s=3600)
FOLDED = Limits(segment_bytes=40_000, fold_idle_s=0.05)


def live(directory: Path, body: Callable[[Engine], Awaitable[None]], limits: Limits = UNFOLDED) -> None:
    async def main() -> None:
        engine = Engine(open_store(directory, limits), limits)
        await engine.start()
        try:
            await body(engine)
        finally:
            await engine.stop()

    asyncio.run(main())


async def create(engine: Engine, path: str, **more: object) -> None:
    await engine.execute(
        Create(path=path, now_ms=engine.now_ms(), content_type="text/plain", **more)  # type: ignore[arg-type]
    )


async def append(engine: Engine, path: str, body: bytes, **more: object) -> None:
    await engine.execute(Append(path, engine.now_ms(), body, "text/plain", **more))  # type: ignore[arg-type]


async def content(engine: Engine, path: str) -> bytes:
    stream = await engine.info(path)
    whole = b""
    while len(whole) < stream.tail:
        whole += (await engine.read(Read(path, stream.offset(len(whole)), bytes_max=10_000))).data
    return whole


async def fill(engine: Engine) -> None:
    await create(engine, "a", body=b"start;", ttl_s=1000)
    await create(engine, "gone")
    for number in range(200):
        await append(
            engine, "a", f"{number}:{'x' * 300};".encode(), producer=ProducerTuple("p", 0, number), seq=f"{number:05d}"
        )
    await create(engine, "fork", fork=ForkRequest("a"), body=b"own;")
    await append(engine, "fork", b"", close=True)
    await engine.execute(Delete("gone", engine.now_ms()))


WHOLE = b"start;" + b"".join(f"{number}:{'x' * 300};".encode() for number in range(200))


async def settled(directory: Path) -> None:
    """Wait until everything is folded."""
    await wait_until_async(lambda: not list((directory / "journal").glob("0*.journal")), "everything is folded")


@pytest.mark.slow
@pytest.mark.parametrize("limits", [UNFOLDED, FOLDED], ids=["unfolded", "folded"])
def test_all_data_is_there_after_a_restart(tmp_path: Path, limits: Limits) -> None:
    async def first(engine: Engine) -> None:
        await fill(engine)
        if limits is FOLDED:
            await settled(tmp_path / "data")

    async def second(engine: Engine) -> None:
        assert await content(engine, "a") == WHOLE
        assert await content(engine, "fork") == WHOLE + b"own;"
        stream = await engine.info("a")
        assert stream.ttl_s == 1000
        assert (await engine.info("fork")).closed
        reply = await engine.execute(
            Append("a", engine.now_ms(), b"again", "text/plain", ProducerTuple("p", 0, 199), "00199")
        )
        assert reply.duplicate
        with pytest.raises(SequenceRegressionError):
            await append(engine, "a", b"late", seq="00199")
        page = await engine.page("", "", 10)
        assert [stream.path for stream in page.streams] == ["a", "fork"]
        await create(engine, "later")
        assert (await engine.info("later")).id > stream.id

    live(tmp_path / "data", first, limits)
    live(tmp_path / "data", second, limits)
    report = check_directory(tmp_path / "data", lambda _: None)
    assert report.problems == []
    assert report.streams == 3


def journal_file(directory: Path) -> Path:
    return max((directory / "journal").glob("0*.journal"))


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


def test_damage_before_the_tail_stops_the_start_and_can_be_salvaged(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    live(directory, fill)
    path = journal_file(directory)
    damage(path, 20_000)
    with pytest.raises(CorruptJournalError) as error:
        open_store(directory, UNFOLDED)
    assert error.value.file == str(path)
    assert 19_000 < error.value.position <= 20_000
    result = invoke(["serve", "--data-dir", str(directory), "--port", "0"])
    assert result.exit_code == 1
    assert f"{path} is corrupt at byte {error.value.position}" in result.stderr
    assert "headwater check" in result.stderr
    assert any(str(path) in problem for problem in check_directory(directory, lambda _: None).problems)

    salvaged = salvage_directory(directory)
    assert salvaged.kept_batches > 10
    assert salvaged.set_aside == [f"{path.name}.damaged"]
    assert check_directory(directory, lambda _: None).problems == []

    async def look(engine: Engine) -> None:
        kept = await content(engine, "a")
        assert WHOLE.startswith(kept)
        assert len(kept) > 10_000

    live(directory, look)


@pytest.mark.parametrize("cut", [1, 3, 20, 100, 300])
def test_a_torn_tail_is_cut(tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "data"
    monkeypatch.setattr(JournalWriter, "end", lambda self: None)  # as after a kill, the segment is not sealed

    async def write(engine: Engine) -> None:
        await create(engine, "a")
        await append(engine, "a", b"first;")
        await append(engine, "a", b"x" * 500)

    live(directory, write)
    path = journal_file(directory)
    data = path.read_bytes().rstrip(b"\0")
    torn = data[:-cut] + bytes(random.Random(cut).randbytes(cut))
    path.write_bytes(torn.ljust(path.stat().st_size, b"\0"))
    monkeypatch.undo()

    async def look(engine: Engine) -> None:
        assert await content(engine, "a") == b"first;"
        await append(engine, "a", b"second;")

    async def again(engine: Engine) -> None:
        assert await content(engine, "a") == b"first;second;"

    live(directory, look)
    live(directory, again)


def test_check_finds_damaged_chunks_and_references(tmp_path: Path) -> None:
    directory = tmp_path / "data"

    async def write(engine: Engine) -> None:
        await fill(engine)
        await settled(directory)

    live(directory, write, FOLDED)
    connection = sqlite3.connect(directory / "index.db")
    connection.execute("UPDATE chunks SET data = zeroblob(length(data)) WHERE id = (SELECT min(id) FROM chunks)")
    connection.execute("DELETE FROM streams WHERE path = 'fork'")
    connection.commit()
    connection.close()
    problems = check_directory(directory, lambda _: None).problems
    assert any("is damaged" in problem for problem in problems)
    assert any("records 1 forks but has 0" in problem for problem in problems)
    result = invoke(["check", str(directory)])
    assert result.exit_code == 1


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    async def body(_: Engine) -> None:
        with pytest.raises(DirectoryInUseError, match="in use by process"):
            open_store(tmp_path / "data", UNFOLDED)
        with pytest.raises(DirectoryInUseError):
            check_directory(tmp_path / "data", lambda _: None)

    live(tmp_path / "data", body)


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    live(directory, fill)
    (directory / "FORMAT").write_text("headwater data directory, format 99\n")
    with pytest.raises(UnknownFormatError, match="format 99"):
        open_store(directory, UNFOLDED)
    for older in (1, 2, 3):
        (directory / "FORMAT").write_text(f"headwater data directory, format {older}\n")
        with pytest.raises(UnknownFormatError, match=f"format {older}' of an unreleased version"):
            open_store(directory, UNFOLDED)
    (directory / "FORMAT").write_text("headwater data directory, format 4\n")
    connection = sqlite3.connect(directory / "index.db")
    write_meta(connection, "format", 7)
    connection.commit()
    connection.close()
    with pytest.raises(UnknownFormatError, match="format 7"):
        open_store(directory, UNFOLDED)
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("not ours")
    with pytest.raises(UnknownFormatError, match="not empty"):
        open_store(other, UNFOLDED)
    result = invoke(["check", str(tmp_path / "nowhere")])
    assert result.exit_code == 1
    assert "not a Headwater data directory" in result.stderr


@pytest.mark.slow
def test_space_of_deleted_streams_is_reclaimed(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    limits = Limits(segment_bytes=400_000, fold_idle_s=0.05)

    def size() -> int:
        connection = sqlite3.connect(directory / "index.db")
        [pages], [page] = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size")]
        connection.close()
        return int(pages * page)

    async def body(engine: Engine) -> None:
        await create(engine, "big")
        for _ in range(100):
            await append(engine, "big", random.Random(1).randbytes(50_000))
        await wait_until_async(lambda: size() > 4_500_000)
        await engine.execute(Delete("big", engine.now_ms()))
        await wait_until_async(lambda: size() < 1_000_000)

    live(directory, body, limits)


def three_segments(directory: Path) -> list[Path]:
    """A directory whose journal has three sealed, unfolded segments."""
    open_directory(directory)
    disk = RealDisk(directory / "journal")
    writer = new_journal(disk, segment_bytes=4096, salt=iter(range(1, 9)).__next__)
    for number in range(3):
        event = Created(id=number + 1, path=f"s{number}", content_type="a/b", kind=ContentKind.BINARY, at_ms=1)
        writer.place(encode_records([(event,)]), at(1)).sync()
        writer.settle()
        writer.roll()
    return sorted((directory / "journal").glob("0*.journal"))


def open_directory(directory: Path) -> None:
    async def body(_: Engine) -> None:
        """Only create the directory."""

    live(directory, body)


def names(directory: Path) -> list[str]:
    paths: list[str] = []

    async def body(engine: Engine) -> None:
        page = await engine.page("", "", 10)
        paths.extend(stream.path for stream in page.streams)

    live(directory, body)
    return paths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "left"),
    [
        (lambda paths: damage(paths[1], len(paths[1].read_bytes().rstrip(b"\0")) - 2), ["s0", "s1"]),  # its seal
        (lambda paths: damage(paths[1], 4), ["s0"]),  # its header
        (lambda paths: damage(paths[1], 60), ["s0"]),  # its batch
        (lambda paths: paths[1].unlink(), ["s0"]),
        (lambda paths: damage(paths[2], 3), ["s0", "s1"]),  # the header of the newest
        (lambda paths: paths[2].unlink(), ["s0", "s1"]),
        (lambda paths: paths[2].write_bytes(b""), ["s0", "s1"]),
        (lambda paths: paths[2].write_bytes(bytes(paths[2].stat().st_size)), ["s0", "s1"]),
        (lambda paths: paths[0].unlink(), []),
    ],
)
def test_salvage_leaves_a_directory_that_opens(
    tmp_path: Path, harm: Callable[[list[Path]], None], left: list[str]
) -> None:
    directory = tmp_path / "data"
    harm(three_segments(directory))
    with pytest.raises((CorruptJournalError, UnknownFormatError)):
        open_store(directory, UNFOLDED)
    salvage_directory(directory)
    assert check_directory(directory, lambda _: None).problems == []
    assert names(directory) == left


def test_an_undamaged_journal_is_not_touched_by_salvage(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    three_segments(directory)
    salvaged = salvage_directory(directory)
    assert (salvaged.kept_batches, salvaged.dropped_bytes, salvaged.set_aside) == (3, 0, [])
    assert names(directory) == ["s0", "s1", "s2"]
    assert timeline(directory) == 0


def timeline(directory: Path) -> int:
    reader = index.IndexReader(index.connect(directory / "index.db", write=False))
    try:
        return reader.meta().timeline
    finally:
        reader.close()


def test_offsets_of_data_that_salvage_cut_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    lost: list[Offset] = []

    async def filling(engine: Engine) -> None:
        await create(engine, "a")
        for number in range(3):
            await append(engine, "a", b"%05d" % number)
        info = await engine.info("a")
        lost.append(info.offset(info.tail))

    async def growing(engine: Engine) -> None:
        for _ in range(4):
            with pytest.raises(OffsetLostError):
                await engine.read(Read("a", lost[0]))
            await append(engine, "a", b"fresh")
        info = await engine.info("a")
        assert info.offset(info.tail) > lost[0]

    live(directory, filling)
    [path] = sorted((directory / "journal").glob("0*.journal"))
    damage(path, path.read_bytes().index(b"00002"))
    assert salvage_directory(directory).set_aside
    assert timeline(directory) > lost[0].id
    live(directory, growing)


def test_a_timeline_begins_by_command_in_a_directory_that_was_set_back(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    three_segments(directory)
    result = invoke(["check", str(directory), "--begin-timeline"])
    assert result.exit_code == 0, result.output
    first = timeline(directory)
    assert f"began timeline {first}" in result.output
    invoke(["check", str(directory), "--begin-timeline"])
    assert timeline(directory) > first > 0


async def worker_pid(directory: Path, before: int) -> int:
    """Wait for a new fold worker. Returns its process id."""
    lock = directory / "fold.lock"

    def pid() -> int:
        number = int(lock.read_text() or 0) if lock.exists() else 0
        return 0 if number in (before, os.getpid()) else number

    return int(await wait_until_async(pid, "a fold worker is started"))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_a_fold_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "data"

    async def body(engine: Engine) -> None:
        await create(engine, "a", body=b"x" * 1000)
        pid = await worker_pid(directory, 0)
        for _ in range(2):
            os.kill(pid, signal.SIGKILL)
            await append(engine, "a", b"y" * 1000)
            pid = await worker_pid(directory, pid)
        assert await content(engine, "a") == b"x" * 1000 + b"y" * 2000

    live(directory, body, FOLDED)
    assert check_directory(directory, lambda _: None).problems == []


@pytest.mark.slow
def test_the_write_ahead_log_shrinks_after_a_long_read(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    log = directory / "index.db-wal"

    async def body(engine: Engine) -> None:
        await create(engine, "a", body=b"x")
        await settled_path(directory, "a")
        reader = sqlite3.connect(directory / "index.db")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM streams").fetchone()  # as a backup does

        async def is_long() -> bool:
            await append(engine, "a", random.Random(1).randbytes(50_000))
            return log.stat().st_size > 1_000_000

        await wait_until_async(is_long)
        reader.close()
        await append(engine, "a", b"more")
        await wait_until_async(lambda: log.stat().st_size < 500_000)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater.limits.WAL_PAGES_MAX", 50)
        patch.setattr("headwater.store.embedded.opening.SubprocessFolder", InlineFolder)
        live(directory, body, FOLDED)


async def settled_path(directory: Path, path: str) -> None:
    def is_folded() -> bool:
        with contextlib.closing(sqlite3.connect(directory / "index.db")) as connection:
            return connection.execute("SELECT 1 FROM streams WHERE path = ?", (path,)).fetchone() is not None

    await wait_until_async(is_folded, f"{path} is folded")


@pytest.mark.slow
def test_a_fold_worker_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "data"

    async def body(engine: Engine) -> None:
        await create(engine, "a", body=b"x" * 1000)
        pid = await worker_pid(directory, 0)
        await settled(directory)
        monkeypatch.setattr("headwater.limits.FOLD_TIMEOUT_S", 1.0)
        os.kill(pid, signal.SIGSTOP)
        await append(engine, "a", b"y" * 1000)
        await wait_until_async(lambda: is_gone(pid), "the worker is killed")
        monkeypatch.setattr("headwater.limits.FOLD_TIMEOUT_S", LIMIT_S)  # the next one may take long to start
        assert await worker_pid(directory, pid) != pid
        assert await content(engine, "a") == b"x" * 1000 + b"y" * 1000

    live(directory, body, FOLDED)
    assert check_directory(directory, lambda _: None).problems == []


@pytest.mark.slow
def test_a_hung_fold_worker_does_not_keep_the_server_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "data"
    monkeypatch.setattr("headwater.limits.FOLD_STOP_S", 0.5)

    async def body(engine: Engine) -> None:
        await create(engine, "a", body=b"x" * 1000)
        os.kill(await worker_pid(directory, 0), signal.SIGSTOP)

    live(directory, body, FOLDED)  # it ends, although the worker never answers


@pytest.mark.slow
def test_reclaiming_keeps_up_with_saturated_writes(tmp_path: Path) -> None:
    """Streams of 2 MB are written and deleted without a pause: at most 8 MB are live."""
    directory = tmp_path / "data"
    limits = Limits(segment_bytes=2_000_000, fold_idle_s=3600, disk_reserve_bytes=1_000_000)
    sizes: list[int] = []

    async def writer(engine: Engine, name: str) -> None:
        for number in range(15):
            await create(engine, f"{name}/{number}")
            for _ in range(10):
                await append(engine, f"{name}/{number}", bytes(200_000))
            await engine.execute(Delete(f"{name}/{number}", engine.now_ms()))
            sizes.append((directory / "index.db").stat().st_size)

    async def body(engine: Engine) -> None:
        await asyncio.gather(*[writer(engine, name) for name in "abcd"])

    live(directory, body, limits)
    assert max(sizes) < 4 * 8_000_000  # of 120 MB that were written


@pytest.mark.parametrize("folded", ["not folded", "folded"])
def test_the_number_of_streams_is_known_after_a_restart(tmp_path: Path, folded: str) -> None:
    directory = tmp_path / "data"
    limits = msgspec.structs.replace(UNFOLDED, streams_max=3)

    async def first(engine: Engine) -> None:
        for path in ("a", "b", "c"):
            await create(engine, path, body=b"x")
        await engine.execute(Delete("b", engine.now_ms()))
        if folded != "not folded":
            await engine._store.fold()  # type: ignore[attr-defined]

    async def second(engine: Engine) -> None:
        await create(engine, "d")
        with pytest.raises(TooManyStreamsError):
            await create(engine, "e")

    live(directory, first, limits)
    live(directory, second, limits)
    assert check_directory(directory, lambda _: None).problems == []
    with contextlib.closing(sqlite3.connect(directory / "index.db")) as connection:
        write_meta(connection, "folded", IndexReader(connection).meta()._replace(streams=7))
        connection.commit()
    assert any("streams" in problem for problem in check_directory(directory, lambda _: None).problems)


def test_a_segment_with_many_streams_is_sealed_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SEGMENT_CHANGES_MAX", 10)

    async def body() -> None:
        engine = Engine(open_store(tmp_path / "data", Limits()))
        await engine.start()
        for number in range(35):
            await engine.execute(Create(path=f"s{number:02}", now_ms=engine.now_ms(), body=b"x"))
        await wait_until_async(lambda: not engine.report().store.unfolded_segments)
        assert engine.report().store.unfolded_bytes < 1000
        assert [stream.path for stream in (await engine.page("", "", 100)).streams] == [f"s{n:02}" for n in range(35)]
        await engine.stop()

    asyncio.run(body())
