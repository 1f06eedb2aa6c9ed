"""Convert rows of a table to state events of one entity type: `+` is an upsert, `-` a delete.

    {"type": …, "key": …, "value": …, "headers": {"operation": "upsert", "timestamp": "…", "seqno": "7"}}

The value is the record, which must be JSON, or an object with the record as text. Timestamp and SeqNo are those of the
row. Rows that cannot be converted are skipped and counted.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import islice

import msgspec

from headwater.log.json_framing import UNREADABLE, reason_of
from headwater.protocol.state.batches import ConvertedBatch
from headwater.protocol.state.events import DELETE, RESET, UPSERT
from headwater.protocol.tables.escaping import Escape, unescape

RESET_EVENT = msgspec.json.encode({"headers": {"control": RESET}})

_json = msgspec.json.Decoder(msgspec.Raw)
_encode = msgspec.json.Encoder().encode


class RecordFormat(enum.Enum):
    """How a record becomes a value."""

    JSON = "json"  # the record is the value, as JSON
    TEXT = "text"  # the value is {"record": "…"}


class RowsAsEvents:
    """Converts rows of a table with the given escaping to events of one entity type."""

    def __init__(self, entity_type: str, escaping: Escape, record_format: RecordFormat) -> None:
        self._start = b'{"type":%b,"key":' % _encode(entity_type)
        self._escaping = escaping
        self._format = record_format

    def convert(self, data: bytes, skip: int) -> Iterator[ConvertedBatch]:
        batch = ConvertedBatch(skip)
        for row in islice(data[:-1].split(b"\n"), skip, None):
            batch.taken += 1
            seqno, timestamp, action, key, record = row.split(b"\t", 4)
            batch.last_seqno = int(seqno)
            try:
                batch.add(self._event(seqno, timestamp, action, key, record))
            except ValueError as error:
                batch.skip(f"row {batch.last_seqno}: {error}")
            if batch.is_full:
                yield batch
                batch = ConvertedBatch(batch.taken, last_seqno=batch.last_seqno)
        batch.last = True
        yield batch

    def _event(self, seqno: bytes, timestamp: bytes, action: bytes, key: bytes, record: bytes) -> bytes:
        if action == b"+":
            value, operation = b',"value":%b' % self._value(record), UPSERT
        else:
            value, operation = b"", DELETE
        return b'%b%b%b,"headers":{"operation":"%b","timestamp":%b,"seqno":"%b"}}' % (
            self._start,
            _encode(self._text(key)),
            value,
            operation.encode(),
            _encode(timestamp.decode()),
            seqno,
        )

    def _value(self, record: bytes) -> bytes:
        text = self._text(record)
        if self._format is RecordFormat.TEXT:
            return b'{"record":%b}' % _encode(text)
        value = record if self._escaping is Escape.NONE else text.encode()
        try:
            _json.decode(value)
        except UNREADABLE as error:
            raise ValueError(f"the record is not JSON ({reason_of(error)})") from None
        return value

    def _text(self, field: bytes) -> str:
        text = field.decode()
        return text if self._escaping is Escape.NONE else unescape(text)
