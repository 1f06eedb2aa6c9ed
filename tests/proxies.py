"""What speaks HTTP/2 in front of the server: an ASGI server, and reverse proxies with the files of `deploy/`."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.servers import headwater

from tests.certificates import Pair
from tests.edges import free_port
from tests.programs import program
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
FRONTS = ("hypercorn", "caddy", "nginx")
# Live responses last longer than a client waits, so that a front that buffers one until its end fails the test.
LASTING = ("--limit", "long_poll_s=60", "--limit", "sse_lifetime_s=3600", "--limit", "sse_keep_alive_s=3600")


@contextlib.contextmanager
def front(name: str, pair: Pair, directory: Path, *options: str) -> Iterator[str]:
    """The URL of a server that speaks HTTP/2, in front of one in memory. A server behind a proxy gets `options`."""
    if name == "hypercorn":
        port = free_port()
        tls = ("--certfile", str(pair.certificate), "--keyfile", str(pair.key))
        with _process(
            [sys.executable, "-m", "hypercorn", "tests.asgi_apps:app", "-b", f"localhost:{port}", *tls], port
        ):
            yield f"https://localhost:{port}"
        return
    path = program(name)
    with headwater("--memory", "--trusted-proxy", "127.0.0.1", *LASTING, *options) as server:
        start = caddy if name == "caddy" else _nginx
        with start(path, pair, directory, server.port) as port:
            yield f"https://localhost:{port}"


@contextlib.contextmanager
def proxy_before(name: str, upstream: int, pair: Pair, directory: Path) -> Iterator[str]:
    """The URL of Caddy or nginx in front of a port, whether a server runs there or not."""
    start = caddy if name == "caddy" else _nginx
    with start(program(name), pair, directory, upstream) as port:
        yield f"https://localhost:{port}"


@contextlib.contextmanager
def cache(name: str, directory: Path, upstream: int, more: str = "") -> Iterator[str]:
    """The URL of a shared cache in front of a server: nginx or Varnish, with its defaults or with `more` settings."""
    path = program(name)
    port = free_port()
    if name == "varnishd":
        config = directory / "cache.vcl"
        config.write_text(f'vcl 4.1; backend default {{ .host = "127.0.0.1"; .port = "{upstream}"; }}\n{more}\n')
        command = [path, "-j", "none", "-F", "-n", str(directory), "-a", f"127.0.0.1:{port}", "-f", str(config)]
    else:
        config = directory / "nginx.conf"
        config.write_text(_cache_config(directory, port, upstream, more))
        command = [path, "-e", "stderr", "-p", str(directory), "-c", str(config)]
    with _process(command, port, tls=False):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def below_a_prefix(directory: Path, upstream: int, prefix: str) -> Iterator[str]:
    """The URL of nginx, which passes on what is below a path prefix, without the prefix, as it is usually set up."""
    port = free_port()
    config = directory / "nginx.conf"
    config.write_text(f"""{_nginx_main(directory)}
http {{
    access_log off;
    {_nginx_places(directory)}
    server {{
        listen 127.0.0.1:{port};
        location {prefix}/ {{
            proxy_pass http://127.0.0.1:{upstream}/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
        }}
    }}
}}
""")
    with _process([program("nginx"), "-e", "stderr", "-p", str(directory), "-c", str(config)], port, tls=False):
        yield f"http://127.0.0.1:{port}{prefix}"


@contextlib.contextmanager
def round_robin(directory: Path, ports: Sequence[int]) -> Iterator[int]:
    """The port of nginx in front of several servers, each of which gets the next request. It has one process, so that
    the order is strict."""
    port = free_port()
    config = directory / "nginx.conf"
    servers = " ".join(f"server 127.0.0.1:{one} max_fails=0;" for one in ports)
    config.write_text(f"""{_nginx_main(directory).replace("events {}", "worker_processes 1; events {}")}
