"""Checks that the journal of a directory is complete, while a server may be writing to it.

A backup copies what it finds. Without this check, a segment that was lost would look like a journal that ends earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headwater import limits
from headwater.store.embedded import layout
from headwater.store.embedded.backup.failures import DamagedSourceError
from headwater.store.embedded.disk import RealDisk
from headwater.store.embedded.index import Meta
from headwater.store.embedded.journal import CorruptJournalError
from headwater.store.embedded.newest import read_segments


def check_journal(directory: Path, meta: Callable[[], Meta]) -> None:
    """Raise DamagedSourceError unless every segment that is not folded is there and valid.

    A server may write, fold or remove segments in the meantime, and then they look damaged. It removes a segment only
    after the index records its fold. So the damage is real if it is found twice while the index has not changed.
    """
    disk = RealDisk(directory / layout.JOURNAL_DIR)
    found: tuple[Meta, str] | None = None
    while True:
        folded = meta()
        try:
            for _ in read_segments(disk, folded.folded):
                """Reading verifies them."""
        except CorruptJournalError as error:
            if found == (folded, str(error)):
                raise DamagedSourceError(directory, error) from error
            found = folded, str(error)
        except FileNotFoundError:  # removed after its name was read
            found = None
        else:
            return
        time.sleep(limits.BACKUP_HOLD_S)
