"""The client: streams by URL, blocking or asynchronous, with one logic under both."""

from headwater.client.aio import AsyncClient, AsyncProducer, AsyncReader, AsyncStream
from headwater.client.effects import Batch, Report
from headwater.client.flows import Appended, RecordInfo, Splits, StreamInfo
from headwater.client.outbox import Delivery, ProducerMetrics
from headwater.client.reading import LiveMode
from headwater.client.session import Retry, Timeouts
from headwater.client.sync import Client, Producer, Reader, Stream
from headwater.log.producers import ProducerTuple

__all__ = [
    "Appended",
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "AsyncStream",
    "Batch",
    "Client",
    "Delivery",
    "LiveMode",
    "Producer",
    "ProducerMetrics",
    "ProducerTuple",
    "Reader",
    "RecordInfo",
    "Report",
    "Retry",
    "Splits",
    "Stream",
    "StreamInfo",
    "Timeouts",
]
