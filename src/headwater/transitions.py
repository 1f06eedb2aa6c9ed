"""State machines: a table says which event moves which state to which other one.

    TRANSITIONS = {State.OPEN: {Event.CLOSE: State.CLOSED}, State.CLOSED: {}}

An event that the table does not list for a state is a defect of the program and raises `ImpossibleTransitionError`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)

Transitions: TypeAlias = Mapping[S, Mapping[E, S]]


class ImpossibleTransitionError(Exception):
    """An event that is not possible in the current state."""


def next_state(transitions: Transitions[S, E], state: S, event: E) -> S:
    """The state after an event."""
    try:
        return transitions[state][event]
    except KeyError:
        raise ImpossibleTransitionError(f"{event.name} cannot happen while {state.name}") from None
