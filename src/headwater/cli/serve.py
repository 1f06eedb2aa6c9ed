"""`headwater serve`: run a server."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import typer

from headwater.limits import parse_limits
from headwater.server.serve import serve
from headwater.store.journal import CorruptJournalError, UnknownFormatError


def command(
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(4437, min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    data_dir: Path = typer.Option(Path("headwater-data"), help="Directory that keeps the streams; made if missing."),
    memory: bool = typer.Option(False, "--memory", help="Keep everything in memory, gone when the server stops."),
    limit: list[str] = typer.Option([], metavar="NAME=VALUE", help="Set a limit, as long_poll_s=20. Repeatable."),
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
        code = serve(
            None if memory else data_dir,
            host,
            port,
            limits,
            lambda url: typer.echo(f"headwater serving streams at {url}/v1/stream/"),
        )
    except (CorruptJournalError, UnknownFormatError, OSError) as error:
        typer.echo(f"headwater: {_reason(error, host, port)}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _reason(error: Exception, host: str, port: int) -> str:
    if isinstance(error, CorruptJournalError):
        return f"{error}\nNothing was changed. `headwater check --help` tells how to look and how to salvage."
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
        return f"cannot listen on {host}:{port}: {os.strerror(error.errno)}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
