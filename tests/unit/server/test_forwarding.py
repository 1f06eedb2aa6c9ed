from __future__ import annotations

import contextlib

import pytest

from headwater.errors import HostNotAllowedError, InvalidHeaderError
from headwater.server.access import Access
from headwater.server.forwarding import TrustedProxies, counted_address
from headwater.server.http import Request


def client(headers: dict[str, str], peer: str = "10.0.0.1") -> str:
    request = Request("GET", "/", "", headers, b"", peer=peer)
    TrustedProxies(["10.0.0.0/8", "fd00::/8"]).apply(request)
    return request.peer


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({"x-forwarded-for": "6.6.6.6, 1.2.3.4"}, "1.2.3.4"),
        ({"x-forwarded-for": "1.2.3.4, 10.0.0.7, 10.0.0.8"}, "1.2.3.4"),
        ({"x-forwarded-for": "1.2.3.4:5678"}, "1.2.3.4"),
        ({"forwarded": 'for=6.6.6.6, for="[2001:db8::7]:99";proto=https'}, "2001:db8::7"),
        ({"forwarded": "for=1.2.3.4, for=unknown"}, "10.0.0.1"),
        ({"x-forwarded-for": "nonsense"}, "10.0.0.1"),
        ({"x-forwarded-for": ", ".join(["10.0.0.9"] * 1_000)}, "10.0.0.9"),
        ({"x-forwarded-for": "1.2.3.4, nonsense, 10.0.0.7"}, "10.0.0.7"),
        ({"forwarded": 'for="6.6.6.6, for=1.2.3.4'}, "1.2.3.4"),
        ({"forwarded": 'for=6.6.6.6;host=", for="[2001:db8::7]"'}, "2001:db8::7"),
        ({"forwarded": 'for=6.6.6.6, for=1.2.3.4;host="a,b"'}, "1.2.3.4"),
        ({"forwarded": "for=1.2.3.4, for=10.0.0.7;by=10.0.0.8, For=10.0.0.9"}, "1.2.3.4"),
        ({"forwarded": "for=6.6.6.6, ;;for"}, "10.0.0.1"),
        ({}, "10.0.0.1"),
    ],
)
def test_the_client_of_a_trusted_proxy(headers: dict[str, str], address: str) -> None:
    assert client(headers) == address


@pytest.mark.parametrize(
    "others",
    [
        {"forwarded": "for=6.6.6.6"},
        {"forwarded": "for=1.2.3.4;host=evil.example"},
        {"forwarded": "for=1.2.3.4;proto=http"},
        {"forwarded": ""},
        {"forwarded": 'for="'},
    ],
)
def test_a_client_cannot_add_the_headers_of_the_other_family(others: dict[str, str]) -> None:
    by_proxy = {"x-forwarded-for": "1.2.3.4", "x-forwarded-proto": "https", "x-forwarded-host": "streams.example"}
    request = Request("GET", "/", "", {**by_proxy, **others}, b"", peer="10.0.0.1")
    with pytest.raises(InvalidHeaderError, match="forwarding-headers"):
        TrustedProxies(["10.0.0.1"]).apply(request)
    assert (request.peer, request.scheme, request.authority) == ("10.0.0.1", "http", "")
    TrustedProxies(["10.0.0.1"], "x-forwarded").apply(request)
    assert (request.peer, request.scheme, request.authority) == ("1.2.3.4", "https", "streams.example")


def test_families_that_agree() -> None:
    headers = {"x-forwarded-for": "1.2.3.4", "x-forwarded-proto": "https", "x-forwarded-host": "streams.example"}
    headers["forwarded"] = "for=1.2.3.4;proto=https;host=streams.example"
    assert client(headers) == "1.2.3.4"


def test_the_family_that_is_configured_counts(caplog: pytest.LogCaptureFixture) -> None:
    request_headers = {"x-forwarded-for": "6.6.6.6", "x-forwarded-host": "evil.example", "forwarded": "for=1.2.3.4"}
    proxies = TrustedProxies(["10.0.0.1"], "forwarded")
    for headers, address in ((request_headers, "1.2.3.4"), ({"x-forwarded-for": "6.6.6.6"}, "10.0.0.1")):
        request = Request("GET", "/", "", headers, b"", peer="10.0.0.1")
        for _ in range(2):
            proxies.apply(request)
        assert (request.peer, request.authority) == (address, "")
    assert len(caplog.records) == 1
    assert "forwarding_headers is forwarded" in caplog.text


def test_scheme_and_host_are_those_that_the_proxy_next_to_the_client_saw() -> None:
    forwarded = "for=6.6.6.6;host=evil.example, for=1.2.3.4;host=streams.example;proto=https, for=10.0.0.7;host=inner"
    request = Request("GET", "/", "", {"forwarded": forwarded}, b"", peer="10.0.0.1")
    TrustedProxies(["10.0.0.0/8"]).apply(request)
    assert (request.peer, request.scheme, request.authority) == ("1.2.3.4", "https", "streams.example")


def test_a_forwarded_host_must_be_allowed() -> None:
    access = Access(hosts=["streams.example"], proxies=TrustedProxies(["10.0.0.1"]))
    for host, allowed in (("streams.example", True), ("evil.example", False)):
        headers = {"host": "streams.example", "x-forwarded-host": host}
        with contextlib.nullcontext() if allowed else pytest.raises(HostNotAllowedError):
            access.check(Request("GET", "/", "", headers, b"", peer="10.0.0.1"))


def test_others_cannot_name_an_address() -> None:
    assert client({"x-forwarded-for": "1.2.3.4", "forwarded": "for=1.2.3.4"}, peer="8.8.8.8") == "8.8.8.8"


def test_what_addresses_count_as() -> None:
    assert counted_address("1.2.3.4") == "1.2.3.4"
    assert counted_address("::ffff:1.2.3.4") == "1.2.3.4"
    assert counted_address("2001:db8:1:2:3:4:5:6") == counted_address("2001:db8:1:2::") == "2001:db8:1:2::/64"
    assert counted_address("") == ""
