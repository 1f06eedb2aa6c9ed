"""The asyncio shell: drives flows over httpx and hands out what they deliver."""

from headwater.client.aio.client import AsyncClient
from headwater.client.aio.producer import AsyncProducer
from headwater.client.aio.reader import AsyncReader
from headwater.client.aio.stream import AsyncStream
from headwater.client.aio.table import AsyncTable
from headwater.client.aio.table_reader import AsyncTableReader

__all__ = ["AsyncClient", "AsyncProducer", "AsyncReader", "AsyncStream", "AsyncTable", "AsyncTableReader"]
