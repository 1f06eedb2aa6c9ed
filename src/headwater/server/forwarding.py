"""What a proxy says of a request that it passes on: the scheme and the host that its client used.

Anyone can send these headers, so they count only if the request comes from an address that the operator trusts. Where a
header lists several proxies, the last entry counts: it is what the trusted one added.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from headwater.server.http import Request

_SCHEMES = ("http", "https")
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]{1,5})?")


class TrustedProxies:
    def __init__(self, addresses: Iterable[str] = ()) -> None:
        """`addresses` are IP addresses or networks, as `10.0.0.0/8`; ValueError for anything else."""
        self._networks = tuple([ipaddress.ip_network(address.strip(), strict=False) for address in addresses])

    def __bool__(self) -> bool:
        return bool(self._networks)

    def apply(self, request: Request) -> None:
        """Set the scheme and the authority of a request that comes from a trusted proxy."""
        if not self._trusts(request.peer):
            return
        given = request.headers
        forwarded = _pairs(given.get("forwarded", ""))
        scheme = (forwarded.get("proto") or _last(given.get("x-forwarded-proto", ""))).lower()
        authority = forwarded.get("host") or _last(given.get("x-forwarded-host", ""))
        if scheme in _SCHEMES:
            request.scheme = scheme
        if _AUTHORITY.fullmatch(authority):
            request.authority = authority

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _last(value: str) -> str:
    return value.rpartition(",")[2].strip()


def _pairs(value: str) -> dict[str, str]:
    """The last element of a Forwarded header (RFC 7239)."""
    found = {}
    for pair in _last(value).split(";"):
        name, _, text = pair.partition("=")
        found[name.strip().lower()] = text.strip().strip('"')
    return found
