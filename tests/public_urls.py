"""A server in development mode that names a public URL: `headwater serve` refuses this combination."""

from __future__ import annotations

import contextlib
import sys

from bench.servers import Server, running

_PROGRAM = "from headwater import cli; from headwater.server.settings import Settings as S; S.told_url = lambda _: {!r}"


def program(public_url: str) -> list[str]:
    """The arguments of Python that run the command."""
    return ["-c", f"{_PROGRAM.format(public_url)}; cli.main()"]


def headwater_at(public_url: str, *options: str) -> contextlib.AbstractContextManager[Server]:
    return running("headwater", [sys.executable, *program(public_url), "serve", "--port", "0", *options])
