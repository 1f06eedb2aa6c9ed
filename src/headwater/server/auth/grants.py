"""Grants: what the creator of something durable may do, as long as that exists.

A subscription outlives the request that creates it. It may read what its creator may read now: a token that is revoked
or narrowed takes effect, and so does one that is widened. The scopes of a JWT are in the token, which soon expires, so
they are kept, within the current scopes of its issuer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headwater.errors import HeadwaterError
from headwater.server.auth.callers import ANYONE, Caller
from headwater.server.auth.issuers import OF_JWT
from headwater.server.auth.scopes import NOTHING

if TYPE_CHECKING:
    from headwater.server.auth.authority import Authority


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str  # of the caller; empty: access was not checked
    id: str = ""  # of its token, or of its issuer and subject
    scopes: tuple[str, ...] = ()  # of a JWT

    @property
    def identity(self) -> str:
        """The key under which limits count."""
        return self.id or self.name


def grant_of(caller: Caller) -> Grant:
    if caller.scopes is not None and caller.id.startswith(OF_JWT):
        return Grant(caller.name, caller.id, caller.scopes.texts)
    return Grant(caller.name, caller.id)


class GrantedCallers:
    """The callers of grants by the current rules. `authority` None: access is not checked."""

    def __init__(self, authority: Authority | None) -> None:
        self._authority = authority
        self._callers: dict[Grant, Caller] = {}
        self._epoch: object = None

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function whenever a caller may be allowed more or less than before."""
        if self._authority is not None:
            self._authority.on_change.append(changed)

    def caller(self, grant: Grant) -> Caller:
        """The caller of a grant; one without scopes if it was revoked, or if access was not checked when it was given
        but is now."""
        authority = self._authority
        if authority is None:
            return ANYONE
        if self._epoch is not authority.epoch:
            self._epoch, self._callers = authority.epoch, {}
        caller = self._callers.get(grant)
        if caller is None or authority.has_expired(caller):
            caller = self._callers[grant] = self._current(authority, grant)
        return caller

    def _current(self, authority: Authority, grant: Grant) -> Caller:
        try:
            return authority.caller_of(grant)
        except HeadwaterError:
            return Caller(grant.name, NOTHING)
