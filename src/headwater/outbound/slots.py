"""A limit on concurrent requests per host. The connection pool limits them in total."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class HostSlots:
    """A semaphore per host. Hosts without active or waiting requests use no memory."""

    def __init__(self, per_host_max: int) -> None:
        self._per_host_max = per_host_max
        self._hosts: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    @contextlib.asynccontextmanager
    async def held(self, host: str) -> AsyncIterator[None]:
        free, users = self._hosts.setdefault(host, (asyncio.Semaphore(self._per_host_max), []))
        users.append(None)
        try:
            async with free:
                yield
        finally:
            users.pop()
            if not users:
                del self._hosts[host]
