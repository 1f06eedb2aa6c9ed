"""Delivers the events of the shop. Some arrive late, some twice, and invalid events are added."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from headwater import limits
from headwater.demo.shop import STREAMS, Type, Value
from headwater.protocol.state.events import ChangeEvent

Message: TypeAlias = tuple[str, Any]  # the path of a stream, and the message


class UnreliableDelivery:
    """Delivers every event at least once. Events that are held back follow some later events, or come with `rest`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._held: list[tuple[int, int, Message]] = []  # a heap, by due time
        self._count = 0
        self.late = 0
        self.repeated = 0
        self.bad = 0

    def deliver(self, events: Iterable[ChangeEvent[Value]]) -> Iterator[Message]:
        for event in events:
            self._count += 1
            yield from self._one(event)
            while self._held and self._held[0][0] <= self._count:
                yield heapq.heappop(self._held)[2]

    def rest(self) -> Iterator[Message]:
        while self._held:
            yield heapq.heappop(self._held)[2]

    def _one(self, event: ChangeEvent[Value]) -> Iterator[Message]:
        kind: Type = event.type  # type: ignore[assignment]  # the shop has no other types
        message = (STREAMS[kind], event)
        die = self._chance.random()
        if die < limits.DEMO_BAD_SHARE:
            self.bad += 1
            yield STREAMS[kind], self._chance.choice(DAMAGES)(msgspec.to_builtins(event))
        elif die < limits.DEMO_BAD_SHARE + limits.DEMO_REPEATED_SHARE:
            self.repeated += 1
            self._hold(message)
        elif die < limits.DEMO_BAD_SHARE + limits.DEMO_REPEATED_SHARE + limits.DEMO_LATE_SHARE:
            self.late += 1
            self._hold(message)
            return
        yield message

    def _hold(self, message: Message) -> None:
        due = self._count + self._chance.randint(1, limits.DEMO_LATE_BY_MAX)
        heapq.heappush(self._held, (due, self._count, message))


def _without_operation(event: dict[str, Any]) -> Any:
    return {**event, "headers": {}}


def _with_unknown_operation(event: dict[str, Any]) -> Any:
    return {**event, "headers": {"operation": "replace"}}


def _without_key(event: dict[str, Any]) -> Any:
    return {name: value for name, value in event.items() if name != "key"}


def _without_value(event: dict[str, Any]) -> Any:
    return {name: value for name, value in event.items() if name != "value"}


def _without_version(event: dict[str, Any]) -> Any:
    return {**event, "value": {name: value for name, value in event["value"].items() if name != "version"}}


def _with_version_in_words(event: dict[str, Any]) -> Any:
    return {**event, "value": {**event["value"], "version": "the newest"}}


def _no_event(event: dict[str, Any]) -> Any:
    return f"checkout: time-out after 30 s, {event['key']} may be incomplete"


DAMAGES: tuple[Callable[[dict[str, Any]], Any], ...] = (
    _without_operation,
    _with_unknown_operation,
    _without_key,
    _without_value,
    _without_version,
    _with_version_in_words,
    _no_event,
)
