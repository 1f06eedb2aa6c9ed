"""State events: changes of entities, and controls that concern the stream.

What the State Protocol makes normative is checked: an event is a change (`headers.operation`) or a control
(`headers.control`), never both or neither; type and key are text; operations and controls are those it names, and
`upsert`, which its reference implementation has. What it calls advisory is kept as it came, and fields that it does
not know are ignored.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from headwater.errors import InvalidEventError
from headwater.log.json_framing import split_array
from headwater.protocol.state.vocabulary import Control, Operation

T = TypeVar("T")


class ChangeHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    operation: Operation
    txid: Any = UNSET
    timestamp: Any = UNSET
    control: UnsetType = UNSET  # what has both is neither


class ChangeEvent(msgspec.Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """An entity was inserted, updated, upserted or deleted. `old_value` is for people and never relied on."""

    type: str
    key: str
    value: T | UnsetType = UNSET
    old_value: Any = UNSET
    headers: ChangeHeaders


class ControlHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    control: Control
    offset: Any = UNSET
    operation: UnsetType = UNSET


class ControlEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something about the stream and not about an entity."""

    headers: ControlHeaders


StateEvent: TypeAlias = ChangeEvent[Any] | ControlEvent


class BadEvent(msgspec.Struct, frozen=True):
    """A message that is no state event, or whose value is not what its type should have."""

    message: Any
    reason: str


def is_change_event(event: object) -> TypeGuard[ChangeEvent[Any]]:
    return type(event) is ChangeEvent


def is_control_event(event: object) -> TypeGuard[ControlEvent]:
    return type(event) is ControlEvent


def control_event(control: Control, offset: str | UnsetType = UNSET) -> ControlEvent:
    return ControlEvent(headers=ControlHeaders(control=control, offset=offset))


def parse_event(message: Any) -> StateEvent:
    """The event in a decoded JSON value; InvalidEventError if there is none."""
    headers = message.get("headers") if isinstance(message, dict) else None
    is_control = isinstance(headers, dict) and "control" in headers
    try:
        if is_control:
            return msgspec.convert(message, ControlEvent)
        return _checked(msgspec.convert(message, ChangeEvent[Any]))
    except (msgspec.ValidationError, _MissingValueError) as error:
        raise InvalidEventError(str(error)) from None


class _MissingValueError(ValueError):
    pass


def _checked(event: StateEvent) -> StateEvent:
    if isinstance(event, ChangeEvent) and event.value is UNSET and event.headers.operation != "delete":
        raise _MissingValueError(f"{event.headers.operation} without a value")
    return event


class EventDecoder:
    """JSON arrays to events, with plain values or, for who decodes them by a schema, with their JSON text."""

    def __init__(self, value_type: Any = Any) -> None:
        self.changes = msgspec.json.Decoder(list[ChangeEvent[value_type]])
        self._change = msgspec.json.Decoder(ChangeEvent[value_type])

    def decode_array(self, text: bytes | bytearray | str) -> list[ChangeEvent[Any] | ControlEvent | BadEvent]:
        """The events of an array. What is none becomes a BadEvent in its place."""
        try:
            return self.changes.decode(text)  # type: ignore[return-value]  # all of them changes, as nearly always
        except (msgspec.ValidationError, UnicodeDecodeError):
            return [self._decode_one(message) for message in split_array(text)]

    def _decode_one(self, message: msgspec.Raw) -> ChangeEvent[Any] | ControlEvent | BadEvent:
        try:
            return self._change.decode(message)
        except ValueError as error:
            reason = str(error)
        try:
            return _control.decode(message)
        except ValueError as error:
            if _looks_like_control(message):
                reason = str(error)
        return BadEvent(_plain(message), reason)


_control = msgspec.json.Decoder(ControlEvent)


def _plain(message: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(message)
    except ValueError:
        return bytes(message)


def _looks_like_control(message: msgspec.Raw) -> bool:
    plain = _plain(message)
    headers = plain.get("headers") if isinstance(plain, dict) else None
    return isinstance(headers, dict) and "control" in headers


_events = EventDecoder()


def decode_events(text: bytes | str) -> list[StateEvent]:
    """The events in a JSON array; InvalidEventError says which one is none."""
    try:
        events: list[Any] = _events.changes.decode(text)  # all of them changes, as nearly always
        doubtful = [event for event in events if event.value is UNSET and event.headers.operation != "delete"]
    except (msgspec.ValidationError, UnicodeDecodeError):
        events = doubtful = _events.decode_array(text)
    if doubtful:
        _check_all(events)
    return events


def _check_all(events: list[Any]) -> None:
    for number, event in enumerate(events):
        if isinstance(event, BadEvent):
            raise InvalidEventError(f"event {number}: {event.reason}")
        try:
            _checked(event)
        except _MissingValueError as error:
            raise InvalidEventError(f"event {number}: {error}") from None
