"""A consistent copy of the index, block by block, while the fold writes to it.

SQLite moves pages from its log into the database file only as far as the oldest reader has seen the log. So when all of
the log has been moved, a reader that begins then and stays keeps the file as it is, and the file alone is the index:
it can be read in order, without a second copy on the disk. Whether all was moved is in the header of the log's own
index, the file `-shm`, whose format SQLite documents ("WAL-mode File Format").

The locks that keep the file as it is are those of the process on `-shm`, and the system drops all of them as soon as
the process closes any descriptor of it. So there is one, which is closed after the connection.
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

_HEADER_BYTES = 48  # of the log's index; it is there twice
_FRAMES = struct.Struct("=I")
_FRAMES_AT = 16  # in the header: the frames of the log that count
_MOVED_AT = 2 * _HEADER_BYTES  # how many of them are in the database file

Progress = Callable[[int, int], None]


class Frozen(NamedTuple):
    """An index file that does not change."""

    size_bytes: int
    segment: int  # the last that is folded into it
    sequence: int


@contextlib.contextmanager
def frozen(path: Path) -> Iterator[Frozen]:
    """Keep the file of an index as it is. Meanwhile what is folded stays in the log, which grows."""
    connection, log_index = index.connect(path, write=True), -1
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()  # which makes the log's index
        log_index = os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC)
        deadline_s = time.monotonic() + limits.BACKUP_FREEZE_S
        while True:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            before = _log_state(log_index)
            connection.execute("BEGIN")
            meta = index.IndexReader(connection).meta()  # the read that begins the transaction
            if before is not None and before == _log_state(log_index):
                break
            connection.execute("ROLLBACK")
            if time.monotonic() > deadline_s:
                raise UnfitSourceError(f"{path} is written to without a pause. Try again when there is less load.")
            time.sleep(limits.BACKUP_FREEZE_RETRY_S)
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        [page_bytes] = connection.execute("PRAGMA page_size").fetchone()
        yield Frozen(pages * page_bytes, meta.folded_segment, meta.folded_sequence)
    finally:
        connection.close()
        if log_index >= 0:
            os.close(log_index)


def _log_state(log_index: int) -> bytes | None:
    """The header of the log's index if all of the log is in the database file."""
    found = os.pread(log_index, _MOVED_AT + _FRAMES.size, 0)
    header = found[:_HEADER_BYTES]
    if len(found) < _MOVED_AT + _FRAMES.size or header != found[_HEADER_BYTES:_MOVED_AT]:
        return None
    return header if header[_FRAMES_AT : _FRAMES_AT + _FRAMES.size] == found[_MOVED_AT:] else None


def copy_blocks(
    path: Path, size_bytes: int, put: Callable[[bytes, bytes], None], known: set[bytes], progress: Progress
) -> list[bytes]:
    """The digests of a file's blocks. Those that are not known are put, some at a time, and are known then."""
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
            known.clear()  # some were not put; the next attempt asks the target
            copiers.shutdown(cancel_futures=True)
            raise
    return digests


def _finish_one(under_way: set[Future[None]]) -> set[Future[None]]:
    done, left = wait(under_way, return_when=FIRST_COMPLETED)
    for copy in done:
        copy.result()
    return left


def log_bytes(path: Path) -> int:
    """How large the log of an index is."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0
