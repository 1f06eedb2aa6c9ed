"""The access log: a line for every request, written by a separate thread.

The event loop appends to a bounded queue and never waits. If the queue is full, lines are dropped and counted. The
thread reopens the file on request, so that a log can be rotated by renaming it.

A line contains no secrets. Of the query, only the values of known parameters are shown, and of the headers only the
user agent. Control characters and characters outside ASCII are escaped, so that a request cannot forge a line or send
control sequences to a terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from headwater import limits
from headwater.errors import OptionError
from headwater.server.http import Request, Response
from headwater.server.observing.logs import escaped

log = logging.getLogger("headwater.access")

STDOUT = "-"

# Parameters whose values are shown, because they contain no secrets.
_SHOWN = frozenset(
    (
        *("offset", "live", "cursor", "until", "prefix", "after", "limit", "parts", "bytes", "at", "compact", "by"),
        *("since_id", "timeout", "idle", "view", "stream"),
    )
)
_SUSPECT = frozenset("=;@")  # in a value, these may be followed by another parameter or a password
_HIDDEN = "[hidden]"


class Entry(NamedTuple):
    at_s: float
    peer: str
    identity: str
    method: str
    path: str
    query: str
    version: str
    status: int
    sent_bytes: int | None  # None: the response stays open
    took_s: float
    agent: str
    request_id: str


class AccessLog:
    """Made by `open_access_log`; a watcher of an observer."""

    def __init__(self, target: str, render: Callable[[Entry], str], clock: Callable[[], float] = time.time) -> None:
        self.dropped = 0
        self._target = target
        self._render = render
        self._clock = clock
        self._waiting: deque[Entry] = deque()
        self._news = threading.Event()
        self._reopening = False
        self._closing = False
        self._descriptor = -1
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="headwater-access-log", daemon=True)

    def start(self) -> None:
        """Open the file and start the thread. Raises OSError."""
        self._descriptor = self._open()
        self._thread.start()

    # On the event loop

    def note(self, request: Request, response: Response, took_s: float) -> None:
        if len(self._waiting) >= limits.ACCESS_LOG_WAITING_MAX:
            self.dropped += 1
            return
        self._waiting.append(
            Entry(
                self._clock(),
                request.peer,
                request.identity,
                request.method[:16],
                request.path[: limits.ACCESS_LOG_PATH_LENGTH_MAX],
                request.query[: limits.ACCESS_LOG_PATH_LENGTH_MAX],
                request.version,
                response.status,
                None if response.feed is not None else sum(map(len, response.body)),
                took_s,
                request.headers.get("user-agent", "")[: limits.ACCESS_LOG_AGENT_LENGTH_MAX],
                request.id,
            )
        )
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
            log.error("the access log %s cannot be written: %s", self._target, error.strerror)
        self._failing = True


def open_access_log(target: str, *, as_json: bool) -> AccessLog:
    """An access log that writes to a file, or to standard output for `-`."""
    access_log = AccessLog(target, as_json_line if as_json else as_combined_line)
    try:
        access_log.start()
    except OSError as error:
        raise OptionError(f"the access log {target} cannot be opened: {error.strerror}") from error
    return access_log


def as_combined_line(entry: Entry) -> str:
    """The combined format of Apache and nginx, followed by the duration in seconds and the request id."""
    asked = f"{entry.method} {_shown_target(entry)} HTTP/{entry.version}"
    sent = "-" if entry.sent_bytes is None else entry.sent_bytes
    return (
        f"{escaped(entry.peer) or '-'} - {escaped(entry.identity) or '-'} [{_instant(entry.at_s)}] "
        f'"{_quoted(asked)}" {entry.status} {sent} {entry.took_s:.6f} "{_quoted(entry.agent)}" {entry.request_id}'
    )


def as_json_line(entry: Entry) -> str:
    described: dict[str, Any] = {
        "time": _instant(entry.at_s),
        "peer": entry.peer,
        "identity": entry.identity,
        "method": entry.method,
        "target": _shown_target(entry),
        "version": entry.version,
        "status": entry.status,
        "sent_bytes": entry.sent_bytes,
        "took_s": round(entry.took_s, 6),
        "user_agent": entry.agent,
        "request_id": entry.request_id,
    }
    return json.dumps(described).replace("\x7f", "\\u007f")


def _shown_target(entry: Entry) -> str:
    """Path and query, with the values of unknown parameters hidden."""
    if not entry.query:
        return entry.path
    shown = []
    for part in entry.query.split("&"):
        name, _, value = part.partition("=")
        shown.append(part if name in _SHOWN and not _SUSPECT & {*value} else _HIDDEN)
    return f"{entry.path}?{'&'.join(dict.fromkeys(shown))}"


def _quoted(text: str) -> str:
    return escaped(text).replace('"', '\\"')


def _instant(at_s: float) -> str:
    with contextlib.suppress(OverflowError, ValueError, OSError):  # the clock may be out of range
        return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{at_s:.3f}"
