"""Runs a server until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import uvloop

from headwater import limits as bounds
from headwater.errors import OptionError
from headwater.freed_memory import keep_freed_memory
from headwater.limits import SWITCH_INTERVAL_S, Limits
from headwater.server.activation import address_of, inherited_sockets
from headwater.server.auth.keys import KeySet
from headwater.server.auth.rules import load_rules
from headwater.server.dispatch import Dispatcher
from headwater.server.fencing import Fence, leased
from headwater.server.machine import MemoryLimit, memory_limit
from headwater.server.memory import choose_memory, fit_memory
from headwater.server.native import NativeEdge
from headwater.server.native.tls import expiry_s, load_context
from headwater.server.observing import Observer
from headwater.server.observing.queued_log import STDOUT
from headwater.server.observing.upkeep import Upkeep
from headwater.server.opening import ServiceOptions, open_service
from headwater.server.settings import Loaded, Settings, shown_settings
from headwater.server.supervising import Supervisor, has_terminal, reserve
from headwater.server.watching import FileWatcher
from headwater.store.contract import Store
from headwater.store.embedded.opening import open_store
from headwater.store.memory import MemoryStore

log = logging.getLogger("headwater.server")

_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - to listen on; they are not addresses to call


def serve(loaded: Loaded, ready: Callable[[str], None]) -> int:
    """Serve a store until SIGTERM or SIGINT, with one process or several. Returns the exit code."""
    settings = loaded.settings
    check_files(settings)
    limits = fit_descriptors(settings.limits, raise_descriptor_limit())
    limits = fit_memory(choose_memory(limits, _share_of_memory(settings.workers)))
    sockets = inherited_sockets(os.environ)
    settings = _at_sockets(msgspec.structs.replace(settings, limits=limits), sockets)
    if settings.is_open_behind_proxy:
        log.warning(
            "everyone who reaches the proxy of this server may read, write and delete; give --auth FILE, "
            "or --insecure if that is intended"
        )
    if settings.workers == 1:
        return _serve_process(settings, ready, sockets, loaded)
    return _serve_together(settings, ready, sockets, loaded)


def _serve_together(
    settings: Settings, ready: Callable[[str], None], sockets: Sequence[socket.socket], loaded: Loaded
) -> int:
    """Serve with several processes on one port."""
    with contextlib.ExitStack() as stack:
        if not sockets:
            address = stack.enter_context(contextlib.closing(reserve(settings.host, settings.port)))
            settings = msgspec.structs.replace(settings, port=address.port)

        def serve_one(number: int, announce: Callable[[str], None]) -> int:
            return _serve_process(settings, announce, sockets, loaded, number)

        return Supervisor(settings.workers, serve_one, ready).run()


def _serve_process(
    settings: Settings,
    ready: Callable[[str], None],
    sockets: Sequence[socket.socket],
    loaded: Loaded,
    worker: int = 0,
) -> int:
    store = None if settings.store is not None else _open(settings)
    keep_freed_memory(bounds.FREE_BYTES_KEPT, bounds.FREE_PIECE_BYTES_MAX)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _set_up_collection()
    return uvloop.run(_serve_leased(store, settings, ready, sockets, loaded, worker))


def _open(settings: Settings) -> Store:
    return MemoryStore() if settings.memory else open_store(settings.data_dir, settings.limits)


def _share_of_memory(processes: int) -> MemoryLimit | None:
    """The memory that one of several processes may use."""
    limit = memory_limit()
    return None if limit is None else limit._replace(size_bytes=limit.size_bytes // processes)


def check_files(settings: Settings) -> None:
    """Read the files that options name, before anything is opened. Raises OSError, OptionError or ValueError."""
    if settings.auth is not None:
        load_rules(settings.auth, lambda _: KeySet())
    if settings.tls_certificate is not None:
        load_context(settings.tls_certificate, settings.tls_key)
    for name, target in (("access log", settings.access_log), ("audit log", settings.audit_log)):
        if target not in (None, STDOUT) and not Path(target).absolute().parent.is_dir():
            raise OptionError(f"the {name} {target} cannot be opened: its directory does not exist")


def _at_sockets(settings: Settings, sockets: list[socket.socket]) -> Settings:
    """The settings with the address of inherited sockets in place of `host` and `port`."""
    if not sockets:
        return settings
    host, port = address_of(sockets)
    settings = msgspec.structs.replace(settings, host=host, port=port)
    try:
        settings.check_auth()
        settings.check_development()
    except ValueError as error:
        raise OptionError(str(error)) from None
    return settings


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = bounds.DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, bounds.DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return bounds.DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a lower limit than the hard one
        log.info("the limit of open files stays at %d: %s", soft, error)
        return soft
    return wanted


def fit_descriptors(limits: Limits, descriptors: int) -> Limits:
    """Lower `connections_max` to the available descriptors, with a reserve for the files of the store."""
    reserved = min(bounds.DESCRIPTORS_RESERVED, descriptors // 4 + bounds.CONNECTIONS_REFUSED_MAX)
    most = max(1, descriptors - reserved)
    if most >= limits.connections_max:
        return limits
    log.info("%d descriptors allow %d connections, fewer than connections_max", descriptors, most)
    return msgspec.structs.replace(limits, connections_max=most)


def _set_up_collection() -> None:
    """A pass of the garbage collector stops the loop, and its time grows with the objects that it looks at. It does not
    look at what is loaded by now. What there is for each stream or cached path is not tracked (`gc=False`). The rest
    is for each connection and request, and requests create almost no cycles; with higher thresholds, a pass takes too
    long."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)


