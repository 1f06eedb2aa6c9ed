"""The thread that follows a stream for a database, and waiting for its results, blocking."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwater import limits
from headwater.client import forking
from headwater.state.checkpoints import save
from headwater.state.following import FollowedState


class Background(FollowedState):
    """Runs the follower as a thread; the asyncio twin uses a task. Waiting needs the lock of the state."""

    def __init__(self) -> None:
        self._lock = threading.Condition(threading.RLock())
        self._process = forking.process()
        self._worker: threading.Thread | None = None

    def _begin(self, work: Callable[[], None]) -> None:
        """Start the thread, if it is not running."""
        self._check_process()  # before the lock, which a thread of the parent may hold
        with self._lock:
            if self._worker is None and not self._closing:
                self._process = forking.process()
                self._worker = threading.Thread(target=work, name="headwater-streamdb", daemon=True)
                self._worker.start()

    def _end(self) -> None:
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join(limits.STATE_CLOSE_S)

    def _wait(self, until: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        self._check_process()
        with self._lock:
            if not self._lock.wait_for(until, timeout_s):
                raise TimeoutError(f"{what} within {timeout_s} s")

    def _notify(self) -> None:
        with self._lock:
            self._lock.notify_all()

    def _call(self, hook: Callable[[], Any]) -> None:
        hook()

    def _save(self, path: Path, data: bytes) -> None:
        save(path, data)
