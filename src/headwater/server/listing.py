"""Pages of a list with only what the caller may read. Their cursors reveal nothing else either."""

from __future__ import annotations

import asyncio

from headwater.engine import Engine
from headwater.engine.messages import StreamInfo, StreamPage
from headwater.limits import LIST_PAGE_MAX
from headwater.protocol.tables.paths import LOG_PREFIX, NOTIFY
from headwater.server.auth.callers import Caller
from headwater.server.auth.scopes import Action

_NURLS = f"/{NOTIFY}"


async def readable_page(engine: Engine, caller: Caller, prefix: str, after: str, limit: int) -> StreamPage:
    """A page of the paths below a prefix. Only the parts of the list that the scopes of the caller name are scanned, so
    a page is full even if the caller may read few paths."""
    if caller.scopes is None:
        return await engine.page(prefix, after, limit)
    found: list[StreamInfo] = []
    for part in _parts(prefix, caller.scopes.prefixes(Action.READ, tables=prefix.startswith(LOG_PREFIX))):
        at: str | None = after
        while at is not None:
            page = await engine.page(part, at, LIST_PAGE_MAX)
            found += [stream for stream in page.streams if _is_listed(caller, stream.path)]
            if len(found) > limit:
                return StreamPage(tuple(found[:limit]), found[limit - 1].path)
            at = page.next_after
            await asyncio.sleep(0)
    return StreamPage(tuple(found), None)


def _is_listed(caller: Caller, path: str) -> bool:
    """Whether a path is listed. The table of NURLs is only for administrators."""
    if path.startswith(LOG_PREFIX) and path.endswith(_NURLS):
        return caller.may(Action.ADMIN, path.removesuffix(_NURLS))
    return caller.may(Action.READ, path)


def _parts(prefix: str, allowed: list[str]) -> list[str]:
    """The common prefixes of both, sorted and without nested ones."""
    parts: list[str] = []
    for part in sorted({max(prefix, other, key=len) for other in allowed if _overlap(prefix, other)}):
        if not parts or not part.startswith(parts[-1]):
            parts.append(part)
    return parts


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
