"""Following a journal that is written, sealed, folded and recycled at any time: every batch once, or a gap."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.log.events import Appended
from headwater.log.moments import Moment
from headwater.store.embedded.backup.contents import chain
from headwater.store.embedded.backup.failures import DivergedError, GapError, MissingError
from headwater.store.embedded.backup.formats import (
    Copied,
    PartName,
    batch_digest,
    decode_part,
    encode_part,
    parse_part,
)
from headwater.store.embedded.backup.restoring import _cut
from headwater.store.embedded.backup.tailing import JournalTail, Mark
from headwater.store.embedded.index import Meta
from headwater.store.embedded.journal import HEADER_BYTES, JournalBatch, encode_header, encode_records, segment_name
from tests.fault.copies import SimJournal
from tests.fault.sim_disk import SimDisk
from tests.journals import at, new_journal


class Source:
    """A journal on a simulated disk, and its last folded segment."""

    def __init__(self, *, segment_bytes: int = 400) -> None:
        self.disk = SimDisk(random.Random(0))
        salts = random.Random(1)
        self.writer = new_journal(self.disk, segment_bytes=segment_bytes, salt=lambda: salts.getrandbits(32))
        self.meta = Meta()
        self.payloads: dict[int, bytes] = {}
        self.firsts: dict[int, int] = {}  # the first batch of each segment

    def write(self, size: int, at_ms: int = 1) -> None:
        payload = bytes(encode_records([(Appended(1, 0, at_ms, bytes(size)),)]))
        self.payloads[self.writer.sequence] = payload
        self.writer.place(payload, at(at_ms)).sync()
        self.firsts.setdefault(self.writer.number, self.writer.sequence)
        self.writer.settle()

    def tear(self) -> None:
        """Write an incomplete batch, as after a crash. The next batch overwrites it."""
        self.writer.place(encode_records([(Appended(1, 0, 1, b"torn" * 10),)]), at(1))
        node = self.disk.nodes[segment_name(self.writer.number)]
        node.data[self.writer._position + 30] ^= 1

    def fold(self) -> None:
        """Fold and recycle the oldest sealed segment."""
        number = self.meta.folded_segment + 1
        if number < self.writer.number:
            next_first = min((first for other, first in self.firsts.items() if other > number), default=None)
            self.meta = Meta(number, (next_first or self.writer.sequence) - 1, 1, 0)
            self.writer.recycle(number)

    def tail(self, mark: Mark) -> JournalTail:
        return JournalTail(SimJournal(self.disk), mark, lambda: self.meta)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_segment_that_was_begun_anew_is_read_from_its_beginning(is_seen: bool) -> None:
    source = Source()
    source.write(10)
    source.writer.roll()
    tail = source.tail(Mark(0, 0))
    assert tail.read(1000) is not None
    name = segment_name(source.writer.number)
    file = source.disk.open(name)
    file.write(0, encode_header(source.writer.number, 99, source.writer._record.newest.salt))
    assert tail.read(1000) is None  # a segment without batches
    file.close()
    source.disk.remove(name)
    if is_seen:
        assert tail.read(1000) is None
    source.write(20)
    copied = tail.read(1000)
    assert copied is not None
    assert [batch.sequence for batch in copied.batches] == [2]
    assert tail.read(1000) is None


def test_a_gap_before_a_segment_without_batches() -> None:
    """Nothing after the gap shows it but the fold."""
    source = Source()
    source.write(10)
    tail = source.tail(Mark(0, 0))
    assert tail.read(1000) is not None
    source.write(10)
    source.writer.roll()
    source.fold()
    source.writer._begin(HEADER_BYTES)
    with pytest.raises(GapError, match="batch 2 was removed"):
        tail.read(1000)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 300)),
        st.tuples(st.sampled_from(["roll", "tear", "fold", "restart"]), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 600)),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_batch_once_or_a_gap(steps: list[tuple[str, int]]) -> None:
    source = Source()
    tail = source.tail(Mark(0, 0))
    batches: list[JournalBatch] = []

    def read(size: int) -> bool:
        copied = tail.read(size)
        if copied is not None:
            name, data = encode_part(copied)
            assert decode_part(str(name), data).batches[-1].payload == copied.batches[-1].payload
            batches.extend(copied.batches)
        return copied is not None

    try:
        for step, number in steps:
            if step == "write":
                source.write(number)
            elif step == "roll":
                source.writer.roll()
            elif step == "tear":
                source.tear()
            elif step == "fold":
                source.fold()
            elif step == "restart":
                tail = source.tail(tail.mark)
            else:
                read(number)
        while read(1000):
            """Up to the end."""
    except GapError:
        last = batches[-1].sequence if batches else 0
        assert source.meta.folded_sequence > last  # the missing batches were folded
    else:
        assert [batch.sequence for batch in batches] == list(range(1, source.writer.sequence))
    assert [bytes(batch.payload) for batch in batches] == [source.payloads[batch.sequence] for batch in batches]


def test_a_different_journal_is_noticed() -> None:
    source = Source()
    source.write(10)
    source.write(20)
    mark = Mark(1, 1, batch_digest(JournalBatch("", 0, 1, at(1), memoryview(source.payloads[1]))))
    copied = source.tail(mark).read(1000)
    assert copied is not None
    assert [batch.sequence for batch in copied.batches] == [2]
    with pytest.raises(DivergedError):
        source.tail(mark._replace(digest=b"other")).read(1000)


# Chains of parts

NAMES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda pair: PartName(pair[0], sum(pair), 0, 0, "0" * 16)),
    max_size=20,
)


@given(NAMES, st.integers(0, 10))
def test_a_chain_has_every_batch_or_reports_the_missing_ones(parts: list[PartName], after: int) -> None:
    covered = {number for part in parts for number in range(part.first, part.last + 1)}
    last = max(covered, default=after)
    missing = [number for number in range(after + 1, last + 1) if number not in covered]
    if missing:
        with pytest.raises(MissingError, match=f"lacks batches {missing[0]} to"):
            chain(parts, after, None, "url")
        return
    reached = after
    for part in chain(parts, after, None, "url"):
        assert part.first <= reached + 1 <= part.last
        reached = part.last
    assert reached == max(last, after)
    with pytest.raises(MissingError, match=f"lacks batches {reached + 1} to {reached + 5}"):
        chain(parts, after, reached + 5, "url")


def test_names_of_parts() -> None:
    name = PartName(1, 23, 0, 1_800_000_000_000, "0123456789abcdef")
    assert parse_part(f"id/journal/{name}") == name
    assert parse_part("id/journal/something") is None


# Times


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 9))
def test_a_cut_has_everything_up_to_the_time(times: list[int], at_ms: int) -> None:
    """By the wall clock, also if it was set back. The times of the records do not matter."""
    batches = [
        JournalBatch("", 0, number, Moment(100, time, 0, 0), memoryview(b"")) for number, time in enumerate(times)
    ]
    kept = _cut(batches, at_ms)
    assert kept == batches[: len(kept)]
    assert all(batch.moment.wall_ms > at_ms for batch in batches[len(kept) :])
    assert not kept or kept[-1].moment.wall_ms <= at_ms
    if times == sorted(times):
        assert len(kept) == sum(time <= at_ms for time in times)


def test_a_part_has_the_times_of_its_batches() -> None:
    batches = [JournalBatch("", 0, 7 + number, at(ms), memoryview(b"\x90")) for number, ms in enumerate([5, 3, 9])]
    name, data = encode_part(Copied(3, batches, b"digest"))
    assert (name.first, name.last, name.min_ms, name.max_ms) == (7, 9, 3, 9)
    assert decode_part(str(name), data) == Copied(3, [batch._replace(file=str(name)) for batch in batches], b"digest")
