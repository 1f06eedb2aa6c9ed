"""Pages of a list with only what the caller may read. Their cursors reveal nothing else either.

The work for a page is bounded. If the scopes of the caller match few of many paths, a page has few streams or none, and
`next_after` tells where to continue. The path there may be one that the caller may not read, so it is encrypted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from typing import TYPE_CHECKING, NamedTuple

from headwater import limits
from headwater.engine import Engine
from headwater.engine.messages import VisibleStream
from headwater.errors import InvalidQueryError
from headwater.protocol.tables.paths import LOG_PREFIX, NOTIFY
from headwater.server.auth.callers import Caller
from headwater.server.auth.scopes import Action, Scopes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NURLS = f"/{NOTIFY}"
_SEALED = "/"  # no path begins with it
_NONCE_BYTES = 12


class ReadablePage(NamedTuple):
    streams: tuple[VisibleStream, ...]
    next_after: str | None
    hidden: bool = False  # whether `next_after` may be a path that the caller may not read


class Lists:
    """What all lists share: their turns, and the key that encrypts the paths after which pages continue. Another
    process of the server cannot read them."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()  # one list at a time, so that many of them do not add up in one turn of the loop
        self._key = os.urandom(32)

    def write(self, path: str, *, hidden: bool) -> str:
        """The value of `next_after` for a path."""
        if not hidden:
            return path
        nonce, plain = os.urandom(_NONCE_BYTES), path.encode()
        padded = plain + b"\0" * (-len(plain) % limits.LIST_CURSOR_STEP_BYTES)  # hides the length of the path
        return _SEALED + base64.urlsafe_b64encode(nonce + self._cipher().encrypt(nonce, padded, None)).decode()

    def read(self, after: str) -> str:
        """The path of a value of `after`: a path, or what `write` returned."""
        if not after.startswith(_SEALED):
            return after
        from cryptography.exceptions import InvalidTag

        try:
            sealed = base64.urlsafe_b64decode(after.removeprefix(_SEALED))
            plain = self._cipher().decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except (InvalidTag, binascii.Error, ValueError):
            raise InvalidQueryError(
                "`after` is not a path, nor a next_after that this process of the server has returned; "
                "continue after the last path of the list, or begin again"
            ) from None
        return plain.rstrip(b"\0").decode()

    def _cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)


class _Work:
    """The work for one page: paths that are compared with scopes."""

    def __init__(self, scopes: Scopes) -> None:
        self._per_path = max(1, len(scopes))
        self._left = limits.LIST_MATCHES_MAX
        self._in_turn = 0

    @property
    def done(self) -> bool:
        return self._left <= 0

    @property
    def paths_max(self) -> int:
        """How many paths may still be examined, in one step."""
        return min(limits.LIST_STEP_PATHS, max(1, self._left // self._per_path))

    async def add(self, paths: int) -> None:
        """Count work, and yield to other tasks now and then."""
        self._left -= paths * self._per_path
        self._in_turn += paths * self._per_path
        if self._in_turn >= limits.LIST_MATCHES_PER_TURN:
            self._in_turn = 0
            await asyncio.sleep(0)


async def readable_page(
    engine: Engine, lists: Lists, caller: Caller, prefix: str, after: str, limit: int
) -> ReadablePage:
    """A page of the paths below a prefix. Only the parts of the list that the scopes of the caller name are scanned."""
    if caller.scopes is not None:
        return await _scan(engine, lists, caller.scopes, prefix, after, limit)
    async with lists.turn:
        page = await engine.page(prefix, after, limit)
    return ReadablePage(page.streams, page.next_after)


async def _scan(engine: Engine, lists: Lists, scopes: Scopes, prefix: str, after: str, limit: int) -> ReadablePage:
    work = _Work(scopes)
    streams: list[VisibleStream] = []
    for part in _parts(prefix, scopes.prefixes(Action.READ, tables=prefix.startswith(LOG_PREFIX)), after):
        at: str | None = after
        while at is not None:
            async with lists.turn:
                page = await engine.page(part, at, work.paths_max)
                for stream in page.streams:
                    if _is_listed(scopes, stream.path):
                        streams.append(stream)
                    await work.add(1)
            if len(streams) > limit:
                return ReadablePage(tuple(streams[:limit]), streams[limit - 1].path)
            await work.add(1)
            at = page.next_after
            if at is not None and work.done:
                return ReadablePage(tuple(streams), at, hidden=not streams or streams[-1].path != at)
    return ReadablePage(tuple(streams), None)


def _is_listed(scopes: Scopes, path: str) -> bool:
    """Whether a path is listed. The table of NURLs is only for administrators."""
    if path.startswith(LOG_PREFIX) and path.endswith(_NURLS):
        return scopes.allow(Action.ADMIN, path.removesuffix(_NURLS))
    return scopes.allow(Action.READ, path)


def _parts(prefix: str, allowed: list[str], after: str) -> list[str]:
    """The common prefixes of both, sorted, without nested ones and those whose paths all sort before `after`."""
    parts: list[str] = []
    for part in sorted({max(prefix, other, key=len) for other in allowed if _overlap(prefix, other)}):
        if not (parts and part.startswith(parts[-1])) and (part > after or after.startswith(part)):
            parts.append(part)
    return parts


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
