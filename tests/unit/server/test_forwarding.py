from __future__ import annotations

import pytest

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
        ({"x-forwarded-for": ", ".join(["10.0.0.9"] * 1_000)}, "10.0.0.1"),
        ({}, "10.0.0.1"),
    ],
)
def test_the_client_of_a_trusted_proxy(headers: dict[str, str], address: str) -> None:
    assert client(headers) == address


def test_others_cannot_name_an_address() -> None:
    assert client({"x-forwarded-for": "1.2.3.4", "forwarded": "for=1.2.3.4"}, peer="8.8.8.8") == "8.8.8.8"


def test_what_addresses_count_as() -> None:
    assert counted_address("1.2.3.4") == "1.2.3.4"
    assert counted_address("::ffff:1.2.3.4") == "1.2.3.4"
    assert counted_address("2001:db8:1:2:3:4:5:6") == counted_address("2001:db8:1:2::") == "2001:db8:1:2::/64"
    assert counted_address("") == ""
