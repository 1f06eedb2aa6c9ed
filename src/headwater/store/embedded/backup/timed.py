"""A target whose operations end in time: a file system or a bucket that hangs is an error, not silence.

A call into a file system that hangs cannot be interrupted. So each operation runs in a thread of its own, and its
caller gives up after a while. Until the thread returns, further operations fail at once, so that threads do not
accumulate.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.store.embedded.backup.failures import TargetError

if TYPE_CHECKING:
    from headwater.store.embedded.backup.targets import BackupTarget

T = TypeVar("T")


class TimedTarget:
    """Another target with a limit for each operation."""

    def __init__(self, target: BackupTarget, limit_s: float) -> None:
        self.url = target.url
        self._target = target
        self._limit_s = limit_s
        self._hanging: dict[threading.Thread, float] = {}  # since when

    def sizes(self, prefix: str, after: str = "") -> dict[str, int]:
        return self._in_time(lambda: self._target.sizes(prefix, after))

    def is_empty(self) -> bool:
        return self._in_time(self._target.is_empty)

    def get(self, name: str) -> bytes:
        return self._in_time(lambda: self._target.get(name))

    def put(self, name: str, data: bytes) -> None:
        self._in_time(lambda: self._target.put(name, data))

    def create(self, name: str, data: bytes) -> bool:
        return self._in_time(lambda: self._target.create(name, data))

    def remove(self, names: Iterable[str]) -> None:
        left = list(names)
        self._in_time(lambda: self._target.remove(left))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        lock = self._target.lock()
        self._in_time(lock.__enter__)
        try:
            yield
        finally:
            with contextlib.suppress(TargetError):  # the system releases it with the process
                self._in_time(lambda: lock.__exit__(None, None, None))

    def _in_time(self, work: Callable[[], T]) -> T:
        for thread, since_s in list(self._hanging.items()):
            if thread.is_alive():
                raise TargetError(self.url, f"it has not answered for {time.monotonic() - since_s:.0f} s")
            self._hanging.pop(thread, None)
        outcome: list[tuple[Any, BaseException | None]] = []

        def run() -> None:
            try:
                outcome.append((work(), None))
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                outcome.append((None, error))

        started_s = time.monotonic()
        thread = threading.Thread(target=run, name="headwater-target", daemon=True)
        thread.start()
        thread.join(self._limit_s)
        if not outcome:
            self._hanging[thread] = started_s
            raise TargetError(self.url, f"it has not answered for {self._limit_s:g} s")
        value, error = outcome[0]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]
