"""Hostile URLs are refused without a connection, and valid ones are parsed."""

from __future__ import annotations

import asyncio

import httpcore
import pytest

from headwater.errors import TargetRefusedError
from headwater.limits import OUTBOUND_URL_BYTES_MAX
from headwater.outbound import open_outbound, parse_target
from tests.unit.outbound.rig import PUBLIC, Names, trusting

# Refused as text, in development mode too.
MALFORMED = (
    # other schemes, and no scheme
    *("ftp://tables.example/", "file:///etc/passwd", "gopher://tables.example:70/_x", "ws://tables.example/"),
    *(
        "data:text/plain,x",
        "javascript:alert(1)",
        "dict://tables.example/",
        "unix:///run/docker.sock",
        "jar:https://a/",
    ),
    *("http://tables.example/", "HTTP://tables.example/", "http://93.184.216.34/", "https:tables.example"),
    *("//tables.example/", "/v1/table/a", "tables.example", "https:/tables.example/", "https:///tables.example", ""),
    *("https://", "https:///", "https://:443/", "https://?a", "https//tables.example", " https://tables.example/"),
    # userinfo
    *("https://user@tables.example/", "https://user:secret@tables.example/", "https://@tables.example/"),
    *("https://tables.example@127.0.0.1/", "https://tables.example:443@127.0.0.1/", "https://:@tables.example/"),
    *("https://127.0.0.1%2f@tables.example/", "https://a@b@tables.example/"),
    # IPv4 in forms that parsers read differently
    *("https://2130706433/", "https://0x7f000001/", "https://017700000001/", "https://0177.0.0.1/", "https://0x7f.1/"),
    *("https://127.1/", "https://127.0.1/", "https://0/", "https://0x0/", "https://127.0.0.01/", "https://127.0.0.1./"),
    *(
        "https://256.1.1.1/",
        "https://1.2.3.4.5/",
        "https://0x7f.0.0.0x1/",
        "https://1.1.1.0x/",
        "https://93.184.216.34./",
    ),
    *("https://4294967297/", "https://093.184.216.34/", "https://example.1/", "https://0X7F.0.0.1/"),
    # digits, dots and letters of other scripts
    *(
        "https://１２７.０.０.１/",
        "https://127。0。0。1/",
        "https://127．0．0．1/",
        "https://127｡0｡0｡1/",
        "https://①②⑦.⓪.⓪.①/",
    ),
    *(
        "https://tables。example/",
        "https://ｔａｂｌｅｓ.example/",
        "https://loc\u00adalhost/",
        "https://tables\u200b.example/",
    ),
    *("https://bÜcher.example/", "https://\u212aelvin.example/", "https://xn--a.example/", "https://xn--.example/"),
    *(
        "https://tables.example\u2044path/",
        "https://a\u2100b.example/",
        "https://tables\u2024example/",
        "https://١٢٧.0.0.1/",
    ),
    # percent-encoding in the host
    *(
        "https://%31%32%37.0.0.1/",
        "https://127.0.0.1%2eexample/",
        "https://tables%00.example/",
        "https://tables%2eexample/",
    ),
    # IPv6
    *("https://[fe80::1%25eth0]/", "https://[fe80::1%eth0]/", "https://[::1/", "https://::1/", "https://[]/"),
    *("https://[v1.x]/", "https://[::g]/", "https://[1.2.3.4]/", "https://[::1]a/", "https://[tables.example]/"),
    *("https://[::1%25]/", "https://[2606:2800::1::2]/", "https://tables.example[::1]/", "https://[[2606::1]]/"),
    # names
    *("https://./", "https://../", "https://tables..example/", "https://.tables.example/", "https://tables.example../"),
    *(
        "https://-a.example/",
        "https://a-.example/",
        "https://a_b.example/",
        "https://a!b.example/",
        "https://*.example/",
    ),
    *(f"https://{'a' * 64}.example/", f"https://{'a.' * 127}example/", "https://a,b/", "https://a;b/", "https://a=b/"),
    # ports
    *(
        "https://tables.example:/",
        "https://tables.example:0/",
        "https://tables.example:65536/",
        "https://tables.example:-1/",
    ),
    *(
        "https://tables.example:22/",
        "https://tables.example:25/",
        "https://tables.example:6379/",
        "https://tables.example:443:443/",
    ),
    *(
        "https://tables.example:0443/",
        "https://tables.example:4 43/",
        "https://tables.example:+443/",
        "https://tables.example:４４３/",
    ),
    *(
        "https://tables.example:11211/",
        "https://tables.example:6667/",
        "https://tables.example:0x1bb/",
        "https://tables.example:x/",
    ),
    # backslashes, control characters, spaces
    *("https:\\\\tables.example\\", "https://tables.example\\@127.0.0.1/", "https://tables.example\\.evil.example/"),
    *(
        "https://tables.example/\\",
        "https://tables.example/\r\nX: 1",
        "https://tables.example\r\n/",
        "https://tables.example/\n",
    ),
    *(
        "https://tables.example/\0",
        "https://tables.example/a b",
        "https://tables.example /",
        "\thttps://tables.example/",
    ),
    *(
        "ht\ntps://tables.example/",
        "https://tables.example/\x7f",
        "https://tables.example/\x85",
        "https://tables.example/\u2028",
    ),
    *("https://tables.example/\ud800", "https://tables.example/\ufeff", "https://tables.example/\u202e"),
    # fragments, paths
    *(
        "https://tables.example/#a",
        "https://tables.example#@127.0.0.1/",
        "https://tables.example?#",
        "https://tables.example/é",
    ),
    *(
        "https://tables.example/a/../b",
        "https://tables.example/.",
        "https://tables.example/a/%2e%2E/b",
        "https://tables.example/.%2e",
    ),
    *(
        "https://tables.example/%",
        "https://tables.example/%zz",
        "https://tables.example/?%1",
        'https://tables.example/"',
    ),
    *(
        "https://tables.example/<a>",
        "https://tables.example/`",
        f"https://tables.example/{'a' * OUTBOUND_URL_BYTES_MAX}",
    ),
)

