"""Convert state events of one entity type to changes of a table: lines of action, key and record.

| event                              | change                                                       |
|------------------------------------|--------------------------------------------------------------|
| insert, update, upsert             | `+`, the key, the value as compact JSON                      |
| delete                             | `-`, the key, an empty record                                |
| control `reset`                    | none; it ends the batch and sets `reset`                     |
| other controls, other entity types | none                                                         |
| invalid event                      | none; it is counted                                          |

Values are not decoded, so numbers keep their digits. Fields that the State Protocol calls advisory are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec import UNSET, UnsetType

from headwater.limits import CHANGE_BYTES_MAX, JSON_STEP_BYTES, KEY_BYTES_MAX
from headwater.log.json_boundaries import boundaries, elements
from headwater.log.json_framing import split_array
from headwater.protocol.state.batches import Batch
from headwater.protocol.state.vocabulary import DELETE, RESET
from headwater.protocol.tables.escaping import Escape, escape

_ACTIONS = {"insert": b"+", "update": b"+", "upsert": b"+", DELETE: b"-"}
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_LOOSE = re.compile(rb"[ \t\n\r\x7f]")  # outside strings, only JSON that is not compact has these

_FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Headers(msgspec.Struct, gc=False):
    operation: str | UnsetType = UNSET
    control: str | UnsetType = UNSET


class _Event(msgspec.Struct, gc=False):
    headers: _Headers
    type: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    value: msgspec.Raw | UnsetType = UNSET


_event = msgspec.json.Decoder(_Event)
_events = msgspec.json.Decoder(list[_Event])


class _InvalidError(Exception):
    """A message that is not a valid event."""


class EventsAsChanges:
    """Converts events of one entity type for a table with the given escaping."""

    def __init__(self, entity_type: str, escaping: Escape) -> None:
        self._type = entity_type
        self._escaping = escaping

    def convert(self, data: bytes, skip: int) -> Iterator[Batch]:
        batch = Batch(skip)
        for event in islice(_decoded(data), skip, None):
            batch.taken += 1
            try:
                self._add(batch, event)
            except _InvalidError as error:
                batch.skip(str(error))
            if batch.reset or batch.is_full:
                yield batch
                batch = Batch(batch.taken)
        batch.last = True
        yield batch

    def _add(self, batch: Batch, event: _Event | _InvalidError) -> None:
        if isinstance(event, _InvalidError):
            raise event
        control = event.headers.control
        if control is not UNSET:  # other fields are ignored
            batch.reset = control == RESET
        elif not event.type:
            raise _InvalidError("an event without a type")
        elif event.type == self._type:
            batch.add(self._change(event))

    def _change(self, event: _Event) -> bytes:
        action = _ACTIONS.get(event.headers.operation) if isinstance(event.headers.operation, str) else None
        if action is None:
            raise _InvalidError("an event whose operation is not insert, update, upsert or delete")
        key = self._key(event.key)
        if action == b"-":
            return b"-\t%b\t" % key
        if event.value is UNSET:
            raise _InvalidError(f"{event.headers.operation} without a value")
        change = b"+\t%b\t%b" % (key, self._record(event.value))
        if len(change) > CHANGE_BYTES_MAX:
            raise _InvalidError(f"key and value have more than {CHANGE_BYTES_MAX} bytes")
        return change

    def _key(self, key: str | UnsetType) -> bytes:
        if not key:
            raise _InvalidError("an event without a key")
        encoded = (key if self._escaping is Escape.NONE else escape(key)).encode()
        if len(encoded) > KEY_BYTES_MAX:
            raise _InvalidError(f"a key of more than {KEY_BYTES_MAX} bytes")
        if _CONTROL.search(encoded):
            raise _InvalidError(f"a key with a control character: {key[:80]!r}")
        return encoded

    def _record(self, value: msgspec.Raw) -> bytes:
        record = bytes(value)
        if _LOOSE.search(record):
            try:
                record = msgspec.json.format(record, indent=-1)
            except _FAILURES:
                raise _InvalidError("the value is nested too deeply") from None
            record = record.replace(b"\x7f", rb"\u007f")  # not allowed in a row; in JSON it occurs only in strings
        return record if self._escaping is Escape.NONE else record.replace(b"\\", b"\\\\")


def _decoded(data: bytes) -> Iterator[_Event | _InvalidError]:
    """The messages of stored data, in steps of bounded size, so that other threads can run."""
    start = 0
    if len(data) > JSON_STEP_BYTES:
        for end in boundaries(data):
            yield from _decoded_piece(data[start:end])
            start = end
    if start < len(data):
        yield from _decoded_piece(data[start:])


def _decoded_piece(piece: bytes) -> Iterator[_Event | _InvalidError]:
    text = b"[%b]" % piece[:-1]
    try:
        yield from _events.decode(text)  # the usual case: all are events
    except _FAILURES:
        yield from map(_decoded_one, _split(piece, text))


def _split(piece: bytes, text: bytes) -> Iterator[bytes | msgspec.Raw]:
    try:
        yield from split_array(text)
    except _FAILURES:  # one is nested too deeply for the stack that is left
        yield from elements(piece[:-1])


def _decoded_one(message: bytes | msgspec.Raw) -> _Event | _InvalidError:
    try:
        return _event.decode(message)
    except _FAILURES as error:
        return _InvalidError(f"not a state event: {error}")
