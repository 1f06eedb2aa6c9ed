"""The entities of a state stream: the newest value of each type and key, as its text was written.

The fold is that of the State Protocol, as in a StreamDB: insert, update and upsert set the value of an entity, delete
removes it, `reset` removes all, and other controls have no effect. What is no event is counted and left out.

Entities are sorted by name, which is type and key, and kept in runs of a few kilobytes. A run is one bytes object: the
byte 0xff before each entity, its type and key, each ended by a zero byte, and its value. JSON is UTF-8, which has no
0xff, and no zero bytes in the text of a value; those of a type or key are followed by 0xfe. So an entity is found by a
bisection and one search for bytes, it takes hardly more memory than its text, and the garbage collector has nothing to
look at. An object for each entity takes half as much again, and a collection then visits all of them in one turn of the
loop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from headwater import limits
from headwater.protocol.state.events import (
    DELETE,
    RESET,
    BadEvent,
    ChangeEvent,
    ControlEvent,
    EventDecoder,
    stored_batches,
)

_MARK = b"\xff"
_END = b"\0"
_ESCAPE = b"\xfe"  # after a zero byte of a type or key
_ESCAPED = _END + _ESCAPE
_ENDS = 2  # zero bytes in a name without escapes

_events = EventDecoder(msgspec.Raw)


def entity_name(entity_type: str, key: str) -> bytes:
    """What the entity with a type and key begins with."""
    name = f"{entity_type}\0{key}\0".encode()
    if name.count(0) != _ENDS:
        name = b"%b\0%b\0" % (_escape(entity_type), _escape(key))
    return name


def _escape(text: str) -> bytes:
    return text.encode().replace(_END, _ESCAPED)


class Entity(NamedTuple):
    """An entity in its run, which stays as it is when the entity changes."""

    run: bytes
    start: int
    end: int

    @property
    def name(self) -> bytes:
        return self.run[self.start : self._key_end + 1]

    @property
    def type(self) -> str:
        return _text(self.run[self.start : self._type_end])

    @property
    def key(self) -> str:
        return _text(self.run[self._type_end + 1 : self._key_end])

    @property
    def value(self) -> memoryview:
        """The text of the value."""
        return memoryview(self.run)[self._key_end + 1 : self.end]

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def _type_end(self) -> int:
        return _part_end(self.run, self.start)

    @property
    def _key_end(self) -> int:
        return _part_end(self.run, self._type_end + 1)


def _part_end(run: bytes, start: int) -> int:
    end = run.index(_END, start)
    while run.startswith(_ESCAPED, end):
        end = run.index(_END, end + 1)
    return end


def _text(part: bytes) -> str:
    return part.replace(_ESCAPED, _END).decode()


class EntityPage(NamedTuple):
    entities: list[Entity]
    more: bool  # whether others follow


class Entities:
    """The entities of one stream, in the order of their types and keys."""

    __slots__ = ("_firsts", "_runs", "_text_bytes", "count", "reason", "skipped")

    def __init__(self) -> None:
        self.skipped = 0  # messages that are no events, or name an entity with too many bytes
        self.reason: str | None = None  # why the last one was skipped
        self._clear()

    @property
    def size_bytes(self) -> int:
        """The memory that they take, about."""
        return self._text_bytes + len(self._runs) * limits.ENTITY_RUN_OWN_BYTES

    def fold(self, data: bytes) -> Iterator[None]:
        """Apply stored messages, in steps of bounded size."""
        for batch in stored_batches(data, _events):
            for event in batch:
                if type(event) is ChangeEvent:
                    self._change(event)
                elif type(event) is ControlEvent:
                    if event.headers.control == RESET:
                        self._clear()
                elif type(event) is BadEvent:
                    self._skip(event.reason)
            yield

    def get(self, entity_type: str, key: str) -> Entity | None:
        name = entity_name(entity_type, key)
        run = self._runs[bisect_right(self._firsts, name) - 1]
        start = _entity_start(run, name)
        return None if start < 0 else Entity(run, start + 1, _entity_end(run, start))

    def page(self, entity_type: str | None, after: bytes, limit: int, bytes_max: int) -> EntityPage:
        """The entities of a type, or all, after the one with the name `after`: as many as fit, at least one."""
        first, past = after, _MARK
        if entity_type is not None:
            escaped = _escape(entity_type)
            first, past = max(after, escaped + _END), escaped + _ESCAPED  # no key begins with 0xfe
        page: list[Entity] = []
        size_bytes = 0
        for entity in self._since(first):
            if after and _is_named(entity.run, after, entity.start):
                continue
            if not past > entity.run[entity.start : entity.start + len(past)]:
                break
            size_bytes += entity.size_bytes
            if len(page) == limit or (page and size_bytes > bytes_max):
                return EntityPage(page, more=True)
            page.append(entity)
        return EntityPage(page, more=False)

    def _since(self, name: bytes) -> Iterator[Entity]:
        """The entities that sort at or after a name."""
        at = max(0, bisect_right(self._firsts, name) - 1)
        for run in self._runs[at : at + 1]:
            for entity in _entities(run):
                if not run[entity.start : entity.start + len(name)] < name:
                    yield entity
        for number in range(at + 1, len(self._runs)):
            yield from _entities(self._runs[number])

    # Changes

    def _change(self, event: ChangeEvent[msgspec.Raw]) -> None:
        name = entity_name(event.type, event.key)
        if len(name) > limits.ENTITY_NAME_BYTES_MAX:
            self._skip(f"type and key have more than {limits.ENTITY_NAME_BYTES_MAX} bytes")
        elif event.headers.operation == DELETE or event.value is UNSET:  # only deletes may have no value
            self._remove(name)
        else:
            self._put(name, event.value)

    def _put(self, name: bytes, value: msgspec.Raw) -> None:
        at = bisect_right(self._firsts, name) - 1
        run = self._runs[at]
        start = _entity_start(run, name)
        if start >= 0:
            end = _entity_end(run, start)
            self._replace(at, b"%b\xff%b%b%b" % (run[:start], name, value, run[end:]))
            return
        self.count += 1
        if len(run) > 2 * limits.ENTITY_RUN_BYTES:  # it is one large entity, which is not copied
            at = self._place_beside(at, name)
            self._replace(at, b"\xff%b%b" % (name, value))
            return
        entities = run.split(_MARK)  # the first part is empty
        entities.insert(bisect_left(entities, name, 1), b"%b%b" % (name, value))
        self._replace(at, _MARK.join(entities))

    def _place_beside(self, at: int, name: bytes) -> int:
        """Make an empty run for a name before or after a run with one entity, and return its number."""
        if self._runs[at][1 : 1 + len(name)] < name:
            at += 1
            self._firsts.insert(at, name)
        else:
            self._firsts.insert(at + 1, self._first_name(at))
        self._runs.insert(at, b"")
        return at

    def _first_name(self, at: int) -> bytes:
        return next(_entities(self._runs[at])).name

    def _replace(self, at: int, run: bytes) -> None:
        self._text_bytes += len(run) - len(self._runs[at])
        self._runs[at] = run
        if len(run) > 2 * limits.ENTITY_RUN_BYTES:
            self._split(at)

    def _split(self, at: int) -> None:
        """Cut a run into two of about the same size, unless it is one large entity."""
        run = self._runs[at]
        middle = len(run) // 2
        cut = run.rfind(_MARK, 1, middle)
        if cut < 0:
            cut = run.find(_MARK, max(1, middle))
        if cut < 0:
            return
        self._runs[at : at + 1] = [run[:cut], run[cut:]]
        self._firsts.insert(at + 1, self._first_name(at + 1))
        for number in (at + 1, at):
            if len(self._runs[number]) > 2 * limits.ENTITY_RUN_BYTES:
                self._split(number)

    def _remove(self, name: bytes) -> None:
        at = bisect_right(self._firsts, name) - 1
        run = self._runs[at]
        start = _entity_start(run, name)
        if start < 0:
            return
        self.count -= 1
        left = run[:start] + run[_entity_end(run, start) :]
        self._text_bytes += len(left) - len(run)
        if left or not at:
            self._runs[at] = left
        else:
            del self._runs[at], self._firsts[at]

    def _clear(self) -> None:
        self._runs = [b""]
        self._firsts = [b""]  # no entity of a run sorts before its first, nor at or after that of the next run
        self._text_bytes = self.count = 0

    def _skip(self, reason: str) -> None:
        self.skipped += 1
        self.reason = reason[: limits.VIEW_REASON_LENGTH_MAX]


def _entity_start(run: bytes, name: bytes) -> int:
    """Where the entity with a name begins in its run, or -1. The first one that begins with the name is it, or has a
    key that is longer by a zero byte, and sorts after it."""
    start = run.find(_MARK + name)
    return start if start < 0 or _is_named(run, name, start + 1) else -1


def _is_named(run: bytes, name: bytes, start: int) -> bool:
    """Whether the entity that begins somewhere in a run has a name."""
    return run.startswith(name, start) and not run.startswith(_ESCAPE, start + len(name))


def _entity_end(run: bytes, start: int) -> int:
    end = run.find(_MARK, start + 1)
    return len(run) if end < 0 else end


def _entities(run: bytes) -> Iterator[Entity]:
    start = 0
    while start < len(run):
        end = _entity_end(run, start)
        yield Entity(run, start + 1, end)
        start = end