http {{
    access_log off;
    {_nginx_places(directory)}
    upstream servers {{ {servers} keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        large_client_header_buffers 4 64k;
        merge_slashes off;
        underscores_in_headers on;
        location / {{
            proxy_pass http://servers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_next_upstream off;
            proxy_pass_header X-Accel-Buffering;
            proxy_read_timeout 330s;
        }}
    }}
}}
""")
    with _process([program("nginx"), "-e", "stderr", "-p", str(directory), "-c", str(config)], port, tls=False):
        yield port


@contextlib.contextmanager
def of_compose(directory: Path, ports: tuple[int, int]) -> Iterator[int]:
    """The port of nginx with the shipped configuration for two servers that share a database."""
    port = free_port()
    servers = (ROOT / "deploy/nginx.postgres.conf").read_text().replace("listen 4437;", f"listen 127.0.0.1:{port};")
    for name, upstream in zip(("first", "second"), ports, strict=True):
        servers = servers.replace(f"{name}:4437", f"127.0.0.1:{upstream}")
    config = directory / "nginx.conf"
    config.write_text(f"{_nginx_main(directory)}http {{ access_log off; {_nginx_places(directory)} {servers} }}")
    with _process([program("nginx"), "-e", "stderr", "-p", str(directory), "-c", str(config)], port, tls=False):
        yield port


def _cache_config(directory: Path, port: int, upstream: int, more: str) -> str:
    return f"""{_nginx_main(directory)}
http {{
    access_log off;
    {_nginx_places(directory)}
    proxy_cache_path {directory}/store keys_zone=store:1m;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{upstream};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_cache store;
            {more}
            add_header X-Cache-Status $upstream_cache_status;
        }}
    }}
}}
"""


def _nginx_places(directory: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "\n".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds)


def _nginx_main(directory: Path) -> str:
    user = "user root;" if os.geteuid() == 0 else ""
    return f"{user} daemon off; pid {directory}/pid; error_log stderr; events {{}}"


@contextlib.contextmanager
def caddy(program: str, pair: Pair | None, directory: Path, upstream: int) -> Iterator[int]:
    """Without a pair, Caddy makes a certificate of its own; its authority is in the directory."""
    port = free_port()
    environment = {
        "HEADWATER_SITE": f"localhost:{port}",
        "HEADWATER_UPSTREAM": f"127.0.0.1:{upstream}",
        "HEADWATER_HTTP_PORT": str(free_port()),
        "HEADWATER_HTTPS_PORT": str(port),
        "HOME": str(directory),
        "XDG_DATA_HOME": str(directory),
    }
    if pair is not None:
        environment["HEADWATER_TLS"] = f"{pair.certificate} {pair.key}"
    command = [program, "run", "--adapter", "caddyfile", "--config", str(ROOT / "deploy" / "Caddyfile")]
    with _process(command, port, environment):
        yield port


@contextlib.contextmanager
def _nginx(program: str, pair: Pair, directory: Path, upstream: int) -> Iterator[int]:
    """The file as it is, but for what it says has to be changed, and the ports."""
    port = free_port()
    site = (ROOT / "deploy" / "nginx.conf").read_text()
    for ours, own in (
        ("server 127.0.0.1:4437;", f"server 127.0.0.1:{upstream};"),
        ("listen 443 ", f"listen 127.0.0.1:{port} "),
        ("server_name streams.example;", "server_name localhost;"),
        ("/etc/ssl/streams.example.pem", str(pair.certificate)),
        ("/etc/ssl/streams.example.key", str(pair.key)),
    ):
        assert site.count(ours) == 1
        site = site.replace(ours, own)
    config = directory / "nginx.conf"
    main, places = _nginx_main(directory), _nginx_places(directory)
    config.write_text(f"{main}\nhttp {{\naccess_log off;\n{places}\n{site}\n}}\n")
    with _process([program, "-e", "stderr", "-p", str(directory), "-c", str(config)], port):
        yield port


@contextlib.contextmanager
def _process(
    command: list[str], port: int, environment: dict[str, str] | None = None, *, tls: bool = True
) -> Iterator[None]:
    """A program, from when it accepts connections."""
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            _wait_for(port, process, tls=tls)
            yield
        finally:
            process.terminate()
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(port: int, process: subprocess.Popen[bytes], *, tls: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def accepts() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), 1) as sock:
            if not tls:
                return True
            with context.wrap_socket(sock, server_hostname="localhost"):
                return True
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} did not start: {process.communicate()[1].decode()[-2000:]}")
        return False

    wait_until(accepts, f"{process.args!r} accepts TLS")
