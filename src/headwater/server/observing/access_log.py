"""The access log: a line for every request.

A line contains no secrets. Of the query, only the values of known parameters are shown, and of the headers only the
user agent. Control characters and characters outside ASCII are escaped, so that a request cannot forge a line or send
control sequences to a terminal.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headwater import limits
from headwater.errors import OptionError
from headwater.server.http import Request, Response
from headwater.server.observing.logs import escaped
from headwater.server.observing.queued_log import QueuedLog

# Parameters whose values are shown, because they contain no secrets.
_SHOWN = frozenset(
    (
        *("offset", "live", "cursor", "until", "prefix", "after", "limit", "parts", "bytes", "at", "compact", "by"),
        *("since_id", "timeout", "idle", "view", "stream"),
    )
)
_SUSPECT = frozenset("=;@")  # in a value, these may be followed by another parameter or a password
_HIDDEN = "[hidden]"


class AccessEntry(NamedTuple):
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


class AccessLog(QueuedLog[AccessEntry]):
    """Made by `open_access_log`; a watcher of an observer."""

    def __init__(
        self, target: str, render: Callable[[AccessEntry], str], clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__("access log", target, render)
        self._clock = clock

    def note(self, request: Request, response: Response, took_s: float) -> None:
        if self.is_full:
            self.dropped += 1
            return
        self.put(
            AccessEntry(
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


def open_access_log(target: str, *, as_json: bool) -> AccessLog:
    """An access log that writes to a file, or to standard output for `-`."""
    access_log = AccessLog(target, as_json_line if as_json else as_combined_line)
    try:
        access_log.start()
    except OSError as error:
        raise OptionError(f"the access log {target} cannot be opened: {error.strerror}") from error
    return access_log


def as_combined_line(entry: AccessEntry) -> str:
    """The combined format of Apache and nginx, followed by the duration in seconds and the request id."""
    first_line = f"{entry.method} {_shown_target(entry)} HTTP/{entry.version}"
    sent = "-" if entry.sent_bytes is None else entry.sent_bytes
    return (
        f"{escaped(entry.peer) or '-'} - {escaped(entry.identity) or '-'} [{instant(entry.at_s)}] "
        f'"{_quoted(first_line)}" {entry.status} {sent} {entry.took_s:.6f} "{_quoted(entry.agent)}" {entry.request_id}'
    )


def as_json_line(entry: AccessEntry) -> str:
    described: dict[str, Any] = {
        "time": instant(entry.at_s),
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


def _shown_target(entry: AccessEntry) -> str:
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


def instant(at_s: float) -> str:
    with contextlib.suppress(OverflowError, ValueError, OSError):  # the clock may be out of range
        return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{at_s:.3f}"
