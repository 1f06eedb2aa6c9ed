"""What every handler works with."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from headwater.engine import Engine
from headwater.limits import Limits


class Service(msgspec.Struct, frozen=True):
    engine: Engine
    limits: Limits
    entropy: Callable[[], float] = random.random

    @property
    def now_ms(self) -> int:
        return self.engine.now_ms()
