"""Reads whole, durable batches of a journal in order, while a server may be writing to it.

A batch is valid if its checksum matches. Each segment has its own salt, so old batches in a recycled file do not match,
and the file reads as one that ends.
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
        """The numbers of the segments that can be read, in order."""

    def read(self, number: int, position: int, size: int) -> bytes:
        """Read bytes of a segment, fewer at its end. Raises FileNotFoundError if it was removed."""

    def sync(self, number: int) -> None:
        """Make the data of a segment durable. A removed segment was folded, so its data is durable."""

    def release(self, number: int) -> None:
        """Release this segment and those before it, which are no longer needed."""


class Mark(NamedTuple):
    """The last batch that was copied."""

    segment: int  # segment of the last batch, or the last folded segment
    sequence: int  # of the last batch
    digest: bytes = b""  # of the last batch; empty if unknown


class _Open(NamedTuple):
    number: int
    position: int
    salt: int


class JournalTail:
    """Reads the batches after a mark."""

    def __init__(self, journal: Journal, mark: Mark, folded: Callable[[], Meta]) -> None:
        self.mark = mark
        self._journal = journal
        self._folded = folded  # returns the last folded segment and batch
        self._open: _Open | None = None
        self._next = mark.segment  # the segment to open next; the mark's own segment may have more batches
        self._seen = 0  # the last batch that was seen in the journal or the index
        self._data = b""  # read-ahead of the open segment
        self._data_at = 0  # position of the next batch in it

    def read(self, bytes_max: int) -> Copied | None:
        """Return some durable batches; None at the end."""
        while self._open is not None or self._enter():
            copied = self._read_segment(bytes_max)
            if copied is not None:
                self._journal.sync(copied.segment)  # a batch in the page cache could still be lost
                last = copied.batches[-1]
                self.mark = Mark(copied.segment, last.sequence, batch_digest(last))
                return copied
            if self._open is not None:
                break
        self._check_not_behind()
        return None

    def _enter(self) -> bool:
        """Open the next segment, if it exists."""
        numbers = self._journal.numbers()
        number = self._next
        if number not in numbers and number == self.mark.segment:
            self._next = number = number + 1  # the mark's segment was removed, so all of it must have been copied
        salt = self._salt_of(number) if number in numbers else None
        if salt is not None:
            self._open, self._data, self._data_at = _Open(number, HEADER_BYTES, salt), b"", 0
            return True
        if any(later > number for later in numbers) or self._folded().folded_sequence > self.mark.sequence:
            raise GapError(f"{segment_name(number)} was removed")
        return False

    def _salt_of(self, number: int) -> int | None:
        """The salt of a segment; None if it is not begun."""
        try:
            header = read_header(segment_name(number), self._journal.read(number, 0, HEADER_BYTES), number)
        except (FileNotFoundError, CorruptJournalError):
            return None
        return None if header is None else header[0]

    def _read_segment(self, bytes_max: int) -> Copied | None:
        """Read batches of the open segment, and close it at its seal. None if there is nothing new."""
        batches: list[JournalBatch] = []
        after, expected, size = self.mark.digest, self.mark.sequence + 1, 0
        while self._open is not None and size < bytes_max:
            frame = self._read_batch(self._open)
            if frame is None:
                if not batches:
                    self._check_end(self._open)
                break
            flags, batch = frame
            if flags & SEAL:
                self._leave(self._open.number)
                continue
            self._seen = max(self._seen, batch.sequence)
            if batch.sequence < expected:
                self._check_same(batch)
            elif batch.sequence > expected:
                raise GapError(f"batch {expected} was removed")
            else:
                batches.append(batch)
                expected += 1
                size += len(batch.payload)
        segment = self._next - 1 if self._open is None else self._open.number
        return Copied(segment, batches, after) if batches else None

    def _read_batch(self, at: _Open) -> tuple[int, JournalBatch] | None:
        """Return the flags and the next batch, and advance."""
        frame = read_batch(self._data, self._data_at, at.salt)
        if frame is None:
            self._data, self._data_at = self._read_ahead(at), 0
            frame = read_batch(self._data, 0, at.salt)
        if frame is None:
            self._data = b""
            return None
        sequence, flags, moment, payload, end = frame
        self._open = at._replace(position=at.position + end - self._data_at)
        self._data_at = end
        return flags, JournalBatch(segment_name(at.number), at.position, sequence, moment, payload)

    def _read_ahead(self, at: _Open) -> bytes:
        """Read some batches, or the available part of one."""
        try:
            data = self._journal.read(at.number, at.position, limits.BACKUP_READ_BYTES)
            length = batch_length(data, 0)
            return data if length <= len(data) else self._journal.read(at.number, at.position, length)
        except FileNotFoundError:
            return b""

    def _leave(self, number: int) -> None:
        self._open, self._next = None, number + 1

    def _check_end(self, at: _Open) -> None:
        """Close a segment that ends without a seal and is not the newest: it was removed or recycled. The sequences of
        the next batch and of the fold show whether all of it was copied.

        A server that is killed while it begins a segment leaves a header without batches. The next server removes that
        file and begins another segment of the same number, which is read from its beginning."""
        if self._salt_of(at.number) not in (at.salt, None):
            self._open, self._next = None, at.number
            return
        numbers, folded = self._journal.numbers(), self._folded()
        if folded.folded_segment < at.number and not any(later > at.number for later in numbers):
            if folded.folded_sequence > self.mark.sequence:
                raise GapError(f"batch {self.mark.sequence + 1} was removed")
            if at.number not in numbers:
                self._open, self._next = None, at.number
            return
        if self._read_batch(at) is None:  # otherwise more was written in the meantime
            self._leave(at.number)
        else:
            self._open, self._data, self._data_at = at, b"", 0

    def _check_not_behind(self) -> None:
        """A journal that ends before the mark was cut, or is not the one that was copied. New batches would get the
        sequences of batches that the target already has."""
        if self._seen < self.mark.sequence:
            self._seen = self._folded().folded_sequence
            if self._seen < self.mark.sequence:
                raise DivergedError(f"the journal ends with batch {self._seen}, before {self.mark.sequence}")

    def _check_same(self, batch: JournalBatch) -> None:
        digest = self.mark.digest
        if batch.sequence == self.mark.sequence and digest and batch_digest(batch) != digest:
            raise DivergedError(f"batch {batch.sequence} differs from the one that was copied")

    def release(self) -> None:
        """Release the segments of batches that are in the target."""
        self._journal.release(self._next - 1 if self._open is None else self._open.number - 1)
