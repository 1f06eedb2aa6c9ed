"""Allowed addresses: examples, and a comparison with the tables of the standard library."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import TargetRefusedError
from headwater.outbound.addresses import check_addresses, names_loopback, refusal

CALLED = (
    *("1.1.1.1", "9.255.255.255", "11.0.0.0", "93.184.216.34", "100.63.255.255", "100.128.0.0", "168.63.129.17"),
    *("172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "223.255.255.255"),
    *("2001:4860:4860::8888", "2606:2800:220:1:248:1893:25c8:1946", "2a00:1450::1", "64:ff9b::5db8:d822"),
)
REFUSED = {
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "10.0.0.1": "private",
    "100.64.0.1": "shared",
    "100.127.255.255": "shared",
    "100.100.100.200": "metadata",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "168.63.129.16": "metadata",
    "169.254.0.1": "link-local",
    "169.254.169.254": "metadata",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.0.0.192": "metadata",
    "192.0.2.1": "documentation",
    "192.88.99.1": "6to4",
    "192.168.1.1": "private",
    "198.18.0.1": "benchmarks",
    "198.51.100.1": "documentation",
    "203.0.113.1": "documentation",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "::1": "loopback",
    "::2": "IPv4-compatible",
    "::127.0.0.1": "IPv4-compatible",
    "::ffff:127.0.0.1": "IPv4-mapped",
    "::ffff:93.184.216.34": "IPv4-mapped",
    "::ffff:0:127.0.0.1": "IPv4-translated",
    "64:ff9b::127.0.0.1": "NAT64 address of 127.0.0.1",
    "64:ff9b::169.254.169.254": "NAT64 address of 169.254.169.254",
    "64:ff9b:1::1": "NAT64",
    "100::1": "reserved",
    "2001::1": "Teredo",
    "2001:0:7f00:1::": "Teredo",
    "2001:2::1": "protocols",
    "2001:20::1": "protocols",
    "2001:db8::1": "documentation",
    "2002:7f00:1::": "6to4",
    "2002:5db8:d822::1": "6to4",
    "2606::5efe:127.0.0.1": "ISATAP address of 127.0.0.1",
    "2606::200:5efe:10.0.0.1": "ISATAP address of 10.0.0.1",
    "3fff::1": "documentation",
    "4000::1": "reserved",
    "5f00::1": "reserved",
    "fc00::1": "private",
    "fd00:ec2::254": "metadata",
    "fd20:ce::254": "metadata",
    "fd12:3456::1": "private",
    "fe80::1": "link-local",
    "fe80::1%eth0": "zone",
    "fec0::1": "private",
    "ff02::1": "multicast",
}


@pytest.mark.parametrize("address", CALLED)
def test_public_addresses_are_allowed(address: str) -> None:
    assert refusal(ip_address(address)) is None


@pytest.mark.parametrize(("address", "why"), REFUSED.items())
def test_other_addresses_are_refused(address: str, why: str) -> None:
    assert why in (refusal(ip_address(address)) or "called")


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_addresses_that_ipaddress_calls_special_are_refused(address: IPv4Address | IPv6Address) -> None:
    special = not address.is_global or address.is_multicast or address.is_reserved
    if special and not str(address).startswith("64:ff9b::"):
        assert refusal(address) is not None


@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_refused_if_it_is_refused_itself(inner: IPv4Address) -> None:
    low = int(inner)
    for prefix in (0, 0xFFFF << 32, 0xFFFF << 48, 0x2002 << 112 | low << 80, 0x2001 << 112 | low << 64):
        assert refusal(IPv6Address(prefix | low)) is not None
    nat64 = IPv6Address((0x64FF9B << 96) | low)
    assert (refusal(nat64) is None) == (refusal(inner) is None)


def test_one_bad_address_refuses_a_name() -> None:
    good, bad = ip_address("93.184.216.34"), ip_address("10.0.0.1")
    check_addresses("a.example", [good], development=False)
    with pytest.raises(TargetRefusedError, match=r"a\.example resolves to 10\.0\.0\.1, which is a private address"):
        check_addresses("a.example", [good, bad], development=False)


def test_development_mode_allows_loopback_by_its_own_names_only() -> None:
    loopback, other = [ip_address("127.0.0.1"), ip_address("::1")], [ip_address("93.184.216.34")]
    for host in ("localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"):
        assert names_loopback(host)
        check_addresses(host, loopback, development=True)
        with pytest.raises(TargetRefusedError, match="loopback"):
            check_addresses(host, loopback, development=False)
        with pytest.raises(TargetRefusedError, match="not a loopback address"):
            check_addresses(host, other, development=True)
    for host in ("a.example", "localhost.example", "notlocalhost"):
        assert not names_loopback(host)
        with pytest.raises(TargetRefusedError, match="loopback"):
            check_addresses(host, loopback, development=True)
    assert not names_loopback("::ffff:127.0.0.1")