# Valid URLs with refused addresses or names. Development mode allows those of loopback.
LOOPBACK = (
    *("https://127.0.0.1/", "https://127.9.9.9:8443/", "https://[::1]/", "https://localhost/", "https://LOCALHOST./"),
    *("https://a.localhost/", "https://[0:0:0:0:0:0:0:1]/", "https://localhost:4437/"),
)
PRIVATE = (
    *("https://0.0.0.0/", "https://10.0.0.1/", "https://172.16.0.1/", "https://192.168.0.1/", "https://100.64.0.1/"),
    *(
        "https://169.254.169.254/latest/meta-data/",
        "https://168.63.129.16/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
    ),
    *(
        "https://[::]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::ffff:7f00:1]/",
        "https://[::127.0.0.1]/",
        "https://[fc00::1]/",
    ),
    *(
        "https://[fd00:ec2::254]/",
        "https://[fe80::1]/",
        "https://[ff02::1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
    ),
    *(
        "https://[2001:0:7f00:1::]/",
        "https://[::ffff:0:127.0.0.1]/",
        "https://[::ffff:93.184.216.34]/",
        "https://[2606::5efe:10.0.0.1]/",
    ),
)

# Names that resolve to refused addresses, alone or together with an allowed one.
RESOLVING = {
    "loopback.example": ["127.0.0.1"],
    "loopback6.example": ["::1"],
    "private.example": ["10.1.2.3"],
    "one-bad.example": [PUBLIC, "192.168.0.1"],
    "bad-first.example": ["192.168.0.1", PUBLIC],
    "bad6.example": [PUBLIC, "fd00::1"],
    "metadata.google.internal": ["169.254.169.254"],
    "metadata6.example": ["fd00:ec2::254"],
    "mapped.example": ["::ffff:10.0.0.1"],
    "compatible.example": ["::10.0.0.1"],
    "6to4.example": ["2002:a00:1::1"],
    "nat64.example": ["64:ff9b::a00:1"],
    "teredo.example": ["2001:0:a00:1::"],
    "zone.example": ["fe80::1%eth0"],
    "shared.example": ["100.64.1.1"],
    "zero.example": ["0.0.0.0"],
    "multicast.example": ["239.1.1.1"],
    "nonsense.example": ["10.1"],
    "intranet": ["172.20.0.5"],
}


