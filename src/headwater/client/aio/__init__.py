"""The asyncio shell: drives flows over httpx and hands out what they deliver."""

from headwater.client.aio.client import AsyncClient
from headwater.client.aio.follow import AsyncFollow
from headwater.client.aio.producer import AsyncProducer
from headwater.client.aio.reader import AsyncReader
from headwater.client.aio.stream import AsyncStream
from headwater.client.aio.subscription import AsyncClaim, AsyncSubscription
from headwater.client.aio.table import AsyncTable
from headwater.client.aio.table_reader import AsyncTableReader
from headwater.client.aio.webhooks import AsyncWebhookVerifier
from headwater.client.aio.worker import AsyncWorker

__all__ = [
    "AsyncClaim",
    "AsyncClient",
    "AsyncFollow",
    "AsyncProducer",
    "AsyncReader",
    "AsyncStream",
    "AsyncSubscription",
    "AsyncTable",
    "AsyncTableReader",
    "AsyncWebhookVerifier",
    "AsyncWorker",
]
