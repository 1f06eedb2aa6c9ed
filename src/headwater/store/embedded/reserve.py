"""The reserve: disk space that is released when the disk is full, so that streams can be deleted.

Deleting streams needs space in the journal, and folding needs space in the index before it frees any. The reserve is a
file with allocated blocks. It is removed when the disk is full, and allocated again before other writes are accepted.
"""

from __future__ import annotations

from headwater.store.embedded.disk import Disk

_NAME = "reserve"


class Reserve:
    def __init__(self, disk: Disk, size_bytes: int) -> None:
        self._disk = disk
        self._size_bytes = size_bytes

    def take(self) -> None:
        """Allocate the reserve, or raise OSError and allocate nothing."""
        file = self._disk.open(_NAME)
        try:
            file.allocate(self._size_bytes)
        except OSError:
            file.truncate(0)
            raise
        finally:
            file.close()

    def release(self) -> None:
        if _NAME in self._disk.names():
            self._disk.remove(_NAME)
