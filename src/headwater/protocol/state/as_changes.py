"""Convert state events of one entity type to changes of a table: lines of action, key and record.

| event                              | change                                                       |
|------------------------------------|--------------------------------------------------------------|
| insert, update, upsert             | `+`, the key, the value as compact JSON                      |
| delete                             | `-`, the key, an empty record                                |
| control `reset`                    | none; it ends the batch and sets `reset`                     |
| other controls, other entity types | none                                                         |
| invalid event                      | none; it is counted                                          |
| one that does not fit into a row   | none; it is counted                                          |

Values are not decoded, so numbers keep their digits. Fields that the State Protocol calls advisory are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice

import msgspec
from msgspec import UNSET

from headwater.limits import CHANGE_BYTES_MAX, KEY_BYTES_MAX
from headwater.protocol.state.batches import ConvertedBatch
from headwater.protocol.state.events import (
    DELETE,
    RESET,
    BadEvent,
    ChangeEvent,
    ControlEvent,
    EventDecoder,
    stored_batches,
)
from headwater.protocol.tables.escaping import Escape, escape

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_LOOSE = re.compile(rb"[ \t\n\r\x7f]")  # outside strings, only JSON that is not compact has these

_events = EventDecoder(msgspec.Raw)


class _UnfitError(Exception):
    """A valid event that does not fit into a row."""


class EventsAsChanges:
    """Converts events of one entity type for a table with the given escaping."""

    def __init__(self, entity_type: str, escaping: Escape) -> None:
        self._type = entity_type
        self._escaping = escaping

    def convert(self, data: bytes, skip: int) -> Iterator[ConvertedBatch]:
        batch = ConvertedBatch(skip)
        for event in islice(chain.from_iterable(stored_batches(data, _events)), skip, None):
            batch.taken += 1
            try:
                self._add(batch, event)
            except _UnfitError as error:
                batch.skip(str(error))
            if batch.reset or batch.is_full:
                yield batch
                batch = ConvertedBatch(batch.taken)
        batch.last = True
        yield batch

    def _add(self, batch: ConvertedBatch, event: ChangeEvent[msgspec.Raw] | ControlEvent | BadEvent) -> None:
        if type(event) is ChangeEvent:
            if event.type == self._type:
                batch.add(self._change(event))
        elif type(event) is ControlEvent:
            batch.reset = event.headers.control == RESET
        elif type(event) is BadEvent:
            batch.skip(event.reason)

    def _change(self, event: ChangeEvent[msgspec.Raw]) -> bytes:
        key = self._key(event.key)
        if event.headers.operation == DELETE or event.value is UNSET:  # only deletes may have no value
            return b"-\t%b\t" % key
        change = b"+\t%b\t%b" % (key, self._record(event.value))
        if len(change) > CHANGE_BYTES_MAX:
            raise _UnfitError(f"key and value have more than {CHANGE_BYTES_MAX} bytes")
        return change

    def _key(self, key: str) -> bytes:
        encoded = (key if self._escaping is Escape.NONE else escape(key)).encode()
        if len(encoded) > KEY_BYTES_MAX:
            raise _UnfitError(f"a key of more than {KEY_BYTES_MAX} bytes")
        if _CONTROL.search(encoded):
            raise _UnfitError(f"a key with a control character: {key[:80]!r}")
        return encoded

    def _record(self, value: msgspec.Raw) -> bytes:
        record = bytes(value)
        if _LOOSE.search(record):
            try:
                record = msgspec.json.format(record, indent=-1)
            except (ValueError, RecursionError):
                raise _UnfitError("the value is nested too deeply") from None
            record = record.replace(b"\x7f", rb"\u007f")  # not allowed in a row; in JSON it occurs only in strings
        return record if self._escaping is Escape.NONE else record.replace(b"\\", b"\\\\")
