"""`headwater serve`: run a server."""

from __future__ import annotations

import logging
from pathlib import Path

import typer

from headwater.cli.failing import failures
from headwater.cli.output import say
from headwater.limits import parse_limits
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.server.access import access_at, is_loopback, parse_public_url
from headwater.server.following import parse_policy
from headwater.server.forwarding import TrustedProxies
from headwater.server.serve import serve


def command(
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(4437, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    data_dir: Path = typer.Option(Path("headwater-data"), help="Directory that keeps the streams; made if missing."),
    memory: bool = typer.Option(False, "--memory", help="Keep everything in memory, gone when the server stops."),
    limit: list[str] = typer.Option([], metavar="NAME=VALUE", help="Set a limit, as long_poll_s=20. Repeatable."),
    allow_origin: list[str] = typer.Option(
        [],
        metavar="ORIGIN",
        help="Let pages of an origin in, as https://app.example; * for any. Repeatable.",
    ),
    allow_host: list[str] = typer.Option(
        [], metavar="NAME", help="Answer for a host name other than loopback ones; * for any. Repeatable."
    ),
    trusted_proxy: list[str] = typer.Option(
        [], metavar="ADDRESS", help="Believe the forwarded headers of a proxy at an address or network. Repeatable."
    ),
    public_url: str | None = typer.Option(
        None,
        metavar="URL",
        help="Where others reach this server, as https://tables.example: its tables and NURLs are told to them there.",
    ),
    follow: list[str] = typer.Option(
        [], metavar="NAME=SURL", help="Mirror a remote table into the local table of that name. Repeatable."
    ),
    allow_follow: list[str] = typer.Option(
        [], metavar="PREFIX", help="Follow tables below a URL when a Notify request names them. Repeatable."
    ),
    log_level: str = typer.Option("warning", help="debug, info, warning or error."),
) -> None:
    """Serve streams over HTTP until told to stop (Ctrl-C or SIGTERM)."""
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(f"unknown level {log_level!r}", param_hint="--log-level")
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        limits = parse_limits(limit)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--limit") from None

    try:
        proxies = TrustedProxies(trusted_proxy)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--trusted-proxy") from None
    try:
        access = access_at(host, origins=allow_origin, hosts=allow_host, proxies=proxies)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--allow-origin") from None
    try:
        policy = parse_policy(follow, allow_follow, development=is_loopback(host.lower()))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--follow") from None

    try:
        public_url = None if public_url is None else parse_public_url(public_url)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--public-url") from None

    def ready(url: str) -> None:
        say(f"headwater serving streams at {url}{STREAM_ROOT}")

    with failures(f"cannot listen on {host}:{port}"):
        code = serve(None if memory else data_dir, host, port, limits, ready, access, public_url, policy)
    raise typer.Exit(code)