async def no_connector(address: str, port: int, timeout_s: float | None) -> httpcore.AsyncNetworkStream:
    raise AssertionError(f"connected to {address}:{port}")


def refused(url: str, *, development: bool) -> str:
    async def main() -> str:
        names = Names(tables_example=[[PUBLIC]])
        names._answers.update({name: [addresses] for name, addresses in RESOLVING.items()})
        client = open_outbound(development=development, resolver=names, connector=no_connector, tls=trusting())
        async with client:
            with pytest.raises(TargetRefusedError) as caught:
                await client.request("GET", url)
        assert not caught.value.retryable
        return str(caught.value)

    return asyncio.run(main())


def test_there_are_enough_hostile_urls() -> None:
    assert len({*MALFORMED, *LOOPBACK, *PRIVATE}) > 150


@pytest.mark.parametrize("url", [*MALFORMED, *PRIVATE], ids=ascii)
def test_hostile_urls_are_refused(url: str) -> None:
    for development in (False, True):
        detail = refused(url, development=development)
        assert detail.isprintable()
        assert "secret" not in detail


@pytest.mark.parametrize("url", LOOPBACK)
def test_loopback_is_for_development(url: str) -> None:
    refused(url, development=False)
    parse_target(url, development=True)
    assert parse_target(url.replace("https:", "http:"), development=True).scheme == "http"
    with pytest.raises(TargetRefusedError):
        parse_target(url.replace("https:", "http:"))


@pytest.mark.parametrize("name", RESOLVING)
def test_names_of_bad_addresses_are_refused(name: str) -> None:
    for development in (False, True):
        assert name in refused(f"https://{name}/", development=development)
    assert "localhost only" in refused(f"http://{name}/", development=True)


@pytest.mark.parametrize(
    ("url", "same", "host"),
    [
        ("https://tables.example", "https://tables.example/", "tables.example"),
        ("HTTPS://Tables.EXAMPLE:443/A", "https://tables.example/A", "tables.example"),
        ("https://tables.example./a", "https://tables.example/a", "tables.example"),
        ("https://tables.example:8443?a=b", "https://tables.example:8443/?a=b", "tables.example"),
        ("https://tables.example:80/", "https://tables.example:80/", "tables.example"),
        ("https://Bücher.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/", "xn--bcher-kva.example"),
        ("https://faß.example/", "https://xn--fa-hia.example/", "xn--fa-hia.example"),
        ("https://93.184.216.34/", "https://93.184.216.34/", "93.184.216.34"),
        ("https://1.example/", "https://1.example/", "1.example"),
        ("https://[2606:2800:0220:1::1]:4437/", "https://[2606:2800:220:1::1]:4437/", "2606:2800:220:1::1"),
        ("https://[64:ff9b::5db8:d822]/", "https://[64:ff9b::5db8:d822]/", "64:ff9b::5db8:d822"),
        ("https://tables.example/a//b;c=d/..e/%0d?x=/../y?z&a[]=@:", None, "tables.example"),
        ("https://tables.example/%C3%A9?since_id=-10&url=https://127.0.0.1/", None, "tables.example"),
    ],
)
def test_valid_urls_are_parsed(url: str, same: str | None, host: str) -> None:
    target = parse_target(url)
    assert str(target) == (same or url)
    assert target.host == host
    assert parse_target(str(target)) == target
    assert "?" not in target.shown
