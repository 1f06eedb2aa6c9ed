"""State events: changes of entities, and controls that concern the stream.

This is the only parser of state events. StreamDB, Spark and the server's views use it, so an event is valid for all of
them or for none.

Events are checked against the normative part of the State Protocol. An event with `headers.control` is a control; any
other is a change, with `headers.operation`. Type and key are non-empty text, a txid is text, and the operations are
those of the protocol and `upsert`, which its reference implementation has. A change other than a delete has a value.
Unknown controls are valid events that consumers ignore.

Advisory fields never make an event invalid: `old_value`, `timestamp`, the `value` of a delete and custom headers are
kept unchanged, or dropped if they cannot be decoded. Other fields are ignored.

Consumers may refuse a valid event for reasons of their own: a value that a schema does not accept (StreamDB, Spark), or
a key or value that does not fit into a row (views).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeGuard, TypeVar, get_args, overload

import msgspec
from msgspec import UNSET, UnsetType

from headwater.errors import InvalidEventError
from headwater.log.json_boundaries import elements
from headwater.log.json_framing import groups, split_array

Operation: TypeAlias = Literal["insert", "update", "delete", "upsert"]
Control: TypeAlias = Literal["snapshot-start", "snapshot-end", "up-to-date", "reset"]

CONTROLS = get_args(Control)
RESET: Control = "reset"
UPSERT: Operation = "upsert"
DELETE: Operation = "delete"


T = TypeVar("T")

Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]

_NONE: Mapping[str, Any] = MappingProxyType({})


class ChangeHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The headers of the protocol. An event with other headers has `CustomHeaders`."""

    operation: Operation
    txid: str | UnsetType = UNSET
    timestamp: Any = UNSET

    @property
    def custom(self) -> Mapping[str, Any]:
        """The headers that the protocol does not define."""
        return _NONE


class CustomHeaders(dict[str, Any]):
    """Headers of a change with custom headers. They are used like ChangeHeaders, and encoded into one object."""

    @property
    def operation(self) -> Operation:
        return self["operation"]  # type: ignore[no-any-return]

    @property
    def txid(self) -> str | UnsetType:
        return self.get("txid", UNSET)  # type: ignore[no-any-return]

    @property
    def timestamp(self) -> Any:
        return self.get("timestamp", UNSET)

    @property
    def custom(self) -> Mapping[str, Any]:
        return {name: value for name, value in self.items() if name not in _NAMED}


_NAMED = frozenset({"operation", "txid", "timestamp"})
_OPERATIONS = get_args(Operation)


def change_headers(named: Mapping[str, Any], custom: Mapping[str, Any]) -> ChangeHeaders:
    """Make headers from these values, without those that are UNSET."""
    if not custom:
        return ChangeHeaders(**named)
    together = {**{name: value for name, value in named.items() if value is not UNSET}, **custom}
    return CustomHeaders(together)  # type: ignore[return-value]  # all that ChangeHeaders can be asked


