"""The client for streams and tables, blocking and asyncio. Both share one implementation of the protocol.

The asyncio shell is imported when one of its names is used: programs that block do without it and asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwater.client.effects import Batch, Report
from headwater.client.entities import StreamEntity
from headwater.client.flows import AppendResult, RecordInfo, RecordTimes, SignedUrl, Splits, StreamInfo
from headwater.client.following import StreamBatch
from headwater.client.mirroring import Mirrored
from headwater.client.nurls import Nurl
from headwater.client.outbox import DeliveryReport, ProducerMetrics
from headwater.client.reading import LiveMode
from headwater.client.restarting import OnGone
from headwater.client.retaining import CompactionReport
from headwater.client.session import Retry, Timeouts
from headwater.client.subscriptions import (
    AckResult,
    PendingStream,
    StreamLink,
    SubscriptionInfo,
    SubscriptionStatus,
    Wake,
    Webhook,
    WebhookSigning,
)
from headwater.client.sync import (
    Claim,
    Client,
    Follow,
    Producer,
    Reader,
    Stream,
    Subscription,
    Table,
    TableReader,
    WebhookVerifier,
    Worker,
)
from headwater.client.tables import AppendedRows, Change, Put, Remove, TableInfo
from headwater.client.working import WorkBatch, WorkReport
from headwater.log.producers import ProducerTuple
from headwater.log.retention import Retention
from headwater.positions import Position
from headwater.protocol.state.as_events import RecordFormat
from headwater.protocol.streams.composing import SourceRange
from headwater.protocol.tables.content_type import TableType
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.rows import Row

if TYPE_CHECKING:
    from headwater.client.aio import (
        AsyncClaim,
        AsyncClient,
        AsyncFollow,
        AsyncProducer,
        AsyncReader,
        AsyncStream,
        AsyncSubscription,
        AsyncTable,
        AsyncTableReader,
        AsyncWebhookVerifier,
        AsyncWorker,
    )

__all__ = [
    "AckResult",
    "AppendResult",
    "AppendedRows",
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
    "Batch",
    "Change",
    "Claim",
    "Client",
    "CompactionReport",
    "DeliveryReport",
    "Escape",
    "Follow",
    "LiveMode",
    "Mirrored",
    "Nurl",
    "OnGone",
    "PendingStream",
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
    "Retention",
    "Retry",
    "Row",
    "SignedUrl",
    "SourceRange",
    "Splits",
    "Stream",
    "StreamBatch",
    "StreamEntity",
    "StreamInfo",
    "StreamLink",
    "Subscription",
    "SubscriptionInfo",
    "SubscriptionStatus",
    "Table",
    "TableInfo",
    "TableReader",
    "TableType",
    "Timeouts",
    "Wake",
    "Webhook",
    "WebhookSigning",
    "WebhookVerifier",
    "WorkBatch",
    "WorkReport",
    "Worker",
]


def __getattr__(name: str) -> Any:
    if not name.startswith("Async") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.aio"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
