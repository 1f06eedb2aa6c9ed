"""Several server processes on one port: a process that starts them, starts again what has died, and stops them.

    supervisor        reserves the address, forwards signals, waits for children; has no threads and no event loop
    server processes  forks of it; each listens on the address with SO_REUSEPORT, so that the kernel spreads
                      connections, or on the sockets that systemd passed

A server process that ends while nobody stops it is started again, after waits that grow if this happens often. If one
ends before all have been ready for the first time, its error holds for all of them, and the supervisor ends with its
exit code. When the supervisor dies, the kernel stops the others (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

from headwater.backoff import Backoff, Streak
from headwater.limits import SERVER_RESTART_FIRST_S, SERVER_RESTART_MAX_S, SERVER_STEADY_S, SUPERVISOR_TICK_S

log = logging.getLogger("headwater.server")

_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGTERM, signal.SIGINT)
_HANDLED = (*_STOPS, signal.SIGHUP, signal.SIGCHLD)


class ReservedAddress:
    """An address that is kept for server processes, by sockets that do not listen."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets
        self.port = int(sockets[0].getsockname()[1])

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def reserve(host: str, port: int) -> ReservedAddress:
    """Bind all addresses of a host at a port; 0 takes a free one. OSError if another program listens there."""
    addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            if sockets:
                address = (address[0], sockets[0].getsockname()[1], *address[2:])
            # With SO_REUSEPORT the kernel would also allow a port at which other servers of this user listen.
            _bound(family, kind, protocol, address, shared=False).close()
            sockets.append(_bound(family, kind, protocol, address, shared=True))
    except BaseException:
        for one in sockets:
            one.close()
        raise
    return ReservedAddress(sockets)


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    one = socket.socket(family, kind, protocol)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except BaseException as error:
        one.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise OSError(errno.EADDRINUSE, f"another program listens on port {address[1]}") from error
        raise
    return one


class _Process:
    """One of the server processes: the one that runs now, and when to start the next one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0  # 0: it does not run
        self.started_s = 0.0
        self.start_s = 0.0  # not before this time
        self.streak = Streak(Backoff(first_s=SERVER_RESTART_FIRST_S, max_s=SERVER_RESTART_MAX_S))

    def ended(self, now_s: float) -> float:
        """Note that it ended. Returns the time until the next start."""
        if now_s - self.started_s >= SERVER_STEADY_S:
            self.streak.reset()
        wait_s = self.streak.fail()
        self.pid, self.start_s = 0, now_s + wait_s
        return wait_s


class Supervisor:
    """`serve` runs one server process, given its number and what to call with its URL, and returns the exit code."""

    def __init__(
        self, count: int, serve: Callable[[int, Callable[[str], None]], int], ready: Callable[[str], None]
    ) -> None:
        self._processes = [_Process(number) for number in range(1, count + 1)]
        self._serve = serve
        self._ready = ready
        self._urls: dict[int, str] = {}  # of server processes that have been ready
        self._announcements, self._announce = os.pipe()
        os.set_blocking(self._announcements, False)
        self._stopping = False
        self._code = 0

    def run(self) -> int:
        """Returns the exit code; also in each of the server processes, when it has ended."""
        had_terminal = has_terminal()
        handled = _HANDLED if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else (*_STOPS, signal.SIGCHLD)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
        try:
            while True:
                for process in self._due():
                    if not self._start(process, mask):
                        return self._serve(process.number, self._announcer(process.number))
                received = signal.sigtimedwait(handled, SUPERVISOR_TICK_S)
                self._take_announcements()
                if received is not None and received.si_signo in (*_STOPS, signal.SIGHUP):
                    hangs_up = received.si_signo == signal.SIGHUP and (not had_terminal or has_terminal())
                    self._pass_on(signal.SIGHUP if hangs_up else signal.SIGTERM)
                self._reap()
                if self._stopping and not any(process.pid for process in self._processes):
                    return self._code
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _due(self) -> list[_Process]:
        now_s = time.monotonic()
        return [one for one in self._processes if not (one.pid or self._stopping) and now_s >= one.start_s]

    def _start(self, process: _Process, mask: set[int | signal.Signals]) -> bool:
        """Fork. Returns False in the new process."""
        supervisor = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        process.pid = os.fork()
        if process.pid:
            process.started_s = time.monotonic()
            return True
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.getppid() != supervisor:  # it has died before prctl
            os.kill(os.getpid(), signal.SIGTERM)
        os.close(self._announcements)
        return False

    def _announcer(self, number: int) -> Callable[[str], None]:
        def announce(url: str) -> None:
            os.write(self._announce, f"{number} {url}\n".encode())

        return announce

    def _take_announcements(self) -> None:
        was_ready = self._is_ready
        try:
            lines = os.read(self._announcements, 65536).decode().splitlines()
        except BlockingIOError:
            return
        for line in lines:
            number, _, url = line.partition(" ")
            self._urls[int(number)] = url
        if self._is_ready and not was_ready:
            self._ready(next(iter(self._urls.values())))

    @property
    def _is_ready(self) -> bool:
        return len(self._urls) == len(self._processes)

    def _pass_on(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM:
            self._stopping = True
        for process in self._processes:
            if process.pid:
                os.kill(process.pid, number)

    def _reap(self) -> None:
        for process in self._processes:
            if not process.pid:
                continue
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if not pid:
                continue
            self._take_announcements()
            code = os.waitstatus_to_exitcode(status)
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            wait_s = process.ended(time.monotonic())
            if self._stopping:
                self._code = self._code or abs(code)
            elif not self._is_ready:
                log.error("server process %d (%d) ended %s before it was ready", process.number, pid, how)
                self._code = abs(code) or 1
                self._pass_on(signal.SIGTERM)
            else:
                log.error("server process %d (%d) ended %s; it starts again in %g s", process.number, pid, how, wait_s)


def has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
