"""The addresses that the guarded client may connect to. No I/O.

IPv4: a table lists the blocks that are refused. These are the IANA special-purpose blocks, multicast, and public
addresses of cloud metadata services. IPv6: only global unicast (2000::/3) is allowed, except for the blocks of a second
table, and NAT64 addresses (64:ff9b::/96) of public IPv4 addresses, which IPv6-only networks need. IPv4-mapped,
IPv4-compatible, 6to4 and Teredo addresses, which embed an IPv4 address, are always refused; public servers do not use
them.

The tables are not those of the `ipaddress` module, which differ between Python versions. A test compares the two.

Loopback is refused. In development mode it is allowed if the URL says so: by a loopback address or `localhost`. Another
name that resolves to loopback is still refused, because the owner of the name chose the address.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from headwater.errors import TargetRefusedError

Address = IPv4Address | IPv6Address

_LOOPBACK = "a loopback address"
_METADATA = "an address of a cloud's metadata service"

_REFUSED_V4 = tuple(
    (IPv4Network(block), what)
    for block, what in (
        ("168.63.129.16/32", _METADATA),  # Azure
        ("169.254.169.254/32", _METADATA),
        ("100.100.100.200/32", _METADATA),  # Alibaba
        ("192.0.0.192/32", _METADATA),  # Oracle
        ("0.0.0.0/8", "an unspecified address"),
        ("10.0.0.0/8", "a private address"),
        ("100.64.0.0/10", "a shared address of a provider's network"),
        ("127.0.0.0/8", _LOOPBACK),
        ("169.254.0.0/16", "a link-local address"),
        ("172.16.0.0/12", "a private address"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "reserved for documentation"),
        ("192.31.196.0/24", "reserved for AS112"),
        ("192.52.193.0/24", "reserved for AMT"),
        ("192.88.99.0/24", "reserved for 6to4 relays"),
        ("192.168.0.0/16", "a private address"),
        ("192.175.48.0/24", "reserved for AS112"),
        ("198.18.0.0/15", "reserved for benchmarks"),
        ("198.51.100.0/24", "reserved for documentation"),
        ("203.0.113.0/24", "reserved for documentation"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
    )
)

_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    (IPv6Network(block), what)
    for block, what in (
        ("::1/128", _LOOPBACK),
        ("::/128", "an unspecified address"),
        ("::/96", "an IPv4-compatible address"),
        ("::ffff:0:0/96", "an IPv4-mapped address"),
        ("::ffff:0:0:0/96", "an IPv4-translated address"),
        ("64:ff9b:1::/48", "a NAT64 address of a private network"),
        ("2001::/32", "a Teredo address"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "reserved for documentation"),
        ("2002::/16", "a 6to4 address"),
        ("2620:4f:8000::/48", "reserved for AS112"),
        ("3fff::/20", "reserved for documentation"),
        ("fd00:ec2::254/128", _METADATA),  # AWS
        ("fd20:ce::254/128", _METADATA),  # Google
        ("fc00::/7", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("fec0::/10", "a private address"),
        ("ff00::/8", "a multicast address"),
    )
)
_ISATAP = (0x00005EFE, 0x02005EFE)  # the third 32 bits of the address; the last 32 bits are an IPv4 address


def refusal(address: Address) -> str | None:
    """Why an address is refused; None if it is allowed."""
    if isinstance(address, IPv4Address):
        return next((what for block, what in _REFUSED_V4 if address in block), None)
    if address.scope_id is not None:
        return "an address with a zone"
    if address in _NAT64:
        return _embedded(address, "a NAT64 address")
    for block, what in _REFUSED_V6:
        if address in block:
            return what
    if address not in _GLOBAL_UNICAST:
        return "a reserved address"
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        return _embedded(address, "an ISATAP address")
    return None


def _embedded(address: IPv6Address, kind: str) -> str | None:
    inner = IPv4Address(int(address) & 0xFFFFFFFF)
    reason = refusal(inner)
    return None if reason is None else f"{kind} of {inner}, {reason}"


def is_loopback(address: Address) -> bool:
    """Whether an address is in 127.0.0.0/8 or is ::1. Embedded IPv4 addresses do not count."""
    return address == IPv6Address("::1") or (isinstance(address, IPv4Address) and address.is_loopback)


def literal(host: str) -> Address | None:
    """Parse a host as an address; None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def names_loopback(host: str) -> bool:
    """Whether a host is a loopback address or a name of loopback."""
    address = literal(host)
    return host == "localhost" or host.endswith(".localhost") if address is None else is_loopback(address)


def check_addresses(host: str, addresses: Iterable[Address], *, development: bool) -> None:
    """Refuse a host if any of its addresses is refused."""
    local = development and names_loopback(host)
    for address in addresses:
        reason = refusal(address)
        if local:
            reason = None if is_loopback(address) else "not a loopback address"
        if reason is not None:
            where = "" if host == str(address) else f"{host} resolves to "
            raise TargetRefusedError(f"{where}{address}, which is {reason}")
