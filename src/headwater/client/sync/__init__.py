"""The blocking shell: drives flows over httpx and hands out what they deliver."""

from headwater.client.sync.client import Client
from headwater.client.sync.producer import Producer
from headwater.client.sync.reader import Reader
from headwater.client.sync.stream import Stream
from headwater.client.sync.table import Table
from headwater.client.sync.table_reader import TableReader

__all__ = ["Client", "Producer", "Reader", "Stream", "Table", "TableReader"]
