"""The options of every command that talks to a server, and the client they make.

The client is imported where it is used: it takes a tenth of a second that `headwater serve` need not spend.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from headwater import limits
from headwater.cli.failing import failures
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.client import Client, Report

DEFAULT_URL = "http://127.0.0.1:4437"


def complete_path(context: typer.Context, incomplete: str) -> list[str]:
    """Paths of streams that begin like that, for the shell; none if the server does not answer at once."""
    most = limits.CLI_COMPLETE_PATHS_MAX
    try:
        with quick_client(context) as client:
            return [info.path for info in itertools.islice(client.list(incomplete, page_size=most), most)]
    except (HeadwaterError, ValueError):
        return []


def quick_client(context: typer.Context) -> Client:
    """A client for completion in the shell, which gives up after a second."""
    from headwater.client import Client, Retry, Timeouts

    url, token = context.params.get("url") or DEFAULT_URL, context.params.get("token")
    quick = Timeouts(connect_s=limits.CLI_COMPLETE_CONNECT_S, answer_s=limits.CLI_COMPLETE_ANSWER_S)
    return Client(url, token=token, retry=Retry(attempts=1), timeouts=quick)


Url: TypeAlias = Annotated[
    str, typer.Option("--url", envvar="HEADWATER_URL", help="The server, or the root of its streams.")
]
Token: TypeAlias = Annotated[
    str | None, typer.Option("--token", envvar="HEADWATER_TOKEN", help="Sent as a bearer token.", show_default=False)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Path: TypeAlias = Annotated[
    str, typer.Argument(help="The stream's path, or its whole URL.", autocompletion=complete_path)
]


def _report_retry(report: Report) -> None:
    typer.echo(f"headwater: {report.error}; trying again in {report.delay_s:.1f} s", err=True)


@contextlib.contextmanager
def connected(url: str, token: str | None, on_error: Callable[[Report], None] = _report_retry) -> Iterator[Client]:
    """A client whose retries are told, on standard error if nobody else does it, and whose errors end the command."""
    from headwater.client import Client

    try:
        client = Client(url, token=token, on_error=on_error)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None
    with failures(), client:
        yield client
