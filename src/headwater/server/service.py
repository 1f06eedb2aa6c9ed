"""The objects that every handler uses."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.server.auth.authority import Authority
from headwater.server.compacting.compactor import Compactor
from headwater.server.composing import Composer
from headwater.server.compression import Encoders
from headwater.server.following import Followers
from headwater.server.http import Feed, Respond
from headwater.server.listing import Lists
from headwater.server.live_places import LivePlaces
from headwater.server.memory import MemoryMark
from headwater.server.notify import Notifier
from headwater.server.observing import Observer
from headwater.server.observing.configuration import ShownSettings
from headwater.server.observing.upkeep import Upkeep
from headwater.server.pending_writes import PendingWrites
from headwater.server.relaying import Relay
from headwater.server.roles import Role
from headwater.server.states import States
from headwater.server.subscriptions import Subscriptions
from headwater.server.tables.active import ActiveViews
from headwater.server.turns import Turns
from headwater.server.views import Views
from headwater.tasks import Tasks

if TYPE_CHECKING:
    from headwater.server.fencing import Fence


class Service(msgspec.Struct):
    """Of several servers that share a store, only the one with the role has subscriptions, views, followers and so on.
    These fields change when the role moves."""

    engine: Engine
    limits: Limits
    notifier: Notifier | None = None  # None: Notify is off
    entropy: Callable[[], float] = random.random
    turns: Turns = msgspec.field(default_factory=Turns)
    encoders: Encoders = msgspec.field(default_factory=Encoders)
    active: ActiveViews = msgspec.field(default_factory=ActiveViews)
    states: States = msgspec.field(default_factory=States)
    followers: Followers | None = None
    lists: Lists = msgspec.field(default_factory=Lists)
    places: LivePlaces = msgspec.field(default_factory=LivePlaces)
    fence: Fence | None = None  # None: the server needs no lease
    role: Role = msgspec.field(default_factory=Role)
    relay: Relay | None = None  # None: no other server shares the store
    pending: PendingWrites | None = None  # None: no other server shares the store
    instance: str = msgspec.field(default_factory=partial(secrets.token_hex, 8))  # another one after each start
    worker: int = 0  # the number of this process, if it is one of several on a port
    memory: MemoryMark | None = None  # None: memory is not limited
    subscriptions: Subscriptions | None = None  # None: there are none
    views: Views | None = None  # None: views cannot be created
    composer: Composer = msgspec.field(default_factory=Composer)
    compactor: Compactor | None = None  # None: nothing is compacted
    authority: Authority | None = None  # None: access is not checked
    console: bool = True  # whether there is one
    settings: ShownSettings = ShownSettings()
    upkeep: Upkeep = msgspec.field(default_factory=Upkeep)
    observer: Observer = msgspec.field(default_factory=Observer)
    combined: set[Feed] = msgspec.field(default_factory=set)  # open connections that follow many streams
    tasks: Tasks = msgspec.field(default_factory=Tasks)  # writes in the background

    @property
    def now_ms(self) -> int:
        return self.engine.now_ms()

    def watched(self, respond: Respond) -> Respond:
        """What a write has to call with its response, which has to follow. UnavailableError if no write is accepted."""
        return respond if self.pending is None else self.pending.watch(respond)
