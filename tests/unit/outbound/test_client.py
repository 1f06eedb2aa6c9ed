"""The client with a peer on loopback: pinned addresses, TLS by name, and hostile responses."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import uvloop

from headwater.errors import (
    OutboundError,
    RedirectRefusedError,
    TargetAnswerError,
    TargetRefusedError,
    TargetUnreachableError,
)
from headwater.limits import OUTBOUND_HEAD_BYTES_MAX, OUTBOUND_READ_BYTES
from headwater.outbound import OutboundClient, open_outbound
from headwater.outbound.backend import BoundedStream
from headwater.outbound.resolver import SystemResolver
from tests.unit.outbound.rig import LIMITS, PUBLIC, Names, Peer, Respond, Wire, peer, public_client, trusting
from tests.waiting import LIMIT_S, wait_for_async

pytestmark = pytest.mark.slow  # starts servers and waits for timeouts

URL = "https://tables.example/v1/table/a?since_id=3"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


def against(respond: Respond | bytes, act: Callable[[OutboundClient, Peer], Awaitable[None]]) -> None:
    """Use a client whose tables.example responds like this, and check that nothing is left open."""

    async def main() -> None:
        async with peer(respond) as server, public_client(server) as client:
            await act(client, server)
            assert not len(client._slots)
            assert client._pool is None or not client._pool._requests

    asyncio.run(main())


def failing(respond: Respond | bytes, kind: type[OutboundError], match: str) -> None:
    async def act(client: OutboundClient, _found: Peer) -> None:
        with pytest.raises(kind, match=match) as caught:
            await client.request("GET", URL)
        assert caught.value.url == "https://tables.example/v1/table/a"

    against(respond, act)


# Good requests


def test_what_the_first_request_imports_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    importing: list[str] = []

    class Recorder:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name.startswith("anyio."):
                importing.append(threading.current_thread().name)

    async def act(client: OutboundClient, _peer: Peer) -> None:
        monkeypatch.delitem(sys.modules, "anyio._backends._asyncio", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Recorder, *sys.meta_path])
        await client.request("GET", URL)

    against(OK, act)
    assert importing
    assert threading.main_thread().name not in importing


def test_certificates_that_cannot_be_read_are_an_error_of_the_request_and_another_one_works() -> None:
    async def main() -> None:
        async with peer(OK) as server, public_client(server) as client:
            open_pool = client._open_pool

            def fail() -> Any:
                raise FileNotFoundError(2, "No such file or directory", "cacert.pem")

            client._open_pool = fail
            with pytest.raises(TargetUnreachableError, match=r"cacert\.pem"):
                await client.request("GET", URL)
            client._open_pool = open_pool
            assert (await client.request("GET", URL)).status == 200

    asyncio.run(main())


def test_the_address_is_pinned_and_tls_and_host_use_the_name() -> None:
    async def main() -> None:
        names, sent = Names(tables_example=[[PUBLIC]]), {"Accept": "text/sequence", "Authorization": "Bearer x"}
        async with peer(OK) as server:
            wire = Wire(server.port)
            async with open_outbound(limits=LIMITS, resolver=names, connector=wire, tls=trusting()) as client:
                for _ in range(3):
                    answer = await client.request("POST", URL, headers=sent, body=b"surl=x")
                    assert (answer.status, answer.headers, answer.body) == (200, {"content-length": "2"}, b"ok")
        assert wire.addresses == [(PUBLIC, 443)]
        assert names.asked == ["tables.example"]
        assert server.server_names == ["tables.example"]
        assert server.heads[0].decode().split("\r\n")[:-2] == [
            "POST /v1/table/a?since_id=3 HTTP/1.1",
            "host: tables.example",
            "user-agent: headwater",
            "accept: text/sequence",
            "authorization: Bearer x",
            "accept-encoding: identity",
            "content-length: 6",
        ]

    run(main)


@pytest.mark.parametrize("url", [f"https://{PUBLIC}/", "https://bücher.example/", "https://tables.example.:4437/"])
def test_other_forms_of_good_targets(url: str) -> None:
    async def main() -> None:
        names = Names(tables_example=[[PUBLIC]], **{"xn--bcher-kva_example": [[PUBLIC]]})
        async with peer(OK) as server, public_client(server, names) as client:
            assert (await client.request("GET", url)).body == b"ok"
        assert server.server_names in ([None], ["xn--bcher-kva.example"], ["tables.example"])

    run(main)


def test_a_certificate_of_another_name_is_refused() -> None:
    async def main() -> None:
        names = Names(other_example=[[PUBLIC]])
        async with peer(OK) as server, public_client(server, names) as client:
            with pytest.raises(TargetUnreachableError, match="certificate verify failed") as caught:
                await client.request("GET", "https://other.example/")
            assert caught.value.how == "connect"
            assert not server.heads

    run(main)


def test_a_certificate_of_an_unknown_authority_is_refused() -> None:
    async def main() -> None:
        async with peer(OK) as server:
            resolver = Names(tables_example=[[PUBLIC]])
            async with open_outbound(limits=LIMITS, resolver=resolver, connector=Wire(server.port)) as client:
                with pytest.raises(TargetUnreachableError, match="certificate verify failed"):
                    await client.request("GET", URL)

    run(main)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_development_mode_requests_loopback_by_http_without_a_lookup(
    new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with peer(OK, tls=False) as server:
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_a, **_k: pytest.fail("a lookup"))
            async with open_outbound(development=True, limits=LIMITS) as client:
                assert (await client.request("GET", f"http://127.0.0.1:{server.port}/")).body == b"ok"
            monkeypatch.undo()
            async with open_outbound(development=True, limits=LIMITS, resolver=SystemResolver()) as client:
                assert (await client.request("GET", f"http://localhost:{server.port}/")).body == b"ok"
            async with open_outbound(limits=LIMITS) as client:
                with pytest.raises(TargetRefusedError):
                    await client.request("GET", f"https://localhost:{server.port}/")
            assert server.heads[1].startswith(b"GET / HTTP/1.1\r\nhost: localhost:")

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def act(client: OutboundClient, _found: Peer) -> None:
        assert (await client.request("GET", URL)).body == b"ok"

    against(OK, act)


def test_cookies_are_not_kept() -> None:
    async def act(client: OutboundClient, server: Peer) -> None:
        for _ in range(2):
            await client.request("GET", URL)
        assert b"cookie" not in server.heads[1].lower()

    against(OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b; Path=/\r\n\r\n"), act)


# Addresses


def test_a_dns_answer_that_changes_after_the_check_has_no_effect() -> None:
    async def main() -> None:
        closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        names = Names(tables_example=[[PUBLIC], ["127.0.0.1"]])
        async with peer(closing) as server:
            wire = Wire(server.port)
            async with open_outbound(limits=LIMITS, resolver=names, connector=wire, tls=trusting()) as client:
                assert (await client.request("GET", URL)).status == 200
                assert len(names.asked) == 1  # one lookup for the check and the connection
                with pytest.raises(TargetRefusedError, match=r"resolves to 127\.0\.0\.1, which is a loopback address"):
                    await client.request("GET", URL)
        assert wire.addresses == [(PUBLIC, 443)]

    run(main)


def test_the_next_address_is_tried_and_all_failures_are_reported() -> None:
    async def main() -> None:
        dead = [f"93.184.216.{number}" for number in range(1, 7)]
        names = Names(tables_example=[[dead[0], PUBLIC]], dead_example=[dead])
        async with peer(OK) as server:
            wire = Wire(server.port, dead)
            async with open_outbound(limits=LIMITS, resolver=names, connector=wire, tls=trusting()) as client:
                assert (await client.request("GET", URL)).status == 200
                with pytest.raises(
                    TargetUnreachableError, match=r"93\.184\.216\.1: no route; 93\.184\.216\.2"
                ) as caught:
                    await client.request("GET", "https://dead.example/")
        assert caught.value.retryable
        assert len(wire.addresses) == 2 + 4

    run(main)


def test_names_that_are_not_resolved() -> None:
    async def main() -> None:
        async with peer(OK) as server, public_client(server, Names(empty_example=[[]])) as client:
            with pytest.raises(TargetUnreachableError, match="name not known") as caught:
                await client.request("GET", URL)
            assert (caught.value.how, caught.value.retryable) == ("connect", True)
            with pytest.raises(TargetUnreachableError, match="has no addresses"):
                await client.request("GET", "https://empty.example/")

    run(main)


def test_a_lookup_that_hangs_times_out() -> None:
    async def main() -> None:
        async def hanging(_host: str) -> list[str]:
            await asyncio.sleep(60)
            return []

        async with open_outbound(limits=LIMITS, resolver=hanging, tls=trusting()) as client:
            with pytest.raises(TargetUnreachableError, match="no connection") as caught:
                await client.request("GET", URL)
            assert caught.value.how == "connect"

    run(main)


def test_lookups_are_bounded_even_if_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = most = 0
    free = threading.Event()

    def slow(*_given: Any, **_named: Any) -> list[Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        assert free.wait(LIMIT_S)
        under_way -= 1
        return [(2, 1, 6, "", (PUBLIC, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def impatient(resolver: SystemResolver, host: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await resolver(host)

    async def main() -> None:
        resolver = SystemResolver(lookups_max=2)
        for _ in range(3):
            await asyncio.gather(*(impatient(resolver, f"{number}.example") for number in range(5)))
        free.set()
        assert await resolver("a.example") == [PUBLIC]
        assert most == 2

    run(main)


def test_lookups_of_one_user_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def look_up(host: bytes, *_: Any, **__: Any) -> list[Any]:
        if host.startswith(b"silent"):
            free.wait(LIMIT_S)
        return [(2, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def main() -> None:
        async with (
            peer(OK, tls=False) as receiver,
            open_outbound(development=True, resolver=SystemResolver(lookups_max=4)) as client,
        ):
            silent = [f"http://silent{number}.localhost:{receiver.port}/" for number in range(20)]
            waiting = [asyncio.create_task(client.request("POST", url, user="attacker")) for url in silent]
            await asyncio.sleep(0)
            for number in range(8):
                url = f"http://healthy{number}.localhost:{receiver.port}/"
                assert (await client.request("POST", url, user="other")).body == b"ok"
            free.set()
            for answer in await asyncio.gather(*waiting):
                assert answer.body == b"ok"

    run(main)


# Hostile responses


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    async def act(client: OutboundClient, server: Peer) -> None:
        with pytest.raises(RedirectRefusedError, match="redirects: the response is 3") as caught:
            await client.request("GET", URL)
        assert caught.value.location == "https://127.0.0.1/"
        assert not caught.value.retryable
        assert len(server.heads) == 1

    against(b"HTTP/1.1 %d X\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n" % status, act)


def test_other_statuses_are_returned() -> None:
    for status in (204, 304, 404, 503):
        length = b"" if status == 204 else b"Content-Length: 0\r\n"

        async def act(client: OutboundClient, _found: Peer, status: int = status) -> None:
            assert (await client.request("GET", URL)).status == status

        against(b"HTTP/1.1 %d X\r\n%b\r\n" % (status, length), act)


def chunked(*chunks: bytes, head: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + head + b"\r\n" + body + b"0\r\n\r\n"


def endless(first: bytes, then: bytes, pause_s: float = 0) -> Respond:
    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.is_closing():
            writer.write(then)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return respond


BOMB = gzip.compress(bytes(64 * 1024 * 1024))
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("respond", "kind", "match"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 16385\r\n\r\n", TargetAnswerError, "larger than 16384 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", TargetAnswerError, "larger than 16384"),
        (chunked(bytes(16_385)), TargetAnswerError, "larger than 16384 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(16_385), TargetAnswerError, "larger than 16384 bytes"),
        (endless(CHUNKED, b"3e8\r\n" + bytes(1000) + b"\r\n"), TargetAnswerError, "larger than 16384 bytes"),
        (endless(CHUNKED, b"1\r\nx\r\n" * 5000), TargetAnswerError, "larger than 16384 bytes"),
        (chunked(BOMB, head=b"Content-Encoding: gzip\r\n"), TargetAnswerError, "content encoding 'gzip'"),
        (chunked(b"x", head=b"Content-Encoding: identity, br\r\n"), TargetAnswerError, "content encoding"),
        (chunked(b"x", head=b"Transfer-Encoding: gzip\r\n"), TargetUnreachableError, "lost"),
        (endless(b"HTTP/1.1 200 OK\r\nA: ", b"a" * 1000), TargetAnswerError, f"than {OUTBOUND_HEAD_BYTES_MAX}"),
        (endless(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 100), TargetAnswerError, "headers"),
        (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), TargetAnswerError, "headers"),
        (endless(b"", b"x" * 1000), TargetAnswerError, "headers"),
        (b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", TargetUnreachableError, "lost"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", TargetUnreachableError, "lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", TargetUnreachableError, "lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", TargetUnreachableError, "lost"),
        (endless(CHUNKED + b"1;", b"x" * 1000), TargetUnreachableError, "lost"),
    ],
)
def test_hostile_responses_are_refused(respond: Respond | bytes, kind: type[OutboundError], match: str) -> None:
    failing(respond, kind, match)


async def hang(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def cut(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("respond", "how", "limits"),
    [
        (hang, "timeout", {}),
        (endless(b"HTTP/1.1 200 OK\r\nA: ", b"a", 0.05), "timeout", {"total_s": 0.4}),
        (endless(CHUNKED, b"1\r\nx\r\n", 0.05), "timeout", {"total_s": 0.4}),
        (endless(CHUNKED, b"", 0.05), "timeout", {}),
        (hang_up, "lost", {}),
        (cut, "lost", {}),
    ],
)
def test_time_outs_and_lost_connections_can_be_retried(respond: Respond, how: str, limits: dict[str, float]) -> None:
    async def act(client: OutboundClient, _found: Peer) -> None:
        with pytest.raises(TargetUnreachableError) as caught:
            await client.request("GET", URL, **limits)  # type: ignore[arg-type]
        assert (caught.value.how, caught.value.retryable) == (how, True)

    against(respond, act)


@pytest.mark.parametrize(("total_s", "how"), [(None, "connect"), (0.1, "timeout")])
def test_a_tls_handshake_that_never_ends_times_out(total_s: float | None, how: str) -> None:
    async def main() -> None:
        async with peer(OK, tls=False) as server, public_client(server) as client:
            with pytest.raises(TargetUnreachableError) as caught:
                await client.request("GET", URL, total_s=total_s)
            assert caught.value.how == how
            await wait_for_async(lambda: (server.connections, server.open), (1, 0))

    run(main)


def test_many_small_chunks_do_not_hold_the_loop() -> None:
    """Other tasks run while the response is read."""

    async def act(client: OutboundClient, _found: Peer) -> None:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        ticking = asyncio.create_task(tick())
        answer = await client.request("GET", URL)
        ticking.cancel()
        assert answer.body == b"x" * 15_000
        assert turns > 1

    against(chunked(*[b"x"] * 15_000), act)


# Streams


def test_a_stream_is_read_in_bounded_pieces_as_they_come() -> None:
    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for number in range(5):
            writer.write(b"2\r\n%d\n\r\n" % number)
            await writer.drain()
            await asyncio.sleep(0.1)  # together longer than the idle timeout
        writer.write(b"30d40\r\n" + bytes(200_000) + b"\r\n0\r\n\r\n")

    async def act(client: OutboundClient, _found: Peer) -> None:
        async with client.stream("GET", URL) as answer:
            assert answer.status == 200
            pieces = [piece async for piece in answer]
        assert pieces[:5] == [b"%d\n" % number for number in range(5)]
        assert sum(map(len, pieces[5:])) == 200_000  # more than the limit of a response that is not streamed
        assert max(map(len, pieces)) <= OUTBOUND_READ_BYTES

    against(respond, act)


@pytest.mark.parametrize(
    ("limits", "kind"),
    [
        ({"body_bytes_max": 100_000}, TargetAnswerError),
        ({"total_s": 0.3}, TargetUnreachableError),
    ],
)
def test_an_endless_stream_ends_at_the_limits_of_the_caller(limits: dict[str, Any], kind: type[OutboundError]) -> None:
    async def act(client: OutboundClient, server: Peer) -> None:
        async with client.stream("GET", URL, **limits) as answer:
            with pytest.raises(kind):
                async for _ in answer:
                    pass
        await wait_for_async(lambda: server.open, 0)  # the connection is closed

    against(endless(CHUNKED, b"3e8\r\n" + bytes(1000) + b"\r\n"), act)


def test_a_silent_stream_ends_after_the_idle_time() -> None:
    async def act(client: OutboundClient, _found: Peer) -> None:
        async with client.stream("GET", URL, idle_s=0.1) as answer:
            with pytest.raises(TargetUnreachableError, match="no response in time"):
                async for _ in answer:
                    pass

    against(endless(CHUNKED + b"1\r\nx\r\n", b"", 0.05), act)


def test_a_stream_that_is_left_or_cancelled_releases_its_connection() -> None:
    async def act(client: OutboundClient, server: Peer) -> None:
        async def read() -> None:
            async with client.stream("GET", URL) as answer:
                async for _ in answer:
                    pass

        for number in range(6):  # more than the limit of connections per host
            async with client.stream("GET", URL) as answer:
                async for _ in answer:
                    break
            reading = asyncio.create_task(read())
            await wait_for_async(lambda: server.connections, 2 * number + 2)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        await wait_for_async(lambda: (server.connections, server.open), (12, 0))

    against(endless(CHUNKED, b"1\r\nx\r\n", 0.01), act)


# Bounds


@pytest.mark.parametrize(
    ("in_all", "per_host", "hosts", "most"), [(8, 3, 1, 3), (5, 3, 4, 5)], ids=["of a host", "in all"]
)
def test_connections_are_bounded(in_all: int, per_host: int, hosts: int, most: int) -> None:
    free = asyncio.Event()

    async def respond(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await free.wait()
        writer.write(OK)

    async def main() -> None:
        limits = msgspec.structs.replace(
            LIMITS, outbound_connections_max=in_all, outbound_connections_per_host_max=per_host
        )
        async with peer(respond, tls=False) as server:
            names = Names(**{f"h{number}_localhost": [["127.0.0.1"]] for number in range(hosts)})
            async with open_outbound(development=True, limits=limits, resolver=names) as client:
                urls = [f"http://h{number % hosts}.localhost:{server.port}/" for number in range(24)]
                requests = asyncio.gather(*(client.request("GET", url) for url in urls))
                await wait_for_async(lambda: server.open, most)
                free.set()
                assert {answer.body for answer in await requests} == {b"ok"}
                assert server.open_max == most

    run(main)


def test_waiting_for_a_connection_times_out() -> None:
    async def act(client: OutboundClient, server: Peer) -> None:
        async with contextlib.AsyncExitStack() as held:
            for _ in range(LIMITS.outbound_connections_per_host_max):
                await held.enter_async_context(client.stream("GET", URL))
            with pytest.raises(TargetUnreachableError, match="no response in time"):
                await client.request("GET", URL, total_s=0.1)
            assert len(server.heads) == LIMITS.outbound_connections_per_host_max

    against(endless(CHUNKED, b"1\r\nx\r\n", 0.05), act)


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("CONNECT", {}, b""),
        ("GET\r\n", {}, b""),
        ("GET", {}, b"x"),
        ("GET", {"Host": "localhost"}, b""),
        ("GET", {"Accept-Encoding": "gzip"}, b""),
        ("POST", {"content-length": "1"}, b"xx"),
        ("POST", {"Transfer-Encoding": "chunked"}, b"xx"),
        ("GET", {"A": "b\r\nC: d"}, b""),
        ("GET", {"A\r\nC": "d"}, b""),
        ("GET", {"A": "\u0100"}, b""),
    ],
)
def test_invalid_requests_are_refused(method: str, headers: dict[str, str], body: bytes) -> None:
    async def act(client: OutboundClient, server: Peer) -> None:
        with pytest.raises(ValueError, match=r"method|header|body"):
            await client.request(method, URL, headers=headers, body=body)
        assert not server.connections

    against(OK, act)


def test_a_head_response_has_no_body_despite_its_content_length() -> None:
    async def act(client: OutboundClient, _found: Peer) -> None:
        answer = await client.request("HEAD", URL)
        assert (answer.body, answer.headers["content-length"]) == (b"", "1000000")

    against(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", act)


def test_after_failures_of_every_kind_the_client_still_works() -> None:
    turn = 0

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        turn += 1
        kinds: list[Respond] = [hang, hang_up, cut, endless(b"", b"x" * 1000), endless(CHUNKED, b"1\r\nx\r\n", 0.01)]
        if turn <= 15:
            await kinds[turn % 5](reader, writer)
        else:
            writer.write(OK)

    async def act(client: OutboundClient, _found: Peer) -> None:
        for _ in range(15):
            with pytest.raises(OutboundError):
                await client.request("GET", URL, total_s=0.1)
        answers = await asyncio.gather(*(client.request("GET", URL) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}

    against(respond, act)


def test_a_connection_that_is_lost_at_once_has_no_socket() -> None:
    class Lost:
        def get_extra_info(self, info: str) -> object:
            raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    assert BoundedStream(Lost()).get_extra_info("ssl_object") is None  # type: ignore[arg-type]
