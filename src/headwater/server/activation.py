"""Sockets that systemd opened for the server (`sd_listen_fds(3)`).

systemd keeps such a socket while the server restarts. Connections wait in its queue and are accepted by the next
process, so a restart refuses none.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from headwater.errors import OptionError
from headwater.server.access import is_loopback

_FIRST_DESCRIPTOR = 3
_PID, _COUNT, _NAMES = "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"


def inherited_sockets(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """The sockets that were passed to this process, if any. Its children do not get them."""
    variables = {name: environment.pop(name, "") for name in (_PID, _COUNT, _NAMES)}
    if variables[_PID] != str(os.getpid()):  # also if they were passed to a parent of this process
        return []
    try:
        count = int(variables[_COUNT])
    except ValueError:
        raise OptionError(f"{_COUNT} is a number of sockets, got {variables[_COUNT]!r}") from None
    return [_opened(descriptor) for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + count)]


def _opened(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError as error:
        raise OptionError(f"the descriptor {descriptor}, which {_COUNT} names, is not a socket: {error}") from None
    if not listens or listener.type != socket.SOCK_STREAM or listener.family not in (socket.AF_INET, socket.AF_INET6):
        raise OptionError(
            f"the descriptor {descriptor}, which {_COUNT} names, is not a TCP socket that listens; "
            "give ListenStream= an address and a port"
        )
    return listener


def address_of(sockets: list[socket.socket]) -> tuple[str, int]:
    """The host and port of the sockets. Of several, that of one which other machines can reach."""
    addresses = [listener.getsockname()[:2] for listener in sockets]
    host, port = next((address for address in addresses if not is_loopback(address[0])), addresses[0])
    return str(host), int(port)
