"""Forwarding headers of proxies: the address of the client, and the scheme and host that it used.

Anyone can send these headers, so only what a trusted proxy has added counts:

    peer      the headers of a request count only if its connection comes from a trusted proxy
    order     a proxy appends to a list, so lists are read from the right, as long as the entries name trusted proxies
    family    a proxy sets `Forwarded` or the `X-Forwarded-` headers, and passes on what the client sent as the other.
              The operator can name the family (`--forwarding-headers`); otherwise a request with both, which disagree,
              is refused

The scheme and the host are those that the trusted proxy next to the client saw.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias, get_args

from headwater.errors import InvalidHeaderError
from headwater.limits import ADDRESSES_CACHED_MAX, FORWARDED_MAX
from headwater.server.http import Request

log = logging.getLogger("headwater.server")

Family: TypeAlias = Literal["x-forwarded", "forwarded"]
FAMILIES: tuple[Family, ...] = get_args(Family)
_NAMES: dict[Family, tuple[str, ...]] = {
    "x-forwarded": ("x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"),
    "forwarded": ("forwarded",),
}

_SCHEMES = ("http", "https")
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?")
_PAIR = r"""[!#$%&'*+.^_`|~0-9A-Za-z-]+=(?:"[^"\\]*"|[^",;\s]*)"""
_ELEMENT = re.compile(rf"[ \t]*{_PAIR}[ \t]*(?:;[ \t]*(?:{_PAIR}[ \t]*)?)*")


class Forwarded(NamedTuple):
    """What trusted proxies say of a request. Empty fields are missing or invalid."""

    address: str = ""
    scheme: str = ""
    authority: str = ""


class TrustedProxies:
    def __init__(self, addresses: Iterable[str] = (), family: Family | None = None) -> None:
        """`addresses` are IP addresses or networks, as `10.0.0.0/8`; ValueError for anything else. `family` is that of
        the headers that the proxies set; None: the one that a request has."""
        self._networks = tuple([_parse_network(address.strip()) for address in addresses])
        self._family = family
        self._readers: dict[Family, Callable[[dict[str, str]], Forwarded]] = {
            "x-forwarded": self._by_x_forwarded,
            "forwarded": self._by_forwarded,
        }
        self._warned = False  # that the proxies set the other family

    def __bool__(self) -> bool:
        return bool(self._networks)

    def apply(self, request: Request) -> None:
        """Set the scheme, the authority and the client's address of a request that comes from a trusted proxy.
        InvalidHeaderError if it is not clear which headers the proxy has set."""
        if not self.trusts(request.peer):
            return
        forwarded = self._read(request.headers)
        request.scheme = forwarded.scheme or request.scheme
        request.authority = forwarded.authority or request.authority
        request.peer = forwarded.address or request.peer

    def _read(self, headers: dict[str, str]) -> Forwarded:
        families = [family for family in FAMILIES if any(name in headers for name in _NAMES[family])]
        if self._family is not None:
            if families and self._family not in families and not self._warned:
                self._warned = True
                log.warning(
                    "a trusted proxy sends %s headers, which are ignored because forwarding_headers is %s; its "
                    "requests count for its own address",
                    families[0],
                    self._family,
                )
            families = [self._family]
        readings = {self._readers[family](headers) for family in families}
        if len(readings) > 1:
            raise InvalidHeaderError(
                "the request has Forwarded and X-Forwarded- headers, which disagree; one of them comes from the "
                "client. Let the proxy remove the one that it does not set, or name the other: --forwarding-headers"
            )
        return readings.pop() if readings else Forwarded()

    def _by_x_forwarded(self, headers: dict[str, str]) -> Forwarded:
        named = headers.get("x-forwarded-for", "").rsplit(",", FORWARDED_MAX)[-FORWARDED_MAX:]
        address = ""
        for name in reversed(named):
            node = _node_address(name)
            address = node or address
            if not self.trusts(node):
                break
        scheme, authority = _last(headers.get("x-forwarded-proto", "")), _last(headers.get("x-forwarded-host", ""))
        return _checked(address, scheme, authority)

    def _by_forwarded(self, headers: dict[str, str]) -> Forwarded:
        """The element that the trusted proxy next to the client has added."""
        address, pairs = "", dict[str, str]()
        for element in _elements(headers.get("forwarded", "")):
            pairs = _pairs(element)
            node = _node_address(pairs.get("for", ""))
            address = node or address
            if not self.trusts(node):
                break
        return _checked(address, pairs.get("proto", ""), pairs.get("host", ""))

    def trusts(self, peer: str) -> bool:
        address = _parse(peer)
        return address is not None and any(address in network for network in self._networks)


@functools.lru_cache(ADDRESSES_CACHED_MAX)
def counted_address(peer: str) -> str:
    """The key under which an address is counted. IPv6 addresses count as their /64 network, which one client owns."""
    address = _parse(peer)
    if address is None or address.version == 4:
        return peer if address is None else str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def _parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Parse an address or a network. A network with bits of a host could be meant as one address or as the network."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"expected an address or a network, as 127.0.0.1 or 10.0.0.0/8, got {text[:80]!r}") from None
    address = text.partition("/")[0]
    if ipaddress.ip_address(address) != network.network_address:
        raise ValueError(f"{text} is not a network; give {network} for the network, or {address} for the one address")
    return network


def _parse(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _node_address(name: str) -> str:
    """The address of a node as proxies write it: with or without a port, an IPv6 one in brackets."""
    name = name.strip()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    return "" if _parse(name) is None else name


def _checked(address: str, scheme: str, authority: str) -> Forwarded:
    scheme = scheme.lower()
    return Forwarded(
        address, scheme if scheme in _SCHEMES else "", authority if _AUTHORITY.fullmatch(authority) else ""
    )


def _last(value: str) -> str:
    return value.rpartition(",")[2].strip()


def _elements(value: str) -> Iterator[str]:
    """The elements of a Forwarded header (RFC 7239), the last one first, up to one that is invalid.

    An element is the shortest end of the text that is well-formed, so that an open quote of the client cannot swallow
    what a proxy has appended to it.
    """
    left = value.rsplit(",", FORWARDED_MAX)[-FORWARDED_MAX:]
    while left:
        element = left.pop()
        while not _ELEMENT.fullmatch(element) and left:  # a comma within quotes
            element = f"{left.pop()},{element}"
        if not _ELEMENT.fullmatch(element):
            return
        yield element


def _pairs(element: str) -> dict[str, str]:
    pairs = {}
    for pair in re.findall(_PAIR, element):
        name, _, text = pair.partition("=")
        pairs[name.lower()] = text.strip('"')
    return pairs
