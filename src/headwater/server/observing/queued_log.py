"""A log of lines that a separate thread writes: the access log and the audit log.

The event loop appends to a bounded queue and never waits. If the queue is full, lines are dropped and counted. The
thread reopens the file on request, so that a log can be rotated by renaming it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from headwater import limits

log = logging.getLogger("headwater.access")

STDOUT = "-"
Entry = TypeVar("Entry")


class QueuedLog(Generic[Entry]):
    def __init__(self, name: str, target: str, render: Callable[[Entry], str]) -> None:
        self.dropped = 0
        self._name = name
        self._target = target
        self._render = render
        self._waiting: deque[Entry] = deque()
        self._news = threading.Event()
        self._reopening = False
        self._closing = False
        self._descriptor = -1
        self._failing = False
        self._thread = threading.Thread(target=self._run, name=f"headwater-{name.replace(' ', '-')}", daemon=True)

    def start(self) -> None:
        """Open the file and start the thread. Raises OSError."""
        self._descriptor = self._open()
        self._thread.start()

    # On the event loop

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= limits.ACCESS_LOG_WAITING_MAX

    def put(self, entry: Entry) -> None:
        if self.is_full:
            self.dropped += 1
            return
        self._waiting.append(entry)
        if not self._news.is_set():
            self._news.set()

    def reopen(self) -> None:
        """Reopen the file at the path."""
        self._reopening = True
        self._news.set()

    def close(self) -> None:
        """Write the queued lines; give up if the target blocks."""
        self._closing = True
        self._news.set()
        self._thread.join(limits.ACCESS_LOG_CLOSE_S)

    # In the thread

    def _open(self) -> int:
        if self._target == STDOUT:
            return os.dup(1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(Path(self._target), flags | os.O_NONBLOCK, 0o640)  # does not wait for the reader of a pipe
        os.set_blocking(descriptor, True)
        return descriptor

    def _run(self) -> None:
        while not self._closing or self._waiting:
            self._news.wait()
            if not self._closing:
                time.sleep(limits.ACCESS_LOG_EVERY_S)  # writing many lines at once is cheaper
            self._news.clear()
            try:
                if self._reopening:
                    self._reopen()
                self._write_waiting()
            except OSError as error:
                self._failed(error)
            else:
                self._failing = False
        os.close(self._descriptor)

    def _reopen(self) -> None:
        self._reopening = False
        descriptor = self._open()
        descriptor, self._descriptor = self._descriptor, descriptor
        os.close(descriptor)

    def _write_waiting(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), limits.ACCESS_LOG_BATCH)
            entries = [self._waiting.popleft() for _ in range(count)]
            data = memoryview("".join([f"{self._render(entry)}\n" for entry in entries]).encode("ascii"))
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                self.dropped += count
                raise

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            log.error("the %s %s cannot be written: %s", self._name, self._target, error.strerror)
        self._failing = True
