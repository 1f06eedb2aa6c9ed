"""The client for streams and tables, blocking and asyncio. Both share one implementation of the protocol."""

from headwater.client.aio import AsyncClient, AsyncProducer, AsyncReader, AsyncStream, AsyncTable, AsyncTableReader
from headwater.client.effects import Batch, Report
from headwater.client.flows import AppendResult, RecordInfo, RecordTimes, SignedUrl, Splits, StreamInfo
from headwater.client.mirroring import Mirrored
from headwater.client.nurls import Nurl
from headwater.client.outbox import DeliveryReport, ProducerMetrics
from headwater.client.reading import LiveMode
from headwater.client.session import Retry, Timeouts
from headwater.client.sync import Client, Producer, Reader, Stream, Table, TableReader
from headwater.client.tables import AppendedRows, Change, Put, Remove, TableInfo
from headwater.log.producers import ProducerTuple
from headwater.positions import Position
from headwater.protocol.state.as_events import RecordFormat
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.rows import Row

__all__ = [
    "AppendResult",
    "AppendedRows",
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "AsyncStream",
    "AsyncTable",
    "AsyncTableReader",
    "Batch",
    "Change",
    "Client",
    "DeliveryReport",
    "Escape",
    "LiveMode",
    "Mirrored",
    "Nurl",
    "Position",
    "Producer",
    "ProducerMetrics",
    "ProducerTuple",
    "Put",
    "Reader",
    "RecordFormat",
    "RecordInfo",
    "RecordTimes",
    "Remove",
    "Report",
    "Retry",
    "Row",
    "SignedUrl",
    "Splits",
    "Stream",
    "StreamInfo",
    "Table",
    "TableInfo",
    "TableReader",
    "TableType",
    "Timeouts",
]
