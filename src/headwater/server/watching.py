"""Reloads files when they change: certificates and the auth file.

Each second, and on SIGHUP, a thread checks the inode, size and time of the files, so that written and renamed files are
noticed, also through symbolic links. If a file cannot be loaded, the error is logged and counted, and the previous
content stays in use until the files change again. A file that cannot be read is tried at every look, because its own
times do not change when a directory permits it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from headwater.limits import WATCH_S

log = logging.getLogger("headwater.server")
T = TypeVar("T")
_Print: TypeAlias = tuple[tuple[int, ...] | None, ...]


class Watched(Generic[T]):
    """The content of some files. `load` runs in a thread; `use` is called with its result on the event loop."""

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        load: Callable[[], T],
        use: Callable[[T], None],
        noted: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._noted = noted
        self.what = what  # its name in the log
        self._paths = paths  # which `load` may change
        self._load = load
        self._use = use
        self._seen = self._print()  # before the first load, so that no change is missed
        self._unreadable = False
        self.failures = 0
        self.fault = ""  # why the current files are not in use

    @property
    def label(self) -> str:
        """Its name in the metrics."""
        return self.what.removeprefix("the ").replace(" ", "-")

    async def look(self, *, anyway: bool = False) -> None:
        """Reload if a file has changed, or if `anyway` is set."""
        try:
            content = await asyncio.to_thread(self._changed, anyway)
            if content:
                self._use(content[0])
                self.fault, self._unreadable = "", False
                log.info("%s was reloaded", self.what)
                self._noted(self.label, "")
        except Exception as error:  # noqa: BLE001 - the previous content stays in use
            if str(error) != self.fault or not self._unreadable:
                log.error("%s cannot be loaded, the previous content stays in use: %s", self.what, error)
                self.failures += 1
                self._noted(self.label, str(error))
            self.fault, self._unreadable = str(error) or type(error).__name__, isinstance(error, OSError)

    def _changed(self, anyway: bool) -> tuple[T] | None:
        now = self._print()
        if now == self._seen and not anyway and not self._unreadable:
            return None
        self._seen = now
        return (self._load(),)

    def _print(self) -> _Print:
        return tuple(_file_print(path) for path in self._paths)


def _file_print(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class FileWatcher:
    """Watches all files of a server. `noted` is called with the label of a file that was loaded again, and the error if
    that failed."""

    def __init__(self, every_s: float = WATCH_S, noted: Callable[[str, str], None] = lambda *_: None) -> None:
        self._noted = noted
        self._every_s = every_s
        self._watched: list[Watched[object]] = []
        self._task: asyncio.Task[None] | None = None
        self._wakeup = asyncio.Event()

    @property
    def watched(self) -> Sequence[Watched[object]]:
        return self._watched

    def add(self, what: str, paths: Sequence[Path], load: Callable[[], T], use: Callable[[T], None]) -> T:
        """Load files and watch them. Errors of the first load are raised."""
        watched = Watched(what, paths, load, use, self._noted)
        loaded = load()
        self._watched.append(watched)  # type: ignore[arg-type]
        return loaded

    def start(self) -> None:
        if self._watched and self._task is None:
            self._task = asyncio.create_task(self._run())

    def reload(self) -> None:
        """Reload everything (SIGHUP)."""
        log.info("told to load again: %s", ", ".join(one.what for one in self._watched) or "there is nothing to load")
        self._wakeup.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._every_s):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
            anyway = self._wakeup.is_set()
            self._wakeup.clear()
            for watched in self._watched:
                await watched.look(anyway=anyway)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
