"""Callers: the identity that sends a request, and its scopes."""

from __future__ import annotations

import math
from collections.abc import Callable

from headwater.errors import ForbiddenError, UnauthorizedError
from headwater.limits import AUTH_DECISIONS_CACHED_MAX, CACHED_TEXT_LENGTH_MAX
from headwater.protocol.tables.paths import LOG_PREFIX
from headwater.server.auth.scopes import Action, Scopes

ANONYMOUS = "anonymous"  # the name of callers without a token, if the auth file allows them


class Caller:
    """`until_s` is when the credential expires, in seconds since 1970. `scopes` None: everything is allowed, because
    access is not checked. Positive decisions are cached in `allowed`, up to a limit.
    """

    __slots__ = ("allowed", "id", "name", "owner", "renewed", "scopes", "signature", "until_s")

    def __init__(self, name: str, scopes: Scopes | None, until_s: float = math.inf, id: str = "") -> None:  # noqa: A002
        self.name = name
        self.scopes = scopes
        self.until_s = until_s
        self.id = id  # as the signer of URLs: see `signing`
        self.owner = ""  # of the streams that it creates: the name of its token in the auth file
        self.signature = ""  # of the signed URL that it uses
        self.renewed: Callable[[], Caller] = lambda: self  # checked by the current rules; may raise UnauthorizedError
        self.allowed: set[tuple[Action, str]] = set()  # cached decisions

    def may(self, action: Action, path: str) -> bool:
        """Whether the action is allowed; `path` is a path in the log."""
        if self.scopes is None or (action, path) in self.allowed:
            return True
        is_allowed = self.scopes.allow(action, path)
        if is_allowed and len(path) <= CACHED_TEXT_LENGTH_MAX:
            if len(self.allowed) >= AUTH_DECISIONS_CACHED_MAX:
                self.allowed.clear()
            self.allowed.add((action, path))
        return is_allowed

    def counted(self, address: str) -> str:
        """The key under which rates and live readers of a request are counted. A caller without a token counts as its
        address. A user of a signed URL does not spend what the signer may do, and counts as the URL and its address."""
        if self.signature:
            return f"signed {self.signature} {address}"
        return address if self.name in ("", ANONYMOUS) else f"id {self.id or self.name}"

    def may_on_server(self, action: Action) -> bool:
        """Whether an action on the server as a whole is allowed."""
        return self.scopes is None or self.scopes.allow_on_server(action)

    @property
    def may_administer(self) -> bool:
        """Whether it may use the routes for the whole server."""
        return self.scopes is None or self.scopes.everything

    def require(self, action: Action, path: str) -> None:
        if not self.may(action, path):
            raise self.refusal(f"{action}:{path.removeprefix(LOG_PREFIX)}")

    def refusal(self, scope: str) -> UnauthorizedError | ForbiddenError:
        """The error for a caller without the needed scope."""
        if self.name == ANONYMOUS:
            return UnauthorizedError(f"this needs a token with the scope {scope}")
        return ForbiddenError(f"{self.name!r} lacks the scope {scope}")


ANYONE = Caller("", None)  # access is not checked
