"""Syncs the tables on a disk of this machine, so that a power loss takes nothing from a committed batch.

Neither Arrow nor delta-rs syncs what it writes. So whoever writes a data file syncs it, and the driver syncs the
directories that lead to it before the commit that names it. The entry of the log is synced after the commit, before
Spark records the batch. delta-rs writes the files of a MERGE or a compaction and commits them in one call, so these
files can only be synced after that commit.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

from headwater import limits

_LOG = "_delta_log"
_SYNC_FILE_RANGE_WRITE = 2


def begin_sync(descriptor: int) -> None:
    """Let the kernel begin to write a file to the disk, and do not wait for that.

    File systems with a journal then store many new files together: a later `sync` of each of them waits once.
    """
    if sys.platform == "linux" and (write := _sync_file_range()) is not None:
        write(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = ctypes.CDLL(None).sync_file_range
        return function
    except (OSError, AttributeError):  # this libc does not have it
        return None


def sync(path: Path) -> None:
    """Sync a file or a directory."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_all(paths: Collection[Path]) -> None:
    """Sync files or directories, several at a time: they share the writes of the file system's journal."""
    with ThreadPoolExecutor(limits.PIPELINE_SYNCS_AT_ONCE) as threads:
        list(threads.map(sync, paths))


def sync_directories(table: Path, files: Iterable[str]) -> None:
    """Sync the directories from a table to files below it, which are synced already."""
    directories = {Path(file).parent for file in files}
    directories |= {outer for inner in directories for outer in inner.parents}
    sync_all([table / directory for directory in directories])


def sync_created(table: Path) -> None:
    """Sync the log of a new table, and the directories that lead to it."""
    sync_commits(table, -1, files=False)
    sync(table)
    sync(table.parent)


def sync_commits(table: Path, after: int, *, files: bool) -> None:
    """Sync the entries of the log after a version, and the files that they add if these are not synced yet."""
    version = after + 1
    while (entry := table / _LOG / f"{version:020}.json").exists():
        if files:
            added = _added(entry)
            sync_all([table / path for path in added])
            sync_directories(table, added)
        sync(entry)
        version += 1
    if version > after + 1:
        sync_checkpoint(table, version - 1)


def sync_checkpoint(table: Path, version: int) -> None:
    """Sync the checkpoint of the log at a version, if there is one, and the directory of the log."""
    log = table / _LOG
    checkpoint = log / f"{version:020}.checkpoint.parquet"
    if checkpoint.exists():
        sync(checkpoint)
        sync(log / "_last_checkpoint")
    sync(log)


def _added(entry: Path) -> list[str]:
    actions = map(json.loads, entry.read_text().splitlines())
    return [unquote(action["add"]["path"]) for action in actions if "add" in action]
