"""The blocking shell: drives flows over httpx and hands out what they deliver."""

from headwater.client.sync.client import Client
from headwater.client.sync.follow import Follow
from headwater.client.sync.producer import Producer
from headwater.client.sync.reader import Reader
from headwater.client.sync.stream import Stream
from headwater.client.sync.subscription import Claim, Subscription
from headwater.client.sync.table import Table
from headwater.client.sync.table_reader import TableReader
from headwater.client.sync.webhooks import WebhookVerifier
from headwater.client.sync.worker import Worker

__all__ = [
    "Claim",
    "Client",
    "Follow",
    "Producer",
    "Reader",
    "Stream",
    "Subscription",
    "Table",
    "TableReader",
    "WebhookVerifier",
    "Worker",
]
