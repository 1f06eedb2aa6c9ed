"""`headwater top`: show the activity of a server, live."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from headwater import limits
from headwater.cli import top_board
from headwater.cli.connecting import AsJson, Server
from headwater.cli.failing import described
from headwater.cli.output import say, shown, write
from headwater.errors import HeadwaterError, NetworkError, ProtocolError
from headwater.log.json_framing import UNREADABLE, reason_of

if TYPE_CHECKING:
    import httpx

_OK = 200


def command(
    server: Server,
    by: Annotated[Literal["rate", "size"], typer.Option(help="Order of the streams: by rate or by size.")] = "rate",
    limit: Annotated[int, typer.Option(min=1, max=limits.TOP_MAX, help="Streams to show.")] = limits.TOP_DEFAULT,
    every: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two refreshes.")] = limits.CLI_TOP_S,
    once: Annotated[bool, typer.Option("--once", help="Measure for one second, print the result, and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the activity of a server: requests, commits, live readers, and the busiest or largest streams.

    It shows the streams in the server's memory, that is, those used recently. It runs until Ctrl-C, and continues
    after a restart of the server.
    """
    import httpx

    from headwater.client.session import redacted
    from headwater.client.transport import tls_context

    shown_url = redacted(server.url)
    with httpx.Client(headers=server.all_headers(), timeout=limits.ANSWER_TIMEOUT_S, verify=tls_context()) as http:

        def look() -> bytes:
            return fetch_report(http, f"{server.url.rstrip('/')}/__ds/top", {"by": by, "limit": str(limit)})

        look()  # the first sample, to compare the next one with; it fails at once if the server does not run
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(limits.TOP_LOOK_S)
            if as_json:
                _print_json(look, every, once=once)
            elif once:
                _print_once(shown_url, look)
            else:
                _watch(shown_url, look, every)


def fetch_report(http: httpx.Client, url: str, query: dict[str, str]) -> bytes:
    """Return the response of the server, or raise a HeadwaterError."""
    import httpx

    from headwater.client.answers import error_of
    from headwater.client.effects import HttpReply, HttpRequest

    try:
        reply = http.get(url, params=query)
    except httpx.HTTPError as error:
        raised = NetworkError(str(error) or type(error).__name__)
        raised.url = url
        raise raised from error
    if reply.status_code != _OK:
        request = HttpRequest("GET", url, {})
        headers = {name.lower(): value for name, value in reply.headers.items()}
        raise error_of(request, HttpReply(reply.status_code, headers, reply.content))
    return reply.content


def _parsed(answer: bytes) -> top_board.Look:
    try:
        return msgspec.json.decode(answer, type=top_board.Look)
    except UNREADABLE as error:
        raise ProtocolError(f"the server does not support headwater top: {reason_of(error)}") from None


def _print_json(look: Callable[[], bytes], every: float, *, once: bool) -> None:
    while True:
        write(look() + b"\n")
        if once:
            return
        time.sleep(every)


def _print_once(url: str, look: Callable[[], bytes]) -> None:
    before = _parsed(look())
    time.sleep(limits.TOP_LOOK_S)
    for line in top_board.lines(url, before, _parsed(look()), shutil.get_terminal_size().columns, sys.maxsize):
        say(line)


def _watch(url: str, look: Callable[[], bytes], every: float) -> None:
    console = Console(highlight=False)
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for before, now, trouble in _looks(look, every):
            width, height = console.size
            lines = [] if now is None else top_board.lines(url, before, now, width, height - 1)
            if trouble:
                lines = [shown(trouble)[:width], *lines][: height - 1]
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)


def _looks(
    look: Callable[[], bytes], every: float
) -> Iterator[tuple[top_board.Look | None, top_board.Look | None, str]]:
    """Keeps the last two samples and the last error. Requests to a server that does not respond are retried."""
    before: top_board.Look | None = None
    now: top_board.Look | None = None
    while True:
        trouble = ""
        try:
            before, now = now, _parsed(look())
        except HeadwaterError as error:
            trouble = f"! {described(error)[0]}; trying again"
        yield before, now, trouble
        time.sleep(every)
