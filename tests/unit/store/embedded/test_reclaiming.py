"""Steps of reclaiming: how many rows one step removes, and what a fold leaves to reclaim."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from headwater import limits
from headwater.log.content import ContentKind
from headwater.log.events import Appended, Created, Deleted, Event
from headwater.store.embedded import index
from headwater.store.embedded.fold import fold
from headwater.store.embedded.index import IndexReader
from headwater.store.embedded.index_writer import IndexWriter
from headwater.store.embedded.journal import encode_records, read_segment, segment_name
from headwater.store.embedded.reclaiming import Reclaimer
from tests.fault.sim_disk import SimDisk
from tests.journals import at, new_journal


class Directory:
    """An index, and segments that are folded into it."""

    def __init__(self, path: Path) -> None:
        index.create(path / "index.db")
        self.connection = index.connect(path / "index.db", write=True)
        self.disk = SimDisk(random.Random(0))
        self.writer = new_journal(self.disk, segment_bytes=1 << 26, salt=lambda: 7)
        self.reclaimer = Reclaimer(self.connection, lambda: 0.0)  # no step runs out of time

    def fold(self, *events: Event) -> int:
        number = self.writer.number
        self.writer.place(encode_records([(event,) for event in events]), at(1)).sync()
        self.writer.settle()
        self.writer.roll()
        name = segment_name(number)
        segment = read_segment(name, self.disk.read(name), number, last=False)
        return fold(IndexReader(self.connection), IndexWriter(self.connection), segment)

    def count(self, table: str) -> int:
        [count] = self.connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
        return int(count)

    def pages(self) -> int:
        [pages] = self.connection.execute("PRAGMA page_count").fetchone()
        return int(pages)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def created(key: int, data: bytes = b"") -> Created:
    return Created(id=key, path=f"s{key}", content_type="a/b", kind=ContentKind.BINARY, at_ms=1, data=data)


def test_one_step_removes_thousands_of_small_streams(directory: Directory) -> None:
    keys = range(1, 5_001)
    directory.fold(*[created(key, b"x" * 200) for key in keys])
    directory.fold(*[Deleted(key, 2) for key in keys])
    assert directory.count("garbage") == 5_000
    step = directory.reclaimer.step()
    assert directory.count("garbage") == directory.count("chunks") == 0
    assert not step.garbage
    assert step.size_bytes >= 5_000 * 200


def test_a_step_is_bounded_in_bytes_and_ends_with_a_large_stream(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECLAIM_STEP_BYTES", 4_000_000)
    mib = b"x" * limits.CHUNK_BYTES
    directory.fold(created(1), *[Appended(1, number << 20, 5, mib) for number in range(20)], created(2, b"kept"))
    before = directory.pages()
    directory.fold(Deleted(1, 2))
    counts = [directory.count("chunks")]
    while directory.reclaimer.step().more:
        counts.append(directory.count("chunks"))
    assert counts == [21, 17, 13, 9, 5]
    assert directory.count("garbage") == 0
    assert directory.count("chunks") == 1
    assert directory.pages() < before / 100


def test_a_step_that_is_out_of_time_ends_and_returns_some_pages_if_it_is_urgent(directory: Directory) -> None:
    keys = range(1, 2_001)
    directory.fold(*[created(key, b"x" * 5_000) for key in keys])
    directory.fold(*[Deleted(key, 2) for key in keys])
    times_s = iter(range(10**6))
    slow = Reclaimer(directory.connection, lambda: float(next(times_s)))
    before = directory.pages()
    assert slow.step().garbage
    assert directory.pages() == before  # the next fold can use them
    left = directory.count("garbage")
    assert slow.step(urgent=True).garbage
    assert left - directory.count("garbage") <= limits.RECLAIM_STREAMS
    assert 0 < 2_000 - directory.count("garbage") <= 2 * limits.RECLAIM_STREAMS
    assert 0 < before - directory.pages() <= limits.RECLAIM_PAGES


def test_a_stream_with_many_producers_is_removed_in_parts(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.fold(created(1), created(2))
    rows = [(key, f"p{number}", 1, 1, 1, 0) for key in (1, 2) for number in range(25)]
    directory.connection.executemany("INSERT INTO producers VALUES (?, ?, ?, ?, ?, ?)", rows)
    directory.fold(Deleted(1, 2))
    monkeypatch.setattr(limits, "RECLAIM_ROWS", 10)
    times_s = iter(range(10**6))
    slow = Reclaimer(directory.connection, lambda: float(next(times_s)))
    left = []
    while slow.step().garbage:
        left.append(directory.count("producers"))
    assert left == [40, 30]
    assert directory.count("producers") == 25


def test_a_stream_that_was_created_and_deleted_in_a_segment_leaves_nothing(directory: Directory) -> None:
    added_bytes = directory.fold(
        created(1, b"x" * 500_000), Appended(1, 500_000, 5, b"y" * 500_000), Deleted(1, 6), created(2, b"kept")
    )
    assert directory.count("streams") == directory.count("chunks") == 1
    assert directory.count("garbage") == 0
    assert added_bytes < 1_000


def test_a_stream_of_an_earlier_segment_becomes_garbage_once(directory: Directory) -> None:
    directory.fold(created(1, b"old"))
    directory.fold(Appended(1, 3, 5, b"never written"), Deleted(1, 6))
    assert directory.count("garbage") == 1
    [size] = directory.connection.execute("SELECT SUM(size) FROM chunks").fetchone()
    assert size == 3
    with pytest.raises(sqlite3.IntegrityError):
        directory.connection.execute("INSERT INTO garbage VALUES (1, 0, 5, 0)")
