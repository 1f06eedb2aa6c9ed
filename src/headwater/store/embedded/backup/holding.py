"""Hard links that keep segments of the journal until a backup has copied them.

After a fold the server removes a segment or overwrites it with the next one. It does not overwrite a segment with a
second link (`JournalWriter.recycle`), so the link keeps it readable. The number of links is bounded, and they are
removed if the disk becomes full. The backup then needs a new base; the server is not affected.

A backup copies what it finds, so it also checks that the journal is complete, while a server may be writing to it.
Otherwise a segment that was lost would look like a journal that ends earlier.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headwater import limits
from headwater.store.embedded import layout
from headwater.store.embedded.backup.failures import DamagedSourceError
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.index import Meta
from headwater.store.embedded.journal import CorruptJournalError, segment_name, segment_numbers
from headwater.store.embedded.layout import share
from headwater.store.embedded.newest import read_segments


class HeldJournal:
    """The journal of a directory (`tailing.Journal`). A thread links new segments while a copy is in progress."""

    def __init__(self, journal: Path, held: Path) -> None:
        self._journal = journal
        self._held = held
        self._released = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headwater-hold", daemon=True)

    def start(self) -> None:
        self._held.mkdir(mode=0o700, parents=True, exist_ok=True)
        share(self._held, self._journal.parent)
        self.hold()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove all links."""
        self._stop.set()
        self._thread.join()
        self._let_go(self._numbers(self._held))

    def _run(self) -> None:
        while not self._stop.wait(limits.BACKUP_HOLD_S):
            with contextlib.suppress(OSError):  # the directory may be gone; the next read reports it
                self.hold()

    def hold(self) -> None:
        """Link new segments."""
        with self._lock:
            held = self._numbers(self._held)
            disk = os.statvfs(self._held)
            if len(held) > limits.BACKUP_HELD_SEGMENTS_MAX or (
                disk.f_bavail * disk.f_frsize < limits.BACKUP_FREE_BYTES_MIN
            ):
                self._let_go(held)
                return
            for number in self._numbers(self._journal):
                if number > self._released:
                    with contextlib.suppress(OSError):  # already removed, or the file system has no links
                        self._link(segment_name(number))

    def _link(self, name: str) -> None:
        """Link a segment. A link to another file of that name is replaced: a server that is killed while it begins a
        segment leaves a file that the next server removes, and it then begins one of the same number."""
        segment, link = self._journal / name, self._held / name
        if link.exists():
            if link.samefile(segment):
                return
            link.unlink()
        os.link(segment, link)

    def _let_go(self, numbers: list[int]) -> None:
        for number in numbers:
            (self._held / segment_name(number)).unlink(missing_ok=True)

    @staticmethod
    def _numbers(folder: Path) -> list[int]:
        return segment_numbers(RealDisk(folder))

    # Journal

    def numbers(self) -> list[int]:
        return sorted({*self._numbers(self._journal), *self._numbers(self._held)})

    def read(self, number: int, position: int, size: int) -> bytes:
        descriptor = self._descriptor(number)
        try:
            return os.pread(descriptor, size, position)
        finally:
            os.close(descriptor)

    def sync(self, number: int) -> None:
        try:
            descriptor = self._descriptor(number)
        except FileNotFoundError:
            return
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _descriptor(self, number: int) -> int:
        """Open a segment: the file of the server if there is one, because a link may be to one that was never begun."""
        try:
            return os.open(self._journal / segment_name(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return os.open(self._held / segment_name(number), os.O_RDONLY | os.O_CLOEXEC)

    def release(self, number: int) -> None:
        with self._lock:
            self._released = max(self._released, number)
            self._let_go([held for held in self._numbers(self._held) if held <= number])


def check_journal(directory: Path, meta: Callable[[], Meta]) -> None:
    """Raise DamagedSourceError unless every segment that is not folded is there and valid.

    A server may write, fold or remove segments in the meantime, and then they look damaged. It removes a segment only
    after the index records its fold. So the damage is real if it is found twice while the index has not changed.
    """
    disk = RealDisk(directory / layout.JOURNAL_DIR)
    damage: tuple[Meta, str] | None = None
    while True:
        folded = meta()
        try:
            for _ in read_segments(disk, folded.folded):
                """Reading verifies them."""
        except CorruptJournalError as error:
            if damage == (folded, str(error)):
                raise DamagedSourceError(directory, error) from error
            damage = folded, str(error)
        except FileNotFoundError:  # removed after its name was read
            damage = None
        else:
            return
        time.sleep(limits.BACKUP_HOLD_S)
