"""Timelines of a data directory: one begins when acknowledged data is not in the directory any more.

`headwater restore` and `headwater check --salvage` begin one. Offsets and entity tags of data that is appended later
have its id, so those of the lost data never match (`log/offsets.py`).
"""

from __future__ import annotations

import time
from pathlib import Path

from headwater.store.embedded import index, layout, locking
from headwater.store.embedded.index_writer import IndexWriter


def now_us() -> int:
    """The current time. Ids of streams are below it, because they follow the clock (`engine/writer.py`)."""
    return time.time_ns() // 1000


def begin_timeline(directory: Path) -> int:
    """Begin a timeline in a directory that was set back by other means, such as a snapshot of its disk."""
    layout.check_format(directory)
    lock = locking.own(directory)
    connection = index.connect(directory / layout.INDEX_NAME, write=True)
    try:
        return IndexWriter(connection).begin_timeline(now_us())
    finally:
        connection.close()
        lock.release()
