"""Keys of issuers from a URL: fetched by the guarded client, refreshed regularly, and kept if a fetch fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from headwater import limits
from headwater.backoff import Backoff, Streak
from headwater.outbound import OutboundClient
from headwater.server.auth.keys import KeySet, keys_of_jwks

log = logging.getLogger("headwater.auth")

_OK = 200


class RemoteKeys(KeySet):
    """The keys at one URL. A token with an unknown key triggers an early fetch, with a minimum interval."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.url = url
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._fetched_s = -limits.AUTH_JWKS_ASKED_S
        self.failures = 0  # since the start
        self.fault = ""  # of the last fetch

    def wanted(self) -> bool:
        if self._clock() - self._fetched_s >= limits.AUTH_JWKS_ASKED_S:
            self._wakeup.set()
        return self._wakeup.is_set() or not self.keys

    async def keep(self, client: OutboundClient, changed: Callable[[], None]) -> None:
        """Fetch the keys regularly, until cancelled."""
        streak = Streak(Backoff(limits.AUTH_JWKS_RETRY_S, limits.AUTH_JWKS_REFRESH_S))
        while True:
            pause_s = limits.AUTH_JWKS_REFRESH_S
            try:
                await self._fetch(client, changed)
                streak.reset()
                self.fault = ""
            except Exception as error:  # noqa: BLE001 - logged and retried
                log.warning(
                    "the keys at %s cannot be fetched, the known keys stay in use: %s",
                    self.url.partition("?")[0],
                    error,
                )
                pause_s = streak.fail()
                self.failures += 1
                self.fault = str(error) or type(error).__name__
            self._fetched_s = self._clock()
            self._wakeup.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._wakeup.wait()
            except TimeoutError:
                pass

    async def _fetch(self, client: OutboundClient, changed: Callable[[], None]) -> None:
        answer = await client.request("GET", self.url, headers={"accept": "application/json"})
        if answer.status != _OK:
            raise ValueError(f"answered {answer.status}")
        keys = tuple(await asyncio.to_thread(keys_of_jwks, answer.body, secrets=False))
        if keys != self.keys:
            self.keys = keys
            changed()


class KeyKeeper:
    """The keys of all URLs that the rules name, each with a task that keeps them current."""

    what = "the keys of an issuer"
    label = "keys"

    def __init__(self, client: OutboundClient) -> None:
        self._client = client
        self._earlier_failures = 0  # of URLs that are no longer named
        self._keys: dict[str, RemoteKeys] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def failures(self) -> int:
        return self._earlier_failures + sum(keys.failures for keys in self._keys.values())

    @property
    def fault(self) -> str:
        return next((keys.fault for keys in self._keys.values() if keys.fault), "")

    def keys_of(self, url: str) -> KeySet:
        """The keys at a URL, empty until the first fetch; TargetRefusedError if the URL may not be called."""
        self._client.parse(url)
        return self._keys.setdefault(url, RemoteKeys(url))

    def keep(self, urls: Iterable[str], changed: Callable[[], None]) -> None:
        """Keep the keys at these URLs, and no others, current."""
        wanted = set(urls)
        for url in [known for known in self._keys if known not in wanted]:
            self._earlier_failures += self._keys.pop(url).failures
            if url in self._tasks:
                self._tasks.pop(url).cancel()
        for url in wanted - self._tasks.keys():
            self._tasks[url] = asyncio.create_task(self._keys[url].keep(self._client, changed))

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()
