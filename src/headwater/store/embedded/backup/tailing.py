"""Following the journal of a directory that a server may be writing to: whole batches, in order, once they are durable.

Nothing that is read here can be mistaken: a batch counts if its checksum does, and checksums are salted for each
segment, so a file that was recycled meanwhile reads as one that ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from headwater import limits
from headwater.store.embedded.backup.failures import DivergedError, GapError
from headwater.store.embedded.backup.formats import Copied, batch_digest
from headwater.store.embedded.index import Meta
from headwater.store.embedded.journal import (
    HEADER_BYTES,
    SEAL,
    CorruptJournalError,
    JournalBatch,
    batch_length,
    read_batch,
    read_header,
    segment_name,
)


class Journal(Protocol):
    """The segments of a directory."""

    def numbers(self) -> list[int]:
        """Those that can be read, in order."""

    def read(self, number: int, position: int, size: int) -> bytes:
        """Bytes of a segment, fewer at its end; FileNotFoundError if it is gone."""

    def sync(self, number: int) -> None:
        """Make what was read of a segment durable. One that is gone was folded, so it is."""

    def release(self, number: int) -> None:
        """This segment and those before it are not needed any more."""


class Mark(NamedTuple):
    """How far a journal was copied."""

    segment: int  # that has the last batch, or that was folded with it
    sequence: int  # of the last batch
    digest: bytes = b""  # of the last batch, if it is known


class _Open(NamedTuple):
    number: int
    position: int
    format: int
    salt: int


class JournalTail:
    """Reads on from a mark."""

    def __init__(self, journal: Journal, mark: Mark, folded: Callable[[], Meta]) -> None:
        self.mark = mark
        self._journal = journal
        self._folded = folded  # how far the index is
        self._open: _Open | None = None
        self._next = mark.segment  # the segment to open next; that of the mark may hold more
        self._seen = 0  # the last batch that is known to be in the journal or folded
        self._data = b""  # read ahead of the segment that is open
        self._data_at = 0  # where the next batch begins in it

    def read(self, bytes_max: int) -> Copied | None:
        """Some batches, durable; None at the end."""
        while self._open is not None or self._enter():
            copied = self._read_segment(bytes_max)
            if copied is not None:
                self._journal.sync(copied.segment)  # a batch that is in the page cache only could still be lost
                last = copied.batches[-1]
                self.mark = Mark(copied.segment, last.sequence, batch_digest(last.sequence, last.payload))
                return copied
            if self._open is not None:
                break
        self._check_not_behind()
        return None

    def _enter(self) -> bool:
        """Open the next segment, if it is there."""
        numbers = self._journal.numbers()
        number = self._next
        if number not in numbers and number == self.mark.segment:
            self._next = number = number + 1  # the mark's own is gone: everything of it must have been copied
        if number in numbers:
            try:
                header = read_header(segment_name(number), self._journal.read(number, 0, HEADER_BYTES), number)
            except (FileNotFoundError, CorruptJournalError):
                header = None
            if header is not None:
                self._open, self._data, self._data_at = _Open(number, HEADER_BYTES, *header), b"", 0
                return True
        if any(later > number for later in numbers) or self._folded().folded_sequence > self.mark.sequence:
            raise GapError(f"{segment_name(number)} is gone")
        return False

    def _read_segment(self, bytes_max: int) -> Copied | None:
        """What can be read of the open segment, which is left at its seal. None if there is nothing new."""
        batches: list[JournalBatch] = []
        after, expected, size = self.mark.digest, self.mark.sequence + 1, 0
        while self._open is not None and size < bytes_max:
            found = self._read_batch(self._open)
            if found is None:
                if not batches:
                    self._check_end(self._open)
                break
            sequence, flags, payload = found
            if flags & SEAL:
                self._leave(self._open.number)
                continue
            self._seen = max(self._seen, sequence)
            if sequence < expected:
                self._check_same(sequence, payload)
            elif sequence > expected:
                raise GapError(f"batch {expected} is gone")
            else:
                name = segment_name(self._open.number)
                batches.append(JournalBatch(name, self._open.position, sequence, payload, self._open.format))
                expected += 1
                size += len(payload)
        segment = self._next - 1 if self._open is None else self._open.number
        return Copied(segment, batches, after) if batches else None

    def _read_batch(self, at: _Open) -> tuple[int, int, memoryview] | None:
        """Sequence, flags and records of the next batch, and move behind it."""
        found = read_batch(self._data, self._data_at, at.salt)
        if found is None:
            self._data, self._data_at = self._read_ahead(at), 0
            found = read_batch(self._data, 0, at.salt)
        if found is None:
            self._data = b""
            return None
        sequence, flags, payload, end = found
        self._open = at._replace(position=at.position + end - self._data_at)
        self._data_at = end
        return sequence, flags, payload

    def _read_ahead(self, at: _Open) -> bytes:
        """Some batches, or as much of one as there is."""
        try:
            data = self._journal.read(at.number, at.position, limits.BACKUP_READ_BYTES)
            length = batch_length(data, 0)
            return data if length <= len(data) else self._journal.read(at.number, at.position, length)
        except FileNotFoundError:
            return b""

    def _leave(self, number: int) -> None:
        self._open, self._next = None, number + 1

    def _check_end(self, at: _Open) -> None:
        """Leave a segment that ends without a seal and is not the newest: it is gone, or was recycled. Whether all of
        it was copied by then shows in the sequence of the next batch, and in that of the fold."""
        if self._journal.numbers()[-1:] == [at.number] and self._folded().folded_segment < at.number:
            return
        if self._read_batch(at) is None:  # else more was written since it was read
            self._leave(at.number)
        else:
            self._open, self._data, self._data_at = at, b"", 0

    def _check_not_behind(self) -> None:
        """A journal that ends before the mark is not the one that was copied, or was cut: what is written to it from
        now on has the numbers of batches that the target has already."""
        if self._seen < self.mark.sequence:
            self._seen = self._folded().folded_sequence
            if self._seen < self.mark.sequence:
                raise DivergedError(f"the journal ends with batch {self._seen}, before {self.mark.sequence}")

    def _check_same(self, sequence: int, payload: memoryview) -> None:
        digest = self.mark.digest
        if sequence == self.mark.sequence and digest and batch_digest(sequence, payload) != digest:
            raise DivergedError(f"batch {sequence} is not the one that was copied")

    def release(self) -> None:
        """What was read is safe elsewhere."""
        self._journal.release(self._next - 1 if self._open is None else self._open.number - 1)
