"""Linked segments: readable after the server has removed them, bounded, and harmless for the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater import limits
from headwater.log.events import Touched
from headwater.store.embedded.backup.holding import HeldJournal
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.journal import HEADER_BYTES, encode_records, read_batch, read_header, segment_name
from headwater.store.embedded.journal_writer import JournalWriter
from tests.journals import at, new_journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "journal").mkdir()
    return tmp_path / "journal"


def write(folder: Path, segments: int) -> JournalWriter:
    """A journal of sealed segments with a batch each."""
    writer = new_journal(RealDisk(folder), segment_bytes=4096, salt=lambda: 7)
    for number in range(segments):
        writer.place(encode_records([(Touched(1, number),)]), at(1)).sync()
        writer.settle()
        writer.roll()
    return writer


def held(tmp_path: Path, folder: Path) -> HeldJournal:
    journal = HeldJournal(folder, tmp_path / "held")
    (tmp_path / "held").mkdir()
    journal.hold()
    return journal


def test_a_linked_segment_is_not_overwritten(tmp_path: Path, folder: Path) -> None:
    writer = write(folder, 2)
    journal = held(tmp_path, folder)
    for number in (1, 2):
        writer.recycle(number)
    assert [path.name for path in folder.iterdir()] == ["newest"]  # removed, not recycled
    assert journal.numbers() == [1, 2]
    for number in (1, 2):
        data = journal.read(number, 0, 4096)
        header = read_header(segment_name(number), data, number)
        assert header is not None
        assert read_batch(data, HEADER_BYTES, header[0]) is not None
        journal.sync(number)
    journal.release(1)
    assert journal.numbers() == [2]
    journal.release(2)
    assert list((tmp_path / "held").iterdir()) == []
    journal.hold()  # released segments are not linked again
    journal.sync(1)  # a removed segment was folded
    with pytest.raises(FileNotFoundError):
        journal.read(1, 0, 1)


def test_a_link_to_a_segment_that_was_never_begun_is_replaced(tmp_path: Path, folder: Path) -> None:
    """A server that is killed while it begins a segment leaves a file, and the next server writes another one."""
    (folder / segment_name(1)).write_bytes(b"never begun")
    journal = held(tmp_path, folder)
    assert journal.read(1, 0, 5) == b"never"
    (folder / segment_name(1)).unlink()
    writer = write(folder, 1)
    header = (folder / segment_name(1)).read_bytes()[:HEADER_BYTES]
    assert journal.read(1, 0, HEADER_BYTES) == header  # before the link is replaced
    journal.hold()
    writer.recycle(1)
    assert [path.name for path in folder.iterdir()] == ["newest"]
    assert journal.read(1, 0, HEADER_BYTES) == header


def test_a_segment_without_links_becomes_the_spare(folder: Path) -> None:
    write(folder, 1).recycle(1)
    assert sorted(path.name for path in folder.iterdir()) == ["newest", "spare.journal"]


def test_links_are_bounded(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BACKUP_HELD_SEGMENTS_MAX", 3)
    writer = write(folder, 4)
    journal = held(tmp_path, folder)
    for number in (1, 2, 3, 4):
        writer.recycle(number)
    assert journal.numbers() == [1, 2, 3, 4]
    journal.hold()
    assert journal.numbers() == []


def test_links_are_removed_if_the_disk_is_nearly_full(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write(folder, 2)
    journal = held(tmp_path, folder)
    writer.recycle(1)
    monkeypatch.setattr(limits, "BACKUP_FREE_BYTES_MIN", 1 << 62)
    journal.hold()
    assert journal.numbers() == [2]  # the server still has it
    assert list((tmp_path / "held").iterdir()) == []


def test_the_thread_links_new_segments_and_removes_the_links_at_the_end(tmp_path: Path, folder: Path) -> None:
    journal = HeldJournal(folder, tmp_path / "held")
    journal.start()
    try:
        write(folder, 2)
        journal.hold()
        assert len(list((tmp_path / "held").iterdir())) == 2
    finally:
        journal.stop()
    assert list((tmp_path / "held").iterdir()) == []
