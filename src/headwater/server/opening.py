"""Opens the service of a server: the engine and everything that works beside it, started and stopped in one order.

| started by | what                                              | stopped by |
|------------|---------------------------------------------------|------------|
| `start`    | engine, memory mark, requests that are passed on  | `close`    |
| `start`    | keys of issuers                                   | `quiet`    |
| role       | views, compaction, subscriptions are loaded       | role       |
| `announce` | watched files                                     | `quiet`    |
| both       | Notify, followers of other servers                | role       |
| both       | wakes of subscriptions                            | role       |

What the role starts works at one server at a time, if several share the store (`roles.py`). A server alone has the role
from `start` to `quiet`.

`announce` is separate because Notify and followers tell others the URL of the server, which is known when it listens.
`quiet` is separate because an edge answers its last requests when nothing new is begun and the engine still works.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from headwater.engine import Engine
from headwater.limits import Limits
from headwater.log.quotas import Prefixes, Usage
from headwater.outbound import OutboundClient, open_outbound
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
from headwater.server.pending_writes import PendingWrites
from headwater.server.relaying import Relay
from headwater.server.roles import Role, SharedRole
from headwater.server.service import Service
from headwater.server.states import States
from headwater.server.subscriptions import Subscriptions
from headwater.server.tables.active import ActiveViews
from headwater.server.views import Views
from headwater.server.watching import FileWatcher
from headwater.store.contract import Store, shared
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
    worker: int = 0  # the number of this process, if it is one of several on a port
    fatal: Callable[[BaseException], None] = _ignore  # called when the store has failed


class Stoppable(Protocol):
    async def stop(self) -> None: ...


class BackgroundParts(NamedTuple):
    """What works in the background, at one server at a time."""

    notifier: Notifier
    followers: Followers
    subscriptions: Subscriptions
    views: Views
    compactor: Compactor


class OpenService:
    """A service whose engine runs. `service` is what handlers use, and `make_parts` makes what works in the background
    while this server has the role."""

    def __init__(
        self,
        service: Service,
        watcher: FileWatcher,
        auth: OpenAuthority | None,
        make_parts: Callable[[], BackgroundParts],
    ) -> None:
        self.service = service
        self._watcher = watcher
        self._auth = auth
        self._make_parts = make_parts
        self._parts: BackgroundParts | None = None
        self._url: str | None = None
        self._is_announced = False

    async def start(self) -> None:
        await self.service.engine.start()
        if self.service.memory is not None:
            self.service.memory.start()
        if self.service.relay is not None:
            await self.service.relay.start()
        await self.service.role.start(self._begin, self._end)
        if self._auth is not None:
            self._auth.start()

    async def announce(self, url: str | None = None) -> None:
        """Begin to work with other servers. `url` is the one at which they find this server, if none was configured."""
        self._url = url
        self._is_announced = True
        self._watcher.start()
        if self._parts is not None:
            await self._announce(self._parts)

    async def _begin(self) -> None:
        """This server has got the role."""
        self._parts = parts = self._make_parts()
        await parts.subscriptions.start()
        await parts.views.start()
        await parts.compactor.start()
        self._use(parts)
        if self._is_announced:
            await self._announce(parts)
        if self.service.relay is not None:
            await self.service.relay.serve()

    async def _announce(self, parts: BackgroundParts) -> None:
        if self._url is not None:
            parts.notifier.sender.public_url = parts.followers.public_url = self._url
        await parts.notifier.start()
        await parts.followers.start()
        parts.subscriptions.begin()

    async def _end(self) -> None:
        """This server has lost the role, or gives it up."""
        service, (parts, self._parts) = self.service, (self._parts, None)
        if service.relay is not None:
            await service.relay.end_serving()
        if parts is None:
            return
        for part in (parts.followers, parts.views, parts.notifier, parts.subscriptions, parts.compactor):
            await _stop(part)
        if service.role.is_shared:
            service.engine.watch(None)
            service.engine.note_compactable(None)
            self._use(None)

    def _use(self, parts: BackgroundParts | None) -> None:
        service = self.service
        service.notifier = None if parts is None else parts.notifier
        service.followers = None if parts is None else parts.followers
        service.subscriptions = None if parts is None else parts.subscriptions
        service.views = None if parts is None else parts.views
        service.compactor = None if parts is None else parts.compactor

    async def quiet(self) -> None:
        """Stop everything that makes requests of its own. The engine goes on."""
        await _stop(self._watcher)
        await self._end()
        await _stop(self.service.role)
        await self._end()  # the role may have come back meanwhile
        if self._auth is not None:
            await _stop(self._auth)

    async def close(self) -> None:
        """Stop everything, make accepted writes durable, and close the store."""
        await self.quiet()
        if self.service.relay is not None:
            await _stop(self.service.relay)
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
    options: ServiceOptions,
    open_store: Callable[[], Store] | Callable[[], Coroutine[Any, Any, Store]],
    watcher: FileWatcher | None = None,
) -> OpenService:
    """Open the store, in a thread if it blocks, and start the service over it. If it fails or is cancelled, nothing is
    left open."""
    limits, observer = options.limits, options.observer
    watcher = watcher or FileWatcher(noted=observer.reloaded)
    async with contextlib.AsyncExitStack() as undo:
        auth = None
        if options.auth is not None:
            keys = open_outbound(development=options.development, limits=limits)
            undo.push_async_callback(keys.aclose)
            auth = open_authority(options.auth, keys, watcher)
            auth.token_changed = observer.token_changed
        if inspect.iscoroutinefunction(open_store):
            store = await open_store()
        else:
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
    among = shared(store)
    role = Role() if among is None else SharedRole(among)
    engine = Engine(
        store,
        limits,
        fatal=options.fatal,
        fence=None if fence is None else fence.refusal,
        usage=usage,
        default_retention=options.retention.of,
        may_sweep=lambda: role.is_held,
    )
    active, states = ActiveViews(), States()
    acting = engine if among is None else engine.fenced(role.refusal)

    def make_parts() -> BackgroundParts:
        def outbound() -> OutboundClient:
            return open_outbound(development=options.development, limits=limits)

        grants = GrantedCallers(authority)
        return BackgroundParts(
            Notifier(acting, limits, outbound(), public_url=options.public_url),
            open_followers(acting, options.policy, limits, options.public_url, authority),
            Subscriptions(acting, outbound(), grants, public_url=options.public_url),
            Views(acting, active),
            Compactor(acting, limits),
        )

    service = Service(
        engine,
        limits,
        active=active,
        states=states,
        observer=options.observer,
        authority=authority,
        memory=open_memory(limits, engine, active, states),
        fence=fence,
        role=role,
        worker=options.worker,
        console=options.console,
        settings=options.settings,
        upkeep=Upkeep(lambda: [*watcher.watched, *([] if auth is None else [auth.keeper])], usage),
        places=LivePlaces(usage.prefixes, usage.tokens),
    )
    if among is not None:
        service.relay = Relay(engine, service.instance, role)
        service.pending = PendingWrites()
    return OpenService(service, watcher, auth, make_parts)
