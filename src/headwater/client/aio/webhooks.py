"""The verifier of webhooks, asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headwater.client import webhooks
from headwater.client.forking import Unpicklable
from headwater.client.session import Session
from headwater.client.subscriptions import Wake
from headwater.client.webhooks import KeyCache
from headwater.errors import HeadwaterError
from headwater.protocol.subscriptions.signatures import parse_signature, verify_webhook

if TYPE_CHECKING:
    from headwater.client.aio.client import AsyncClient


class AsyncWebhookVerifier(Unpicklable):
    """Verifies that webhooks are from the server whose keys are at `jwks_url`, and returns the wakes in them.

    It works with every web framework: it needs the headers of the request and its body as it was received. The keys are
    fetched with the first webhook and kept as long as the server allows. Make one verifier for a process.

    ```python
    async def receive(headers, body):
        try:
            wake = await verifier.verify(headers, body)
        except WebhookSignatureError:
            return 401, {}
        print(wake.subscription_id, wake.streams)
        return 200, {"done": True}

    client = AsyncClient("http://127.0.0.1:4437")
    verifier = client.webhook_verifier()
    ```
    """

    def __init__(self, client: AsyncClient, session: Session, jwks_url: str | None, tolerance_s: float) -> None:
        self._client = client
        self._session = session
        self._tolerance_s = tolerance_s
        self._cache = KeyCache()
        self._fetching = asyncio.Lock()
        self._wall_clock = time.time
        self.jwks_url = webhooks.jwks_url_of(session, jwks_url)

    async def verify(self, headers: Mapping[str, str], body: bytes) -> Wake:
        """Return the wake in a request.

        Raises WebhookSignatureError if the request is not a valid webhook of the server; respond with 401. Raises
        another error if the keys cannot be fetched; respond with 503, and the server sends the webhook again.
        """
        webhooks.check_body(body)
        header = webhooks.signature_of(headers)
        key_id = parse_signature(header).key_id
        cache, clock = self._cache, self._session.clock
        if cache.wants_fetch(key_id, clock()):
            async with self._fetching:
                if cache.wants_fetch(key_id, clock()):  # another request may have fetched them meanwhile
                    await self._fetch()
        verify_webhook(header, body, cache.keys(key_id, clock()), self._wall_clock(), self._tolerance_s)
        return webhooks.parse_wake(body)

    async def _fetch(self) -> None:
        try:
            fetched = await self._client._run(webhooks.fetch_keys(self._session, self.jwks_url))
        except HeadwaterError as error:
            self._cache.fail(error, self._session.clock())
        else:
            self._cache.store(fetched, self._session.clock())

    def __repr__(self) -> str:
        return f"AsyncWebhookVerifier({self.jwks_url!r})"