class ChangeEvent(msgspec.Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """An entity was inserted, updated, upserted or deleted. `old_value` is informative and never applied."""

    type: Text
    key: Text
    value: T | UnsetType = UNSET
    old_value: T | UnsetType = UNSET
    headers: ChangeHeaders


class _AnyChange(msgspec.Struct, Generic[T], frozen=True, kw_only=True, gc=False):
    """A change with any headers, which are not checked yet."""

    type: Text
    key: Text
    value: T | UnsetType = UNSET
    old_value: T | UnsetType = UNSET
    headers: dict[str, Any]

    def checked(self) -> ChangeEvent[T]:
        headers = self.headers
        if (
            "control" in headers
            or headers.get("operation") not in _OPERATIONS
            or not isinstance(headers.get("txid", ""), str)
        ):
            raise ValueError("not a change")
        made = ChangeHeaders(**headers) if headers.keys() <= _NAMED else CustomHeaders(headers)
        return ChangeEvent(type=self.type, key=self.key, value=self.value, old_value=self.old_value, headers=made)  # type: ignore[arg-type]


class ControlHeaders(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The kind of a control, and its offset if it has one."""

    control: str
    offset: Any = UNSET


class ControlEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event about the stream instead of an entity."""

    headers: ControlHeaders


StateEvent: TypeAlias = ChangeEvent[Any] | ControlEvent
"""A message of a state stream: a change of an entity, or a control."""


class BadEvent(msgspec.Struct, frozen=True):
    """A message that is not a state event, or whose value does not match the schema of its type.

    `message` is the decoded message, or its bytes if it cannot be decoded.
    """

    message: Any
    reason: str

    @property
    def type(self) -> str | None:
        """The type that the message names, if it names one."""
        return self._named("type")

    @property
    def key(self) -> str | None:
        """The key that the message names, if it names one."""
        return self._named("key")

    def _named(self, field: str) -> str | None:
        if isinstance(self.message, dict):
            value = self.message.get(field)
        else:
            fields = _members(self.message) if isinstance(self.message, bytes) else None
            value = plain(fields[field]) if fields is not None and field in fields else None
        return value if isinstance(value, str) and value else None


@overload
def is_change_event(event: dict[str, Any]) -> bool: ...


@overload
def is_change_event(event: object) -> TypeGuard[ChangeEvent[Any]]: ...


def is_change_event(event: object) -> bool:
    """Whether an event is a `ChangeEvent`, which type checkers understand (TypeGuard).

    A message as `read()` yields it, a dictionary, is checked too; `parse_event` makes a `ChangeEvent` from it.
    """
    return isinstance(_parsed(event), ChangeEvent)


@overload
def is_control_event(event: dict[str, Any]) -> bool: ...


@overload
def is_control_event(event: object) -> TypeGuard[ControlEvent]: ...


def is_control_event(event: object) -> bool:
    """Whether an event is a `ControlEvent`, which type checkers understand (TypeGuard), or a message that is one."""
    return isinstance(_parsed(event), ControlEvent)


def _parsed(event: object) -> object:
    """The event of a decoded message, or what was given."""
    try:
        return parse_event(event) if isinstance(event, dict) else event
    except InvalidEventError:
        return event


def control_event(control: Control, offset: str | UnsetType = UNSET) -> ControlEvent:
    """Make a control event, such as `control_event("reset")`. InvalidEventError if the protocol has no such control."""
    if control not in CONTROLS:
        raise InvalidEventError(f"{control!r} is not a control; use one of {', '.join(CONTROLS)}")
    return ControlEvent(headers=ControlHeaders(control=control, offset=offset))


# One event, field by field

_Read: TypeAlias = Callable[[Any, Any], Any]  # convert a field to a type; ValueError if it does not match


def parse_event(message: Any) -> StateEvent:
    """Make an event from a decoded JSON value. InvalidEventError if it is not an event."""
    if not isinstance(message, dict) or not isinstance(message.get("headers"), dict):
        raise InvalidEventError("an event is an object with headers")
    try:
        return _event(message, message["headers"], msgspec.convert, Any)
    except ValueError as error:
        raise InvalidEventError(str(error)) from None


def _event(fields: Mapping[str, Any], headers: Mapping[str, Any], read: _Read, value_type: Any) -> StateEvent:
    if "control" in headers:
        control = _required(headers, "control", str, read)
        return ControlEvent(headers=ControlHeaders(control=control, offset=_advisory(headers, "offset", Any, read)))
    operation = _required(headers, "operation", Operation, read)
    named = {
        "operation": operation,
        "txid": _required(headers, "txid", str, read) if "txid" in headers else UNSET,
        "timestamp": _advisory(headers, "timestamp", Any, read),
    }
    custom = {name: _advisory(headers, name, Any, read) for name in headers if name not in _NAMED}
    if operation == "delete":
        value = _advisory(fields, "value", value_type, read)
    else:
        if "value" not in fields:
            raise ValueError(f"{operation} without a value")
        value = _required(fields, "value", value_type, read)
    return ChangeEvent(
        type=_required(fields, "type", Text, read),
        key=_required(fields, "key", Text, read),
        value=value,
        old_value=_advisory(fields, "old_value", value_type, read),
        headers=change_headers(named, {name: value for name, value in custom.items() if value is not UNSET}),
    )


def _required(fields: Mapping[str, Any], name: str, wanted: Any, read: _Read) -> Any:
    if name not in fields:
        raise ValueError(f"no {name}")
    try:
        return read(fields[name], wanted)
    except RecursionError:
        raise ValueError(f"{name}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _advisory(fields: Mapping[str, Any], name: str, wanted: Any, read: _Read) -> Any:
    """An advisory field: UNSET if it is missing or invalid."""
    try:
        return read(fields[name], wanted) if name in fields else UNSET
    except (ValueError, RecursionError):
        return UNSET


# Many events, as text


class EventDecoder:
    """Decodes JSON arrays to events, with decoded values or, for callers with a schema, with values as JSON text."""

    def __init__(self, value_type: Any = Any) -> None:
        self._value_type = value_type
        self._changes = msgspec.json.Decoder(list[ChangeEvent[value_type]])
        self._any_changes = msgspec.json.Decoder(list[_AnyChange[value_type]])
        self._change = msgspec.json.Decoder(ChangeEvent[value_type])

    def decode_array(self, text: bytes | bytearray | str) -> list[ChangeEvent[Any] | ControlEvent | BadEvent]:
        """Decode the events of an array. An invalid event becomes a BadEvent in its place.

        Raises ValueError if the text is not a complete array.
        """
        events: list[ChangeEvent[Any]]
        try:
            events = self._changes.decode(text)  # all of them changes, as nearly always
        except (ValueError, RecursionError):
            try:
                events = [event.checked() for event in self._any_changes.decode(text)]  # or changes with custom headers
            except (ValueError, RecursionError):
                return [self._decode_one(message) for message in split_messages(text)]
        if UnsetType in set(map(type, map(_VALUE, events))) and any(map(_lacks_value, events)):
            return [self._decode_one(message) for message in split_messages(text)]
        return events  # type: ignore[return-value]

    def _decode_one(self, message: msgspec.Raw | bytes) -> ChangeEvent[Any] | ControlEvent | BadEvent:
        try:
            change: ChangeEvent[Any] = self._change.decode(message)
        except (ValueError, RecursionError):
            pass
        else:
            if not _lacks_value(change):
                return change
        try:
            fields = _members(message)
            if fields is None:
                raise ValueError("not a state event: it is not a JSON object")
            headers = _members(fields.get("headers", b""))
            if headers is None:
                raise ValueError("not a state event: it has no headers")
            return _event(fields, headers, _decode, self._value_type)
        except ValueError as error:
            return BadEvent(plain(message), str(error))


def stored_batches(data: bytes, decoder: EventDecoder) -> Iterator[list[ChangeEvent[Any] | ControlEvent | BadEvent]]:
    """The events of stored messages, in batches of bounded size, so that other threads can run in between."""
    for group in groups(data):
        yield decoder.decode_array(b"[%b]" % group)


_VALUE = attrgetter("value")


def _lacks_value(change: ChangeEvent[Any]) -> bool:
    return change.value is UNSET and change.headers.operation != "delete"


def _decode(text: bytes | msgspec.Raw, wanted: Any) -> Any:
    return msgspec.json.decode(text, type=wanted)


def split_messages(text: bytes | bytearray | str) -> list[msgspec.Raw] | list[bytes]:
    """The elements of an array as text, including invalid and too deeply nested ones."""
    try:
        return split_array(text)
    except ValueError:
        data = (text.encode() if isinstance(text, str) else bytes(text)).strip()
        if data[:1] != b"[" or data[-1:] != b"]":
            raise ValueError("not an array of JSON messages") from None
        return elements(data[1:-1])


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _members(text: bytes | msgspec.Raw) -> dict[str, Any] | None:
    """The fields of an object as text, as far as they can be separated; None if it is not an object."""
    try:
        return _object.decode(text)
    except msgspec.ValidationError:
        return None
    except (ValueError, RecursionError):
        pass
    data = bytes(text).strip()
    if data[:1] != b"{" or data[-1:] != b"}":
        return None
    members = {}
    for member in elements(data[1:-1]):
        name, colon, value = member.partition(b":")
        try:
            members[msgspec.json.decode(name, type=str)] = value if colon else b""
        except ValueError:
            continue  # an invalid name, or one with a colon: not a field of an event
    return members


def plain(text: bytes | msgspec.Raw) -> Any:
    """The decoded message, or its bytes if it cannot be decoded."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return bytes(text)


_events = EventDecoder()


def decode_events(text: bytes | str) -> list[StateEvent]:
    """Decode the events of a JSON array. InvalidEventError names the first invalid one.

    ```python
    (event,) = decode_events('[{"type":"user","key":"1","value":{"n":1},"headers":{"operation":"insert"}}]')
    assert event.value == {"n": 1}
    ```
    """
    events: list[Any] = _events.decode_array(text)
    for number, event in enumerate(events):
        if type(event) is BadEvent:
            raise InvalidEventError(f"event {number}: {event.reason}")
    return events
