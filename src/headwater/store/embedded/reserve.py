"""A reserve on the disk: room that is given up when the disk is full, so that space can be freed.

Deleting streams needs room in the journal, and folding needs room in the index before it frees any. The reserve is a
file of allocated blocks. It is released when something finds the disk full, and taken again before anything else is
accepted.
"""

from __future__ import annotations

from headwater.store.embedded.disk import Disk

_NAME = "reserve"


class Reserve:
    def __init__(self, disk: Disk, size_bytes: int) -> None:
        self._disk = disk
        self._size_bytes = size_bytes

    def take(self) -> None:
        """Allocate it, or raise OSError and leave nothing allocated."""
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
