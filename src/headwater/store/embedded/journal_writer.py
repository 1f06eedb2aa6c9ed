"""Writing the journal: one batch at a time, and the files of its segments.

The blocks of a segment are allocated before it is begun, and those of a batch and of the seal before the batch is
written. So a full disk is found before anything is written, and an accepted segment can always be sealed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable

from headwater import limits
from headwater.log.moments import Moment
from headwater.store.embedded.disk import Disk, File
from headwater.store.embedded.journal import (
    BATCH_OVERHEAD_BYTES,
    HEADER_BYTES,
    Segment,
    encode_batch,
    encode_header,
    encode_seal,
    segment_name,
)
from headwater.store.embedded.newest import Newest, NewestRecord

log = logging.getLogger("headwater.store")

_SPARE = "spare.journal"
_UNFINISHED = "new.journal"
_UNBEGUN = "next.journal"  # allocated without a spare; it is renamed when it is begun
_ZEROS = bytes(1 << 20)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
SEAL_BYTES = BATCH_OVERHEAD_BYTES
PASSING = (errno.ENOSPC, errno.EDQUOT, *_NO_DESCRIPTORS)  # temporary errors


class JournalFailedError(Exception):
    """A write or sync failed, so it is unknown which data is durable."""

    def __init__(self, file: str, cause: OSError) -> None:
        super().__init__(f"{file}: {cause.strerror or cause}")


class DiskFullError(Exception):
    """There is no disk space or file descriptor for a batch. Nothing of it was stored, and it can be retried."""


class JournalWriter:
    """Appends batches to the newest segment: `place` writes a batch, and `settle` is called after the sync."""

    def __init__(
        self,
        disk: Disk,
        record: NewestRecord,
        *,
        number: int,
        sequence: int,
        segment_bytes: int,
        salt: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._record = record
        self._segment_bytes = segment_bytes
        self._new_salt = salt
        self._salt = 0
        self._file: File | None = None
        self._position = 0
        self._allocated = 0  # bytes of the segment that have blocks, as far as is known
        self._placed = 0
        self._whole: set[int] = set()  # segments whose file can be used again
        self._unfolded: dict[int, int] = {}  # bytes that this process wrote to each segment
        self.number = number  # of the newest segment, which may not be begun yet
        self.sequence = sequence  # of the next batch
        self.frugal = False  # the disk is full: allocate less than a segment if there is no room for one

    def resume(self, file: File, position: int, salt: int) -> None:
        """Continue a segment without a seal."""
        self._file, self._position, self._salt, self._allocated = file, position, salt, 0
        self._unfolded[self.number] = position

    def place(self, payload: bytes | bytearray, moment: Moment) -> File:
        """Write a batch of encoded records. Returns the file to sync."""
        size_bytes = BATCH_OVERHEAD_BYTES + len(payload) + SEAL_BYTES
        if self._position + size_bytes > self._segment_bytes and self._position > HEADER_BYTES:
            self.roll()
        file = self._file or self._begin(HEADER_BYTES + size_bytes)
        self._allocate(file, self._position + size_bytes)
        data = encode_batch(self.sequence, moment, payload, self._salt)
        self._write(file, data)
        self._placed = len(data)
        return file

    def _allocate(self, file: File, end: int) -> None:
        """Allocate the blocks of the segment up to `end`, and of the whole segment unless the disk is full."""
        if end <= self._allocated:
            return
        sizes = (end + limits.FULL_SEGMENT_BYTES, end) if self.frugal else (max(end, self._segment_bytes),)
        for size in sizes:
            try:
                file.allocate(size)
            except OSError as error:
                refusal = error
                self._release(file)
            else:
                self._allocated = size
                return
        raise failure(file.name, refusal) from refusal

    def _release(self, file: File) -> None:
        """Release blocks after the allocated ones: an allocation that failed may have got some. The record comes first,
        because a file that is shorter than its record was cut."""
        if not self._allocated:
            return
        newest = self._record.newest
        if newest.number == self.number and newest.size_bytes > self._allocated:
            self._note(newest._replace(size_bytes=self._allocated))
        with contextlib.suppress(OSError):
            file.truncate(self._allocated)

    def settle(self) -> None:
        """Note that the placed batch is durable."""
        self._position += self._placed
        self._unfolded[self.number] = self._position
        self.sequence += 1

    @property
    def unfolded_bytes(self) -> int:
        return sum(self._unfolded.values())

    def roll(self) -> None:
        """Seal the segment, so that the next batch goes into a new one."""
        file = self._file
        if file is not None:
            self._write(file, encode_seal(self.sequence, self._salt))
            _sync(file)
            self._close_file()
            self.number += 1

    def end(self) -> None:
        """Seal the journal before the server stops, and record where it ends."""
        self.roll()
        self._note(self._record.newest._replace(ended=self.sequence))

    def _begin(self, end: int) -> File:
        """Begin a segment whose blocks are allocated up to `end`."""
        name = segment_name(self.number)
        self._salt = self._new_salt()
        self._position = 0
        try:
            self._rename_allocated(name, end)
            self._file = file = self._disk.open(name)
        except OSError as error:
            raise failure(name, error) from error
        try:
            size_bytes = self._extend(file)
            self._write(file, encode_header(self.number, self._salt, self._record.newest.salt))
            _sync(file)
            self._sync_names(name)
            self._note(Newest(self.number, self._salt, self.sequence, size_bytes))
        except BaseException:
            self._close_file()
            raise
        self._position = HEADER_BYTES
        if self._allocated >= self._segment_bytes:
            self._whole.add(self.number)
        return file

    def _rename_allocated(self, name: str, end: int) -> None:
        """Give a name to the spare file, or to a new one, after its blocks are allocated."""
        names = self._disk.names()
        if name in names:
            return  # an earlier attempt failed after this
        source = _SPARE if _SPARE in names else _UNBEGUN
        self._allocated = self._segment_bytes if source is _SPARE else 0
        file = self._disk.open(source)
        try:
            self._allocate(file, end)
        except DiskFullError:
            if source is _UNBEGUN:
                self._disk.remove(source)
            raise
        finally:
            file.close()
        self._disk.rename(source, name)

    def _extend(self, file: File) -> int:
        """Give a file that was not allocated ahead its full length, which needs no space. A shorter one was cut."""
        try:
            return file.extend(self._segment_bytes)
        except OSError as error:
            raise failure(file.name, error) from error

    def _note(self, newest: Newest) -> None:
        try:
            self._record.write(newest)
        except OSError as error:
            raise failure(segment_name(newest.number), error) from error

    def _sync_names(self, name: str) -> None:
        try:
            self._disk.sync_names()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:  # the directory could not be opened; no sync has failed
                raise failure(name, error) from error
            raise JournalFailedError(name, error) from error

    def _write(self, file: File, data: bytes) -> None:
        try:
            file.write(self._position, data)
        except OSError as error:
            raise failure(file.name, error) from error

    def check_spare(self) -> None:
        """Remove files of an earlier process that are not, or not whole, spare segments."""
        for name in (_UNFINISHED, _UNBEGUN, _SPARE):
            if name not in self._disk.names():
                continue
            file = self._disk.open(name)
            try:
                if name is _SPARE:
                    file.allocate(self._segment_bytes)  # the segments of that process may have been smaller
                    continue
            except OSError as error:
                log.warning("the spare segment is removed: %s", error)
            finally:
                file.close()
            self._disk.remove(name)

    def check_room(self, count: int) -> None:
        """Raise OSError unless this many segments can be allocated, of which the spare is one. Nothing is written."""
        count -= _SPARE in self._disk.names()
        if count > 0:
            file = self._disk.open(_UNFINISHED)
            try:
                file.allocate(count * self._segment_bytes)
            finally:
                file.truncate(0)
                file.close()

    def prepare(self) -> None:
        """Allocate a file for the next segment."""
        if _SPARE in self._disk.names():
            return
        file = self._disk.open(_UNFINISHED)
        try:
            file.allocate(self._segment_bytes)  # fails at once if there is not enough space
            for position in range(0, self._segment_bytes, len(_ZEROS)):
                file.write(position, _ZEROS)
            file.sync()
        except BaseException:
            file.truncate(0)
            raise
        finally:
            file.close()
        self._disk.rename(_UNFINISHED, _SPARE)

    def recycle(self, number: int) -> None:
        """Remove a folded segment, or keep its file as the spare if there is none and all its blocks are allocated."""
        self._unfolded.pop(number, None)
        whole = number in self._whole
        self._whole.discard(number)
        try:
            name = segment_name(number)
            if not whole or _SPARE in self._disk.names() or self._disk.is_shared(name):
                self._disk.remove(name)
            else:
                self._disk.rename(name, _SPARE)
        except OSError as error:
            log.warning("%s is folded and will be removed at the next start: %s", segment_name(number), error)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._allocated = 0

    def close(self) -> None:
        self._close_file()
        self._record.close()


def _sync(file: File) -> None:
    try:
        file.sync()
    except OSError as error:
        raise JournalFailedError(file.name, error) from error


def failure(name: str, error: OSError) -> Exception:
    """Map an error before a sync: lack of space or descriptors is temporary, any other error is final."""
    if error.errno in PASSING:
        return DiskFullError(f"{name}: {error.strerror}")
    return JournalFailedError(name, error)


def seal_tail(disk: Disk, segment: Segment, size_bytes: int) -> None:
    """Rewrite a segment without its damaged end, and seal it. Its file gets at least a length."""
    file = disk.open("recovered.journal")
    try:
        file.truncate(0)
        file.write(0, segment._replace(sealed=True).encode(segment.next_sequence or 0))
        file.extend(size_bytes)
        file.sync()
    finally:
        file.close()
    disk.rename("recovered.journal", segment_name(segment.number))
    disk.sync_names()
