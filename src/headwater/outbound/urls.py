"""Strict parsing of URLs that clients supply. No I/O.

If two parsers read a URL differently, a check can pass for one host while the request goes to another. So a URL is
parsed only here, everything that parsers are known to disagree on is refused, and the request is built from the parts
in `CheckedUrl`.

    scheme    https. http in development mode, to loopback
    userinfo  refused
    host      a DNS name, an IPv4 address of four decimal numbers, or an IPv6 address in brackets without a zone. Names
              that are not ASCII are encoded by IDNA 2008 without mapping, so digits and dots of other scripts are
              refused
    port      443, 80, or 1024 and above except PORTS_REFUSED
    path      ASCII, percent-encoded, without `.` and `..`, so that URLs can be compared by prefix
    fragment  refused
"""

from __future__ import annotations

import re
import unicodedata
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NoReturn

import idna
import msgspec

from headwater.errors import TargetRefusedError
from headwater.limits import OUTBOUND_URL_BYTES_MAX
from headwater.outbound.addresses import Address, check_addresses, literal, names_loopback

# Ports below 1024 belong to system services such as SSH, SMTP, LDAP and SMB. These are the ports above 1024 that
# browsers refuse (Fetch, "bad port"), and those of Redis and memcached, which would execute lines of a request.
PORTS_REFUSED = frozenset(
    (
        *(1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669),
        *(6679, 6697, 10080, 6379, 11211),
    )
)
_PORTS = {"https": 443, "http": 80}
_UNPRIVILEGED_PORT = 1024

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)(/[^?]*)?(\?.*)?")
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]|-]|%[0-9A-Fa-f]{2})*")
_AUTHORITY = re.compile(r"(\[[^]]*\]|[^]\[:]*)(?::(.*))?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_IPV6 = re.compile(r"[0-9a-f:.]+")
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAME_LENGTH_MAX = 253


class CheckedUrl(msgspec.Struct, frozen=True):
    """The target of a request: the parts of a checked URL."""

    scheme: str
    host: str  # a name in lower case without a trailing dot, or an address without brackets
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The URL for messages and logs, without the query, which may contain a secret."""
        return f"{self.scheme}://{self.authority}{self.path.partition('?')[0]}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_target(url: str, *, development: bool = False) -> CheckedUrl:
    """Parse and check a URL. The addresses of a name are checked when the client connects."""
    _check_characters(url)
    match = _URL.fullmatch(url)
    if match is None:
        _refuse("it must be absolute, as in https://host/path")
    scheme, authority, path, query = match[1].lower(), match[2], match[3] or "/", match[4] or ""
    if scheme not in _PORTS or (scheme == "http" and not development):
        _refuse(f"its scheme is {scheme[:20]}; only https is allowed")
    host, port = _parse_authority(authority)
    if scheme == "http" and not names_loopback(host):
        _refuse("its scheme is http, which is allowed for localhost only")
    _check_host(host, development)
    _check_path(path, query)
    return CheckedUrl(scheme, host, _parse_port(port, scheme), path + query)


def _refuse(reason: str) -> NoReturn:
    # The message does not contain the URL, which may have a password or control characters.
    raise TargetRefusedError(f"the URL is refused: {reason}")


def _check_characters(url: str) -> None:
    if len(url.encode("utf-8", "surrogatepass")) > OUTBOUND_URL_BYTES_MAX:
        _refuse(f"it is longer than {OUTBOUND_URL_BYTES_MAX} bytes")
    for character in url:
        # Control, format (zero-width, bidirectional), surrogate, private, unassigned; every kind of space.
        if unicodedata.category(character)[0] in "CZ":
            _refuse(f"it contains the character U+{ord(character):04X}")
    if "\\" in url:
        _refuse("it contains a backslash")
    if "#" in url:
        _refuse("it has a fragment")


def _parse_authority(authority: str) -> tuple[str, str | None]:
    if "@" in authority:
        _refuse("it contains a user name or a password")
    if "%" in authority:
        _refuse("its host is percent-encoded or has a zone")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        _refuse("its host or port is invalid")
    host = match[1]
    return (_parse_ipv6(host[1:-1]) if host.startswith("[") else _parse_name(host)), match[2]


def _parse_ipv6(text: str) -> str:
    if not _IPV6.fullmatch(text.lower()):
        _refuse("the address in brackets is not an IPv6 address")
    try:
        return str(IPv6Address(text))
    except AddressValueError:
        _refuse("the address in brackets is not an IPv6 address")


def _parse_name(text: str) -> str:
    name = "".join(c.lower() if c.isascii() else c for c in text)
    if _NUMBER.fullmatch(name.removesuffix(".").rpartition(".")[2]):
        return _parse_ipv4(name)
    name = name.removesuffix(".")
    if not name.isascii() or "xn--" in name:
        try:
            name = idna.encode(name, strict=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            _refuse("its host is not a valid international name; write it in lower case, or as xn--")
    if len(name) > _NAME_LENGTH_MAX or not all(map(_LABEL.fullmatch, name.split("."))):
        _refuse("its host is not a DNS name")
    return name


def _parse_ipv4(text: str) -> str:
    """Parse a host whose last label is a number. Parsers disagree on short, octal and hexadecimal IPv4 addresses."""
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        _refuse("an IPv4 address is four decimal numbers without leading zeros")


def _check_host(host: str, development: bool) -> None:
    address: Address | None = literal(host)
    if address is not None:
        check_addresses(host, (address,), development=development)
    elif names_loopback(host) and not development:
        raise TargetRefusedError(f"{host} is a loopback name")


def _parse_port(text: str | None, scheme: str) -> int:
    if text is None:
        return _PORTS[scheme]
    port = int(text) if _PORT.fullmatch(text) else 0
    if not 0 < port < 65_536:
        _refuse("its port is not a number from 1 to 65535")
    if (port < _UNPRIVILEGED_PORT and port not in _PORTS.values()) or port in PORTS_REFUSED:
        _refuse(f"port {port} is reserved for another service")
    return port


def _check_path(path: str, query: str) -> None:
    if not _PATH.fullmatch(path + query):
        _refuse("its path or query has characters that must be percent-encoded")
    if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in path.split("/")):
        _refuse("its path has . or .. segments")
