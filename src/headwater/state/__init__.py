"""The State Protocol: state events, and StreamDB, which keeps typed collections current from a stream of them.

The asyncio shell is imported when it is used, as in `headwater.client`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwater.protocol.state.events import (
    BadEvent,
    ChangeEvent,
    ChangeHeaders,
    ControlEvent,
    ControlHeaders,
    EventDecoder,
    StateEvent,
    control_event,
    decode_events,
    is_change_event,
    is_control_event,
    parse_event,
)
from headwater.state.database import Counts, Preloaded, Transaction
from headwater.state.definitions import Collection, StateDefinition, define_state
from headwater.state.materialized import MaterializedState
from headwater.state.queries import Query
from headwater.state.schemas import Schema, schema_of
from headwater.state.sync import StreamDB
from headwater.state.tables import StateChange, StateTable

if TYPE_CHECKING:
    from headwater.state.aio import AsyncStreamDB

__all__ = [
    "AsyncStreamDB",
    "BadEvent",
    "ChangeEvent",
    "ChangeHeaders",
    "Collection",
    "ControlEvent",
    "ControlHeaders",
    "Counts",
    "EventDecoder",
    "MaterializedState",
    "Preloaded",
    "Query",
    "Schema",
    "StateChange",
    "StateDefinition",
    "StateEvent",
    "StateTable",
    "StreamDB",
    "Transaction",
    "control_event",
    "decode_events",
    "define_state",
    "is_change_event",
    "is_control_event",
    "parse_event",
    "schema_of",
]


def __getattr__(name: str) -> Any:
    if name != "AsyncStreamDB":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = importlib.import_module(f"{__name__}.aio").AsyncStreamDB
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
