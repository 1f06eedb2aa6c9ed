from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.log.events import Appended, Deleted, Record, Touched
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.journal import (
    CorruptJournalError,
    UnknownFormatError,
    encode_records,
    read_segment,
    segment_name,
)
from headwater.store.embedded.journal_writer import DiskFullError, JournalFailedError, JournalWriter, failure
from headwater.store.embedded.newest import FoldedSegment, read_segments
from tests.journals import NEW, at, new_journal


def record(number: int) -> Record:
    return (Appended(1, number, 5, b"data" * number), Touched(2, number), Deleted(3))


def write(disk: RealDisk, batches: int, *, segment_bytes: int = 2_000) -> JournalWriter:
    salts = random.Random(99)
    writer = new_journal(disk, segment_bytes=segment_bytes, salt=lambda: salts.getrandbits(32))
    for number in range(batches):
        writer.place(encode_records([record(number)]), at(number)).sync()
        writer.settle()
    return writer


def sequences(disk: RealDisk, folded: FoldedSegment = NEW) -> list[int]:
    return [batch.sequence for segment in read_segments(disk, folded) for batch in segment.batches]


def test_batches_are_read_in_order_across_segments(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    write(disk, 50).close()
    segments = list(read_segments(disk, NEW))
    assert len(segments) > 2
    assert [segment.sealed for segment in segments] == [True] * (len(segments) - 1) + [False]
    records = [r for segment in segments for batch in segment.batches for r in batch.records()]
    assert records == [record(number) for number in range(50)]
    assert sequences(disk) == list(range(1, 51))


def test_a_spare_file_is_used_and_folded_ones_are_recycled(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    writer = new_journal(disk, segment_bytes=1 << 20, salt=lambda: 7)
    writer.prepare()
    assert "spare.journal" in disk.names()
    writer.place(encode_records([record(1)]), at(1)).sync()
    writer.settle()
    assert disk.names() == [segment_name(1), "newest"]
    assert (tmp_path / segment_name(1)).stat().st_size == 1 << 20
    writer.roll()
    writer.recycle(1)
    assert disk.names() == ["newest", "spare.journal"]
    writer.place(encode_records([record(2)]), at(2)).sync()
    writer.settle()
    writer.close()
    assert sequences(disk, FoldedSegment(1, 1, 7)) == [2]  # and no old batch of the recycled file


def test_a_missing_segment_is_noticed(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    write(disk, 50).close()
    disk.remove(segment_name(2))
    with pytest.raises(CorruptJournalError, match=r"0002\.journal .* missing"):
        sequences(disk)


def test_a_segment_out_of_order_is_noticed(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    write(disk, 50).close()
    (tmp_path / segment_name(2)).write_bytes((tmp_path / segment_name(3)).read_bytes())
    with pytest.raises(CorruptJournalError):
        sequences(disk)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    import struct
    import zlib

    disk = RealDisk(tmp_path)
    write(disk, 1).close()
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 99)
    data[24:28] = struct.pack("<I", zlib.crc32(data[:24]))
    path.write_bytes(data)
    with pytest.raises(UnknownFormatError, match="format 99"):
        sequences(disk)


def test_only_lack_of_space_is_temporary() -> None:
    assert isinstance(failure("f", OSError(errno.ENOSPC, "full")), DiskFullError)
    assert isinstance(failure("f", OSError(errno.EDQUOT, "quota")), DiskFullError)
    assert isinstance(failure("f", OSError(errno.EIO, "broken")), JournalFailedError)


@pytest.mark.slow
@given(st.data())
def test_any_single_flipped_byte_is_noticed_or_is_the_tail(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        disk = RealDisk(Path(directory))
        write(disk, 8, segment_bytes=1 << 20).close()
        path = Path(directory) / segment_name(1)
        whole = path.read_bytes()
        whole = whole[: read_segment("s", whole, 1, last=True).end]  # without the zeros after the last batch
        segment = read_segment("s", whole, 1, last=True)
        position = data.draw(st.integers(0, len(whole) - 1))
        broken = bytearray(whole)
        broken[position] ^= data.draw(st.integers(1, 255))
        last_batch = segment.batches[-1].position
        try:
            read = read_segment("s", bytes(broken), 1, last=True)
        except (CorruptJournalError, UnknownFormatError):
            assert position < last_batch
        else:
            assert position >= last_batch  # an incomplete batch at the end
            assert len(read.batches) == 7


def test_content_that_looks_like_batches_is_not_recovered(tmp_path: Path) -> None:
    """`bench/bounds_bench.py` measures that it does not make recovery slow."""
    import struct

    disk = RealDisk(tmp_path)
    writer = new_journal(disk, segment_bytes=1 << 25, salt=lambda: 99)
    bait = struct.pack("<4sQIIQQQQI", b"HWB\n", 70_000, 0, 4_000_000, 0, 0, 0, 0, 0) * 100_000
    writer.place(encode_records([(Appended(1, 0, 5, bait),)]), at(1)).sync()
    writer.close()  # an incomplete batch, whose content looks like batches
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[len(data.rstrip(b"\0")) - 1] ^= 1
    path.write_bytes(data)
    assert sequences(disk) == []
