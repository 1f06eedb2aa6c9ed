"""The audit log: who created, closed, trimmed and deleted what, changed retentions and NURLs, signed URLs, and which
tokens and files changed.

A line is a JSON object. Requests that were refused are in it too. Appends and reads are in the access log.
"""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headwater import limits
from headwater.errors import OptionError
from headwater.protocol.streams import headers
from headwater.server.auth.scopes import Action
from headwater.server.http import Request, Respond, Response
from headwater.server.observing.access_log import instant
from headwater.server.observing.queued_log import QueuedLog

if TYPE_CHECKING:
    from headwater.server.routes import Route

SERVER = "headwater"  # the identity of what the server does itself
SIGN, ADVERTISE, WITHDRAW, CLOSE = "sign", "notify", "withdraw", "close"
SUBSCRIBE, UNSUBSCRIBE = "subscribe", "unsubscribe"
TRIM, COMPACT = "trim", "compact"
GRANT, REVOKE, RELOAD = "grant", "revoke", "reload"
_OK, _FAILED = 300, 500


class AuditEntry(NamedTuple):
    at_s: float
    action: str
    identity: str
    path: str  # of the request; or the name of a token or a file
    outcome: str  # ok, refused or failed
    status: int | None = None
    address: str = ""
    request_id: str = ""
    detail: str = ""


class AuditLog(QueuedLog[AuditEntry]):
    def __init__(self, target: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__("audit log", target, as_line)
        self._clock = clock

    def noting(self, action: str, request: Request, respond: Respond, identify: Callable[[Request], str]) -> Respond:
        """A function that responds to a request and records it."""

        def noted(response: Response) -> None:
            self.note(action, request, response, identify(request))
            respond(response)

        return noted

    def note(self, action: str, request: Request, response: Response, request_id: str) -> None:
        status = response.status
        outcome = "ok" if status < _OK else "refused" if status < _FAILED else "failed"
        path = request.path[: limits.ACCESS_LOG_PATH_LENGTH_MAX]
        identity = f"{request.identity} (signed URL)" if request.caller.signature else request.identity
        detail = _detail(action, request)
        self.put(AuditEntry(self._clock(), action, identity, path, outcome, status, request.peer, request_id, detail))

    def token_changed(self, action: str, name: str) -> None:
        self.put(AuditEntry(self._clock(), action, SERVER, name, "ok", detail="as the auth file now says"))

    def reloaded(self, what: str, fault: str) -> None:
        self.put(AuditEntry(self._clock(), RELOAD, SERVER, what, "failed" if fault else "ok", detail=fault))


def open_audit_log(target: str) -> AuditLog:
    """An audit log that writes to a file, or to standard output for `-`."""
    audit_log = AuditLog(target)
    try:
        audit_log.start()
    except OSError as error:
        raise OptionError(f"the audit log {target} cannot be opened: {error.strerror}") from error
    return audit_log


def audited(route: Route, request: Request) -> str | None:
    """The action that a request is recorded as; None if it is not."""
    action, method = route.action.action, request.method
    if action is Action.RETAIN and method == "POST":
        return COMPACT if route.template.endswith(COMPACT) else TRIM
    if action in (Action.CREATE, Action.DELETE, Action.RETAIN, Action.NOTIFY):
        return action.value
    if action is Action.SUBSCRIBE and "subscriptions" in route.template:
        return UNSUBSCRIBE if method == "DELETE" else SUBSCRIBE
    if action is Action.SUBSCRIBE:
        return WITHDRAW
    if action is Action.APPEND:
        return CLOSE if headers.CLOSED in request.headers else None
    return SIGN if action is Action.READ and method == "POST" and route.write is not None else None


def _detail(action: str, request: Request) -> str:
    """What a request removes, or no longer keeps, which its path does not say."""
    if action in (TRIM, COMPACT):
        return request.query[: limits.ACCESS_LOG_PATH_LENGTH_MAX]
    if action == Action.RETAIN:
        changed = [f"{name}: {request.headers[name]}" for name in headers.RETENTION if name in request.headers]
        return ", ".join(changed)[: limits.ACCESS_LOG_PATH_LENGTH_MAX]
    return ""


def as_line(entry: AuditEntry) -> str:
    shown = {"time": instant(entry.at_s), **entry._asdict()}
    del shown["at_s"]
    return json.dumps(shown).replace("\x7f", "\\u007f")


def append_line(path: str, action: str, name: str) -> None:
    """Record what a command on this machine did, with the name of its user. Raises OSError."""
    user = pwd.getpwuid(os.getuid()).pw_name
    caller = os.environ.get("SUDO_USER")
    identity = f"{user} (sudo by {caller})" if caller else user
    line = as_line(AuditEntry(time.time(), action, identity, name, "ok", detail="headwater token"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    try:
        os.write(descriptor, f"{line}\n".encode("ascii"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
