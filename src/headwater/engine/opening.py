"""Opening a data directory: who owns it, what format it has, and the store over it."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headwater.engine.folding import FOLD_LOCK, INDEX_NAME, JOURNAL_DIR, LOCK_WAIT_S, SubprocessFolder
from headwater.limits import Limits
from headwater.protocol.stream import evolve
from headwater.store import index
from headwater.store.disk import Lock, RealDisk
from headwater.store.embedded import EmbeddedStore
from headwater.store.journal import UnknownFormatError
from headwater.store.syncing import best_syncer
from headwater.store.threads import ThreadRunner

FORMAT = "headwater data directory, format 1\n"
_FORMAT_NAME = "FORMAT"
_OWNER_LOCK = "owner.lock"


def open_store(directory: Path, limits: Limits) -> EmbeddedStore:
    """The embedded store of a directory, made if it is not there. One process at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = Lock(directory / _OWNER_LOCK)
    try:
        check_format(directory)
        Lock(directory / FOLD_LOCK, wait_s=LOCK_WAIT_S).release()  # the worker of a killed server is on its way out
        index.create(directory / INDEX_NAME)
        return EmbeddedStore(
            RealDisk(directory / JOURNAL_DIR),
            lambda: index.connect(directory / INDEX_NAME, write=False),
            evolve,
            limits=limits,
            syncer=best_syncer(),
            helper=ThreadRunner("headwater-spare"),
            folder=SubprocessFolder(directory),
            salt=lambda: secrets.randbits(32),
            readers=ThreadPoolExecutor(2, "headwater-read"),
            release=lock.release,
        )
    except BaseException:
        lock.release()
        raise


def check_format(directory: Path) -> None:
    path = directory / _FORMAT_NAME
    if not path.exists():
        if any(name for name in directory.iterdir() if name.name != _OWNER_LOCK):
            raise UnknownFormatError(f"{directory} is not empty and not a Headwater data directory")
        path.write_text(FORMAT)
    elif path.read_text() != FORMAT:
        found = path.read_text(errors="replace").strip()[:80]
        raise UnknownFormatError(f"{directory} has {found!r}; this version knows {FORMAT.strip()!r}")
