"""Which addresses the server connects to for URLs that clients gave; no I/O.

Of IPv4 the blocks of a table are refused: those in the IANA registry of special-purpose addresses, multicast, and
public addresses at which clouds serve their metadata. Of IPv6 only global unicast (2000::/3) is called, without the
blocks of a second table, and NAT64 addresses (64:ff9b::/96) of public IPv4 addresses, which an IPv6-only network needs.
IPv4-mapped, IPv4-compatible, 6to4 and Teredo addresses embed an IPv4 address and are refused whatever it is: no public
server is reached by one.

The tables are ours and not those of `ipaddress`, which differ between releases of Python; a test compares the two.

Loopback is refused like the rest. In development mode it is reached under its own names only: a loopback address or
`localhost`. Another name that resolves to loopback is refused in development mode too, since whoever owns the name
chose the address.
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
_ISATAP = (0x00005EFE, 0x02005EFE)  # the third quarter of such an address; the fourth is an IPv4 address


def refusal(address: Address) -> str | None:
    """Why the server does not call this address; None if it does."""
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
    """Whether it is 127.0.0.0/8 or ::1 itself, not an address that embeds one."""
    return address == IPv6Address("::1") or (isinstance(address, IPv4Address) and address.is_loopback)


def literal(host: str) -> Address | None:
    """The address that a host is, None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def names_loopback(host: str) -> bool:
    """Whether a host says by itself that it is this machine."""
    address = literal(host)
    return host == "localhost" or host.endswith(".localhost") if address is None else is_loopback(address)


def check_addresses(host: str, addresses: Iterable[Address], *, development: bool) -> None:
    """Refuse a host if any of its addresses is not to be called."""
    local = development and names_loopback(host)
    for address in addresses:
        reason = refusal(address)
        if local:
            reason = None if is_loopback(address) else "not a loopback address"
        if reason is not None:
            where = "" if host == str(address) else f"{host} resolves to "
            raise TargetRefusedError(f"{where}{address}, which is {reason}")
