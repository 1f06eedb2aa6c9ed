"""A consistent copy of the index, block by block, while the fold writes to it.

SQLite does not checkpoint pages of the write-ahead log (WAL) that are newer than the snapshot of the oldest reader. So
if the whole WAL is in the database file when a read transaction begins, the file does not change until the transaction
ends. The file alone is then the index, and can be copied in order without a second copy on the disk. Whether the whole
WAL is in the file can be read from the header of the WAL index (file `-shm`), whose format SQLite documents ("WAL-mode
File Format").

SQLite holds its locks on `-shm` per process, and the system releases all of them when the process closes any descriptor
of that file. So there is only one descriptor, which is closed after the connection.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from headwater import limits
from headwater.store.embedded import index
from headwater.store.embedded.backup.failures import UnfitSourceError
from headwater.store.embedded.backup.formats import block_digest

_HEADER_BYTES = 48  # of the WAL index, which has two copies of it
_FRAMES = struct.Struct("=I")
_FRAMES_AT = 16  # in the header: the number of valid frames in the WAL
_MOVED_AT = 2 * _HEADER_BYTES  # the number of frames that are in the database file

Progress = Callable[[int, int], None]


class Frozen(NamedTuple):
    """An index file while it does not change."""

    size_bytes: int
    segment: int  # the last folded segment
    sequence: int
    folded_ms: int  # the engine's time of the last folded batch


@contextlib.contextmanager
def frozen(path: Path) -> Iterator[Frozen]:
    """Prevent changes of the index file. In the meantime folds go to the WAL, which grows."""
    connection, log_index = index.connect(path, write=True), -1
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()  # creates the WAL index
        log_index = os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC)
        deadline_s = time.monotonic() + limits.BACKUP_FREEZE_S
        while True:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            before = _log_state(log_index)
            connection.execute("BEGIN")
            meta = index.IndexReader(connection).meta()  # begins the read transaction
            if before is not None and before == _log_state(log_index):
                break
            connection.execute("ROLLBACK")
            if time.monotonic() > deadline_s:
                raise UnfitSourceError(f"{path} is written without a pause. Try again under less load.")
            time.sleep(limits.BACKUP_FREEZE_RETRY_S)
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        [page_bytes] = connection.execute("PRAGMA page_size").fetchone()
        yield Frozen(pages * page_bytes, meta.folded_segment, meta.folded_sequence, meta.latest.at_ms)
    finally:
        connection.close()
        if log_index >= 0:
            os.close(log_index)


def _log_state(log_index: int) -> bytes | None:
    """The header of the WAL index if the whole WAL is in the database file."""
    data = os.pread(log_index, _MOVED_AT + _FRAMES.size, 0)
    header = data[:_HEADER_BYTES]
    if len(data) < _MOVED_AT + _FRAMES.size or header != data[_HEADER_BYTES:_MOVED_AT]:
        return None
    return header if header[_FRAMES_AT : _FRAMES_AT + _FRAMES.size] == data[_MOVED_AT:] else None


def copy_blocks(
    path: Path, size_bytes: int, put: Callable[[bytes, bytes], None], known: set[bytes], progress: Progress
) -> list[bytes]:
    """Return the digests of the blocks of a file. Blocks that are not in `known` are put and added to it."""
    digests: list[bytes] = []
    under_way: set[Future[None]] = set()
    with open(path, "rb") as file, ThreadPoolExecutor(limits.BACKUP_COPIES_AT_ONCE, "headwater-copy") as copiers:
        try:
            for start in range(0, size_bytes, limits.BACKUP_BLOCK_BYTES):
                block = os.pread(file.fileno(), min(limits.BACKUP_BLOCK_BYTES, size_bytes - start), start)
                digest = block_digest(block)
                digests.append(digest)
                if digest not in known:
                    known.add(digest)
                    under_way.add(copiers.submit(put, digest, block))
                    if len(under_way) >= limits.BACKUP_COPIES_AT_ONCE:
                        under_way = _finish_one(under_way)
                progress(start + len(block), size_bytes)
            for copy in under_way:
                copy.result()
        except BaseException:
            known.clear()  # some may not be put; the next attempt asks the target
            copiers.shutdown(cancel_futures=True)
            raise
    return digests


def _finish_one(under_way: set[Future[None]]) -> set[Future[None]]:
    done, left = wait(under_way, return_when=FIRST_COMPLETED)
    for copy in done:
        copy.result()
    return left


def log_bytes(path: Path) -> int:
    """The size of the WAL of an index."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0
