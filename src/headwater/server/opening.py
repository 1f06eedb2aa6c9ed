"""Opens the service of a server: the engine and everything that works beside it, started and stopped in one order.

| started by | what                                              | stopped by |
|------------|---------------------------------------------------|------------|
| `start`    | engine, memory mark                               | `close`    |
| `start`    | views, keys of issuers, subscriptions are loaded  | `quiet`    |
| `start`    | compaction                                        | `quiet`    |
| `announce` | watched files, Notify, followers of other servers | `quiet`    |
| `announce` | wakes of subscriptions                            | `quiet`    |

`announce` is separate because Notify and followers tell others the URL of the server, which is known when it listens.
`quiet` is separate because an edge answers its last requests when nothing new is begun and the engine still works.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.log.quotas import Prefixes, Usage
from headwater.outbound import open_outbound
from headwater.server.auth.grants import GrantedCallers
from headwater.server.auth.opening import OpenAuthority, open_authority
from headwater.server.compacting.compactor import Compactor
from headwater.server.default_retention import DefaultRetention
from headwater.server.fencing import Fence
from headwater.server.following import Followers, FollowPolicy, open_followers
from headwater.server.live_places import LivePlaces
from headwater.server.memory import open_memory
from headwater.server.notify import Notifier
from headwater.server.observing import Observer
from headwater.server.observing.configuration import ShownSettings
from headwater.server.observing.upkeep import Upkeep
from headwater.server.service import Service
from headwater.server.states import States
from headwater.server.subscriptions import Subscriptions
from headwater.server.tables.active import ActiveViews
from headwater.server.views import Views
from headwater.server.watching import FileWatcher
from headwater.store.contract import Store
from headwater.tasks import in_thread

log = logging.getLogger("headwater.server")


def _ignore(_: BaseException) -> None:
    """The default callback for a failed store: does nothing, because every write reports the failure."""


class ServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `headwater serve` and an ASGI app decide about a service."""

    limits: Limits
    policy: FollowPolicy  # which remote tables are followed
    prefixes: Prefixes  # with quotas
    retention: DefaultRetention = msgspec.field(default_factory=DefaultRetention)
    auth: Path | None = None  # a file with tokens
    public_url: str | None = None
    development: bool = False
    observer: Observer = msgspec.field(default_factory=Observer)
    console: bool = True  # whether the server has one
    settings: ShownSettings = ShownSettings()  # as they are shown
    fence: Fence | None = None
    fatal: Callable[[BaseException], None] = _ignore  # called when the store has failed


class Stoppable(Protocol):
    async def stop(self) -> None: ...


class OpenService:
    """A service whose engine runs. `service` is what handlers use."""

    def __init__(
        self,
        service: Service,
        watcher: FileWatcher,
        auth: OpenAuthority | None,
        views: Views,
        notifier: Notifier,
        followers: Followers,
        subscriptions: Subscriptions,
        compactor: Compactor,
    ) -> None:
        self.service = service
        self._watcher = watcher
        self._auth = auth
        self._views = views
        self._notifier = notifier
        self._followers = followers
        self._subscriptions = subscriptions
        self._compactor = compactor

    async def start(self) -> None:
        await self.service.engine.start()
        if self.service.memory is not None:
            self.service.memory.start()
        await self._subscriptions.start()
        await self._views.start()
        await self._compactor.start()
        if self._auth is not None:
            self._auth.start()

    async def announce(self, url: str | None = None) -> None:
        """Begin to work with other servers. `url` is the one at which they find this server, if none was configured."""
        if url is not None:
            self._notifier.sender.public_url = self._followers.public_url = url
        self._watcher.start()
        await self._notifier.start()
        await self._followers.start()
        self._subscriptions.begin()

    async def quiet(self) -> None:
        """Stop everything that makes requests of its own. The engine goes on."""
        parts = (self._watcher, self._followers, self._views, self._notifier, self._subscriptions, self._compactor)
        for part in (*parts, self._auth):
            if part is not None:
                await _stop(part)

    async def close(self) -> None:
        """Stop everything, make accepted writes durable, and close the store."""
        await self.quiet()
        if self.service.memory is not None:
            await _stop(self.service.memory)
        await _stop(self.service.engine)


async def _stop(part: Stoppable) -> None:
    """Stop one part. An error must not keep the others from being stopped."""
    try:
        await part.stop()
    except Exception as error:  # noqa: BLE001 - logged
        log.warning("%s did not stop cleanly: %s", type(part).__name__, error)


async def open_service(
    options: ServiceOptions, open_store: Callable[[], Store], watcher: FileWatcher | None = None
) -> OpenService:
    """Open the store and start the service over it. If it fails or is cancelled, nothing is left open."""
    limits, observer = options.limits, options.observer
    watcher = watcher or FileWatcher(noted=observer.reloaded)
    async with contextlib.AsyncExitStack() as undo:
        auth = None
        if options.auth is not None:
            keys = open_outbound(development=options.development, limits=limits)
            undo.push_async_callback(keys.aclose)
            auth = open_authority(options.auth, keys, watcher)
            auth.token_changed = observer.token_changed
        store = await in_thread(open_store, lambda store: store.close())
        undo.push_async_callback(store.close)
        opened = _over(options, store, watcher, auth)
        undo.pop_all()
        undo.push_async_callback(opened.close)
        await opened.start()
        undo.pop_all()
    return opened


def _over(options: ServiceOptions, store: Store, watcher: FileWatcher, auth: OpenAuthority | None) -> OpenService:
    limits, fence = options.limits, options.fence
    authority = None if auth is None else auth.authority
    usage = Usage(options.prefixes, None if authority is None else authority.quotas)
    engine = Engine(
        store,
        limits,
        fatal=options.fatal,
        fence=None if fence is None else fence.refusal,
        usage=usage,
        default_retention=options.retention.of,
    )
    outbound = open_outbound(development=options.development, limits=limits)
    notifier = Notifier(engine, limits, outbound, public_url=options.public_url)
    followers = open_followers(engine, options.policy, limits, options.public_url, authority)
    webhooks = open_outbound(development=options.development, limits=limits)
    subscriptions = Subscriptions(engine, webhooks, GrantedCallers(authority), public_url=options.public_url)
    active, states = ActiveViews(), States()
    views = Views(engine, active)
    compactor = Compactor(engine, limits)
    service = Service(
        engine,
        limits,
        notifier,
        active=active,
        states=states,
        followers=followers,
        subscriptions=subscriptions,
        views=views,
        compactor=compactor,
        observer=options.observer,
        authority=authority,
        memory=open_memory(limits, engine, active, states),
        fence=fence,
        console=options.console,
        settings=options.settings,
        upkeep=Upkeep(lambda: [*watcher.watched, *([] if auth is None else [auth.keeper])], usage),
        places=LivePlaces(usage.prefixes, usage.tokens),
    )
    return OpenService(service, watcher, auth, views, notifier, followers, subscriptions, compactor)