def _handle_signals(stop: asyncio.Event, reload: Callable[[], None]) -> None:
    """SIGTERM and SIGINT stop the server. SIGHUP reloads files, unless the terminal of the server was closed."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    had_terminal = has_terminal()

    def hang_up() -> None:
        if had_terminal and not has_terminal():
            stop.set()
        else:
            reload()

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        loop.add_signal_handler(signal.SIGHUP, hang_up)


def _watch_certificate(
    certificate: Path, key: Path | None, watcher: FileWatcher, edge: NativeEdge, upkeep: Upkeep
) -> None:
    paths = [path for path in (certificate, key) if path is not None]

    def load() -> tuple[ssl.SSLContext, float]:
        return load_context(certificate, key), expiry_s(certificate)

    def use(loaded: tuple[ssl.SSLContext, float]) -> None:
        context, upkeep.certificate_until_s = loaded
        edge.use_tls(context)

    use(watcher.add("the certificate", paths, load, use))


async def _open_shared(url: str) -> Store:
    """The store in a database. Servers without one need no client of PostgreSQL."""
    try:
        from headwater.store.postgres.opening import open_store as open_postgres
    except ImportError as error:
        raise OptionError(f"a store in PostgreSQL needs: pip install 'headwater[postgres]' ({error})") from None
    return await open_postgres(url)


async def _serve_leased(
    store: Store | None,
    settings: Settings,
    ready: Callable[[str], None],
    sockets: Sequence[socket.socket],
    loaded: Loaded,
    worker: int,
) -> int:
    if store is None:
        store = await _open_shared(settings.store or "")
    async with leased(settings) as fence:
        return await serve_store(store, settings, ready, sockets, fence, loaded, worker)


async def serve_store(
    store: Store,
    settings: Settings,
    ready: Callable[[str], None],
    sockets: Sequence[socket.socket] = (),
    fence: Fence | None = None,
    loaded: Loaded | None = None,
    worker: int = 0,
) -> int:
    """Serve a store over HTTP/1.1 until SIGTERM or SIGINT, or until it fails. Returns the exit code. `loaded` is what
    the options said, of which `settings` are the values in effect. `worker` is the number of this process, if it is one
    of several."""
    host, limits, public_url = settings.host, settings.limits, settings.told_url()
    stop = asyncio.Event()
    failures: list[BaseException] = []

    def fatal(error: BaseException) -> None:
        failures.append(error)
        stop.set()

    observer = settings.observer()
    watcher = FileWatcher(noted=observer.reloaded)
    _handle_signals(stop, lambda: _reload(watcher, observer))
    options = ServiceOptions(
        limits=limits,
        policy=settings.policy(),
        prefixes=settings.prefixes(),
        retention=settings.default_retention(),
        auth=settings.auth,
        public_url=public_url,
        development=settings.is_development,
        observer=observer,
        console=settings.console,
        settings=shown_settings(settings, loaded),
        fence=fence,
        worker=worker,
        fatal=fatal,
    )
    try:
        opened = await open_service(options, lambda: store, watcher)
        service = opened.service
        edge = NativeEdge(Dispatcher(service, settings.access()), limits, service.memory)
        try:
            if settings.tls_certificate is not None:
                _watch_certificate(settings.tls_certificate, settings.tls_key, watcher, edge, service.upkeep)
            bound = await edge.start(host, settings.port, sockets, shared=worker > 0)
            url = f"{'https' if settings.tls_certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{bound}"
            await opened.announce(url if public_url is None and host not in _EVERY_ADDRESS else None)
            ready(url)
            await stop.wait()
        finally:
            edge.drain()
            service.engine.give_up_soon()
            await opened.quiet()
            service.engine.end_live_reads()
            await edge.stop(bounds.STOP_GRACE_S)
            await opened.close()
    finally:
        await asyncio.to_thread(observer.close)
    return 1 if failures else 0


def _reload(watcher: FileWatcher, observer: Observer) -> None:
    watcher.reload()
    observer.reopen()
