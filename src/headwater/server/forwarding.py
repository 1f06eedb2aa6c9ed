"""Forwarding headers of proxies: the address of the client, and the scheme and host that it used.

Anyone can send these headers, so they count only if the request comes from an address that the operator trusts. If a
header lists several proxies, the last entry counts, which the trusted proxy has added. The client is the last address
that is not a trusted proxy.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable

from headwater.limits import ADDRESSES_CACHED_MAX, FORWARDED_MAX
from headwater.server.http import Request

_SCHEMES = ("http", "https")
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?")


class TrustedProxies:
    def __init__(self, addresses: Iterable[str] = ()) -> None:
        """`addresses` are IP addresses or networks, as `10.0.0.0/8`; ValueError for anything else."""
        self._networks = tuple([_parse_network(address.strip()) for address in addresses])

    def __bool__(self) -> bool:
        return bool(self._networks)

    def apply(self, request: Request) -> None:
        """Set the scheme, the authority and the client's address of a request that comes from a trusted proxy."""
        if not self.trusts(request.peer):
            return
        given = request.headers
        forwarded = _pairs(given.get("forwarded", ""))
        scheme = (forwarded.get("proto") or _last(given.get("x-forwarded-proto", ""))).lower()
        authority = forwarded.get("host") or _last(given.get("x-forwarded-host", ""))
        if scheme in _SCHEMES:
            request.scheme = scheme
        if _AUTHORITY.fullmatch(authority):
            request.authority = authority
        request.peer = self._client(given) or request.peer

    def _client(self, given: dict[str, str]) -> str:
        """The address of the client; empty if it is missing or invalid."""
        if "forwarded" in given:
            named = [_pairs(element).get("for", "") for element in given["forwarded"].split(",")]
        else:
            named = given.get("x-forwarded-for", "").split(",")
        for name in reversed(named[-FORWARDED_MAX:]):
            address = _node_address(name)
            if not self.trusts(address):
                return address
        return ""

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


def _last(value: str) -> str:
    return value.rpartition(",")[2].strip()


def _pairs(value: str) -> dict[str, str]:
    """The last element of a Forwarded header (RFC 7239)."""
    found = {}
    for pair in _last(value).split(";"):
        name, _, text = pair.partition("=")
        found[name.strip().lower()] = text.strip().strip('"')
    return found
