"""The native edge over TLS: HTTP/1.1 and the limits of connections."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bench.servers import Server, headwater

from headwater.errors import OptionError
from headwater.limits import Limits
from headwater.server.native.connection import Connection
from headwater.server.native.tls import TlsTransport, load_context
from tests.certificates import Pair, make_pair
from tests.servers import Server as Inside
from tests.servers import serving
from tests.waiting import wait_for, wait_until

TEXT = {"content-type": "text/plain"}
BINARY = {"content-type": "application/octet-stream"}
CREATE = b"PUT /v1/stream/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 0\r\n\r\n"
READ = b"GET /v1/stream/a HTTP/1.1\r\nhost: localhost\r\n\r\n"
BIG = bytes(range(256)) * 40_000  # ten million bytes


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def over_tls(pair: Pair, **limits: float) -> Iterator[Inside]:
    with serving(Limits(**limits), load_context(pair.certificate, pair.key)) as server:  # type: ignore[arg-type]
        yield server


def connect(server: Server | Inside, pair: Pair, **options: int) -> ssl.SSLSocket:
    context = pair.trust()
    for name, value in options.items():
        setattr(context, name, value)
    sock = socket.create_connection((server.host, server.port), timeout=60)
    return context.wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=False)


def received(sock: socket.socket, until: bytes = b"") -> bytes:
    """Receive until some bytes have arrived, or until the end."""
    data = bytearray()
    while not (until and until in data) and (piece := sock.recv(1 << 16)):
        data += piece
    return bytes(data)


def test_streams_over_tls(pair: Pair) -> None:
    with over_tls(pair, long_poll_s=1) as server, httpx.Client(base_url=server.url, verify=pair.trust()) as http:
        created = http.put("/a", headers=TEXT, content=b"one")
        assert created.status_code == 201
        assert created.headers["location"] == f"{server.url}/a"
        assert http.post("/a", headers=TEXT, content=b"two").status_code == 204
        assert http.get("/a").content == b"onetwo"
        offset = created.headers["stream-next-offset"]
        assert http.get("/a", params={"offset": offset, "live": "long-poll"}).content == b"two"
        with http.stream("GET", "/a", params={"offset": offset, "live": "sse"}) as feed:
            lines = feed.iter_lines()
            assert "data:two" in (next(lines), next(lines))
            http.post("/a", headers=TEXT, content=b"three")
            assert "data:three" in lines


def test_large_bodies_both_ways(pair: Pair) -> None:
    with over_tls(pair) as server, httpx.Client(base_url=server.url, verify=pair.trust(), timeout=60) as http:
        assert http.put("/a", headers=BINARY, content=BIG).status_code == 201
        taken, offset = bytearray(), "-1"
        while len(taken) < len(BIG):
            answer = http.get("/a", params={"offset": offset})
            taken += answer.content
            offset = answer.headers["stream-next-offset"]
        assert taken == BIG


def test_a_server_that_stops_ends_its_live_reads(pair: Pair) -> None:
    options = ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key))
    with headwater("--memory", *options) as server, connect(server, pair) as sock, connect(server, pair) as idle:
        sock.sendall(CREATE + READ.replace(b"/a ", b"/a?live=sse&offset=-1 "))
        assert b"upToDate" in received(sock, b"upToDate")
        idle.sendall(READ)
        assert b"HTTP/1.1 200" in received(idle, b"content-length: 0\r\n\r\n")
        server.terminate()
        assert received(sock).endswith(b"0\r\n\r\n")  # the last chunk, and then goodbye
        assert received(idle) == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_from_1_2_on(pair: Pair, version: ssl.TLSVersion) -> None:
    with over_tls(pair) as server, connect(server, pair, minimum_version=version, maximum_version=version) as sock:
        assert sock.version() == version.name.replace("_", ".")
        sock.sendall(READ)
        assert received(sock, b"\r\n").startswith(b"HTTP/1.1 404")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_older_versions_are_refused(pair: Pair) -> None:
    context = pair.trust()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else this side refuses
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with over_tls(pair) as server, socket.create_connection((server.host, server.port), timeout=60) as sock:
        with pytest.raises(ssl.SSLError, match="alert protocol version"):
            context.wrap_socket(sock, server_hostname="localhost")


def test_many_requests_in_one_record_wait_for_their_turn(pair: Pair) -> None:
    with over_tls(pair, pipeline_requests_max=4) as server, connect(server, pair) as sock:
        sock.sendall(CREATE)
        assert received(sock, b"\r\n\r\n").startswith(b"HTTP/1.1 201")
        sock.sendall(READ * 500 + READ.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert received(sock).count(b"HTTP/1.1 200") == 501


def test_a_half_closed_client_gets_its_response(pair: Pair) -> None:
    with over_tls(pair) as server, connect(server, pair) as sock:
        sock.sendall(CREATE + READ)
        with socket.socket(fileno=os.dup(sock.fileno())) as below:
            below.shutdown(socket.SHUT_WR)
        assert received(sock).count(b"HTTP/1.1 20") == 2


def test_a_client_that_sends_close_notify_gets_its_response(pair: Pair) -> None:
    """Its close_notify arrives with its last request. The server sends the response and then its close_notify."""
    with over_tls(pair) as server:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = pair.trust().wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection((server.host, server.port), timeout=60) as sock:
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(1 << 16))
            tls.write(CREATE)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.unwrap()
            sock.sendall(outgoing.read())
            incoming.write(received(sock))
        assert tls.read(1 << 16).startswith(b"HTTP/1.1 201")
        with pytest.raises((ssl.SSLZeroReturnError, ssl.SSLError)):
            tls.read(1)


def test_a_refused_request_gets_its_response_while_its_body_arrives(pair: Pair) -> None:
    with over_tls(pair, body_bytes_max=1000) as server, connect(server, pair) as sock:
        sock.sendall(CREATE.replace(b"length: 0", b"length: 9000000"))
        with contextlib.suppress(OSError):
            for _ in range(90):
                sock.sendall(b"x" * 100_000)
        assert received(sock, b"\r\n").startswith(b"HTTP/1.1 413")


def test_a_handshake_counts_as_a_connection_and_has_a_timeout(pair: Pair) -> None:
    with over_tls(pair, connections_max=1, tls_handshake_s=3) as server:
        with socket.create_connection((server.host, server.port), timeout=60) as silent:
            with connect(server, pair) as sock:
                assert received(sock).startswith(b"HTTP/1.1 503")
            assert received(silent) == b""
        with connect(server, pair) as sock:
            sock.sendall(READ)
            assert received(sock, b"\r\n").startswith(b"HTTP/1.1 404")


NO_TLS = {
    "zeros": b"\x00" * 100,
    "a hello without end": b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
    "noise": random.Random(0).randbytes(5000),
    "an alert that is cut off": b"\x15\x03",
}


@pytest.mark.parametrize("data", NO_TLS.values(), ids=NO_TLS.keys())
def test_invalid_tls_closes_the_connection(pair: Pair, data: bytes) -> None:
    with over_tls(pair, tls_handshake_s=1, header_s=1) as server:
        with socket.create_connection((server.host, server.port), timeout=60) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(data)
                assert len(received(sock)) < 100  # an alert
        with connect(server, pair) as sock:
            sock.sendall(b"GET /v1/stream/a HTTP/1.1\r\nhost: localhost\r\n")
            with socket.socket(fileno=os.dup(sock.fileno())) as below:
                below.sendall(data)  # in the middle of a session
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                assert received(sock)[:12] in (b"", b"HTTP/1.1 408")  # which is for what may still become an alert
        with connect(server, pair) as sock:
            sock.sendall(READ)
            assert received(sock, b"\r\n").startswith(b"HTTP/1.1 404")


def test_plain_http_gets_an_error_that_names_https(pair: Pair) -> None:
    with over_tls(pair) as server, socket.create_connection((server.host, server.port), timeout=60) as sock:
        sock.sendall(READ)
        assert received(sock).endswith(b"This port accepts https only, not http.\r\n")


def test_unread_bytes_are_counted_and_close_the_connection(pair: Pair) -> None:
    with over_tls(pair, response_bytes_in_flight_max=200_000, write_stall_s=2) as server:
        below = socket.socket()
        below.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        below.connect((server.host, server.port))
        slow = pair.trust().wrap_socket(below, server_hostname="localhost")
        with httpx.Client(base_url=server.url, verify=pair.trust(), timeout=60) as http, slow:
            http.put("/a", headers=BINARY, content=BIG)
            slow.sendall(READ * 10)
            wait_for(lambda: http.get("/a").status_code, 503)
            wait_for(lambda: http.get("/a").status_code, 200)  # the slow one was aborted
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                received(slow)


def test_lost_connections_are_freed_without_the_garbage_collector(pair: Pair) -> None:
    def alive() -> list[object]:
        return [thing for thing in gc.get_objects() if type(thing) in (Connection, TlsTransport, ssl.SSLObject)]

    with over_tls(pair) as server:
        gc.collect()
        others = alive()  # of earlier tests in this process; the list keeps them
        gc.disable()
        try:
            for _ in range(5):
                with connect(server, pair) as sock:
                    sock.sendall(CREATE)
                    received(sock, b"\r\n\r\n")
                with socket.create_connection((server.host, server.port)) as plain:
                    plain.sendall(b"\x00" * 100)
                    received(plain)
            wait_until(lambda: len(alive()) <= len(others))
        finally:
            gc.enable()


def serial_of(server: Server) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((server.host, server.port), timeout=60) as sock:
        with context.wrap_socket(sock) as tls:
            return tls.getpeercert(binary_form=True) or b""


def until_other(server: Server, before: bytes) -> bytes:
    wait_until(lambda: serial_of(server) != before, "another certificate is used")
    return serial_of(server)


@pytest.mark.usefixtures("default_signals")
def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pair = make_pair(tmp_path)
    options = ("--tls-certificate", str(pair.certificate), "--tls-key", str(pair.key), "--log-level", "info")
    with headwater("--memory", *options) as server:
        first = serial_of(server)
        with connect(server, pair) as old:
            make_pair(tmp_path)
            second = until_other(server, first)
            pair.certificate.write_text("nonsense")
            os.kill(server.pid, signal.SIGHUP)
            logged: list[str] = []

            def is_refused() -> bool:
                logged.append(capfd.readouterr().err)
                return "stays in use" in "".join(logged)

            wait_until(is_refused)
            assert serial_of(server) == second
            old.sendall(READ)  # a connection goes on with the certificate that it began with
            assert received(old, b"\r\n").startswith(b"HTTP/1.1 404")
        make_pair(tmp_path)
        until_other(server, second)


UNUSABLE = {
    "missing": "No such file",
    "other key": "key values mismatch",
    "encrypted": "is encrypted",
    "no PEM": "not in PEM format",
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_invalid_certificate_or_key_is_refused(tmp_path: Path, kind: str) -> None:
    pair, other = make_pair(tmp_path), make_pair(tmp_path, "other", password=b"hush" if kind == "encrypted" else None)
    if kind == "missing":
        other.key.unlink()
    elif kind == "no PEM":
        other.key.write_text("nonsense")
    certificate = other.certificate if kind == "encrypted" else pair.certificate
    with pytest.raises((OptionError, FileNotFoundError), match=UNUSABLE[kind]):
        load_context(certificate, other.key)


def test_the_key_may_be_in_the_file_of_the_certificate(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    pair.certificate.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    pair.key.unlink()
    load_context(pair.certificate, None)
