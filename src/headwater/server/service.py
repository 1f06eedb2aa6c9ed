"""What every handler works with."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.server.streams.frames import LargeEvents
from headwater.server.turns import Turns


class Service(msgspec.Struct, frozen=True):
    engine: Engine
    limits: Limits
    entropy: Callable[[], float] = random.random
    turns: Turns = msgspec.field(default_factory=Turns)
    events: LargeEvents = msgspec.field(default_factory=LargeEvents)

    @property
    def now_ms(self) -> int:
        return self.engine.now_ms()
