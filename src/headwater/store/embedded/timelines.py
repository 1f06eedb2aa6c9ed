"""Timelines of a data directory: one begins when acknowledged data is not in the directory any more.

`headwater restore` and `headwater check --salvage` begin one. Offsets and entity tags of data that is appended later
have its id, so those of the lost data never match (`log/offsets.py`).
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from headwater import limits
from headwater.store.embedded import layout
from headwater.store.embedded.index_writer import IndexWriter


def now_us() -> int:
    """The current time. Ids of streams are below it, because they follow the clock (`engine/writer.py`)."""
    return time.time_ns() // 1000


def random_gap() -> int:
    """By how much the id of a timeline is larger than all ids that are known (`IndexWriter.begin_timeline`)."""
    return 1 + secrets.randbelow(limits.TIMELINE_GAP_MAX)


def begin_timeline(directory: Path) -> int:
    """Begin a timeline in a directory that was set back by other means, such as a snapshot of its disk."""
    with layout.owned_index(directory, write=True) as opened:
        return IndexWriter(opened).begin_timeline(now_us(), random_gap())
