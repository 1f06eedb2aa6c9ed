"""The durable document of a view: its definition and its position. Pure.

The document is written together with the appended data, so that after a crash nothing is repeated and nothing is
missing. Its key is never reused: a task of a deleted view does not find its document and is refused.
"""

from __future__ import annotations

import msgspec

from headwater.engine.messages import VisibleStream
from headwater.log.content import ContentKind
from headwater.protocol.state.as_changes import EventsAsChanges
from headwater.protocol.state.as_events import RecordFormat, RowsAsEvents
from headwater.protocol.state.batches import ConvertedBatch, Converter
from headwater.protocol.streams.paths import STREAM_ROOT, quote_path
from headwater.protocol.tables.content_type import parse_table_type
from headwater.protocol.tables.paths import LOG_PREFIX, name_of, surl_path

JSON_TYPE = "application/json"  # of streams of events
PREFIX = "view/"  # of the keys of these documents


class Definition(msgspec.Struct, frozen=True):
    """What a view is. Paths are paths in the log. A view of a stream is a table, and a view of a table a stream."""

    target: str
    source: str
    type: str  # of the entities
    record: RecordFormat | None = None  # of a view of a table

    @property
    def is_table(self) -> bool:
        return is_table(self.target)

    @property
    def described(self) -> str:
        return f"{shown(self.source)}, entity type {self.type!r}"

    def fault_of(self, source: VisibleStream) -> str | None:
        """Why a stream or table cannot be the source; None if it can."""
        if self.is_table and source.kind is not ContentKind.JSON:
            return f"{shown(source.path)} is a stream of {source.content_type}; state events are application/json"
        return None

    def converter(self, table_type: str) -> Converter:
        """The converter for the content type of the table, which is the source or the target."""
        escaping = parse_table_type(table_type).escape
        if self.record is None:
            return EventsAsChanges(self.type, escaping)
        return RowsAsEvents(self.type, escaping, self.record)


class ViewProgress(msgspec.Struct, frozen=True):
    """The position of a view: all messages of the source before it are converted, and `taken` messages after it."""

    source_id: int
    position: int = 0
    taken: int = 0
    last_seqno: int = 0  # of the last converted row, if the source is a table
    skipped: int = 0  # messages that could not be converted, over the life of the view
    reason: str | None = None  # of the last one

    def after(self, batch: ConvertedBatch, end: int) -> ViewProgress:
        """The position after a batch. `end` is the end of the data that contains the batch."""
        return msgspec.structs.replace(
            self,
            position=end if batch.last else self.position,
            taken=0 if batch.last else batch.taken,
            last_seqno=batch.last_seqno or self.last_seqno,
            skipped=self.skipped + batch.skipped,
            reason=batch.reason or self.reason,
        )


class ViewDocument(msgspec.Struct, frozen=True):
    definition: Definition
    progress: ViewProgress


def encode(document: ViewDocument) -> bytes:
    return msgspec.json.encode(document)


def decode(data: bytes) -> ViewDocument:
    return msgspec.json.decode(data, type=ViewDocument)


def is_table(path: str) -> bool:
    return path.startswith(LOG_PREFIX)


def shown(path: str) -> str:
    """The URL path of the stream or table at a path in the log, below the mount point."""
    return surl_path(name_of(path)) if is_table(path) else STREAM_ROOT + quote_path(path)
