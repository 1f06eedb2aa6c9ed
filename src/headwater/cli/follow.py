"""`headwater follow`: print the rows of any SURL as they arrive, or mirror them into a table."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from headwater.cli.connecting import (
    DEFAULT_URL,
    AsJson,
    Auth,
    Header,
    Server,
    Url,
    complete_name,
    connected,
    is_given,
    server_named,
)
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.mirror_status import MirrorStatus
from headwater.cli.output import say, shown
from headwater.cli.printing import print_rows
from headwater.cli.restarting import Restart, on_gone_of
from headwater.protocol.tables.paths import url_fault

if TYPE_CHECKING:
    from headwater.client import TableReader


def command(
    context: typer.Context,
    surl: str = typer.Argument(help="The State URL of a table, on any server.", metavar="SURL"),
    into: str | None = typer.Option(
        None, metavar="TABLE", help="Mirror the rows into a table of --url.", autocompletion=complete_name
    ),
    since_id: int | None = typer.Option(
        None,
        help="Start after this SeqNo. If negative: start with that many of the last rows. Default: 0.",
        show_default=False,
    ),
    token: str | None = typer.Option(
        None, "--token", help="Sent to the SURL's server as a bearer token.", show_default=False
    ),
    auth: Auth = None,
    header: Header = None,
    url: Url = DEFAULT_URL,
    into_token: str | None = typer.Option(
        None, "--into-token", envvar="HEADWATER_TOKEN", help="Sent to --url as a bearer token.", show_default=False
    ),
    into_auth: str | None = typer.Option(
        None, metavar="'SCHEME CREDENTIALS'", help="Sent to --url as Authorization.", show_default=False
    ),
    into_header: list[str] | None = typer.Option(
        None, metavar="'NAME: VALUE'", help="Sent to --url with every request. Repeatable.", show_default=False
    ),
    restart: Restart = False,
    as_json: AsJson = False,
) -> None:
    """Print the rows of a table as they arrive, each once and in order, until it is closed or Ctrl-C.

    With --into the rows are mirrored instead, with their SeqNos and timestamps. The mirror is created if it does not
    exist, and its last row is the position: if you start the command again, it continues there. A status line
    shows rows, rate and lag.

    Lost connections are retried. The command fails if a row is missing or out of order, if the numbering restarts,
    or if the schema changes.
    """
    _check(surl)
    # HEADWATER_TOKEN belongs to the server of --url. The SURL's server only gets credentials given for it.
    source = server_named(surl, token, auth, header).of(surl)
    if into is None:
        _print(surl, since_id or 0, source, restart=restart, as_json=as_json)
    elif since_id is None:
        is_token_given = is_given(context, "into_token")
        target = server_named(url, into_token, into_auth, into_header, is_token_given=is_token_given)
        _mirror(surl, source, into, target, as_json=as_json)
    else:
        fail("a mirror continues after its last row", "Leave --since-id or --into out.", code=WRONG_CALL)


def _check(surl: str) -> None:
    from headwater.client.session import redacted

    if fault := url_fault(redacted(surl)):
        way_out = "A SURL is the full URL of a table, such as http://127.0.0.1:4437/v1/table/prices."
        fail(f"not a SURL, {fault}: {surl.rpartition('@')[2]}", way_out, code=WRONG_CALL)


def _mirror(surl: str, origin: Server, into: str, target: Server, *, as_json: bool) -> None:
    status = MirrorStatus(into, as_json=as_json)
    with (
        connected(target, on_error=status.retrying) as client,
        connected(origin, on_error=status.retrying) as source,
        status,
    ):
        try:
            for progress in client.table(into).mirror(source.table(surl)):
                status.stored(progress)
        except KeyboardInterrupt:
            if status.last_seqno is not None:
                say(f"stopped after row {status.last_seqno}; the same command continues there", err=True)
            raise
        status.closed()


def _print(surl: str, since_id: int, server: Server, *, restart: bool, as_json: bool) -> None:
    with connected(server) as client:
        table = client.table(surl)
        reader = table.follow(since_id=since_id, on_gone=on_gone_of(restart))
        try:
            with _status(table.url, reader) as around:
                for rows in reader.batches():
                    with around():
                        print_rows(rows, reader.table_type, as_json=as_json)
        except KeyboardInterrupt:
            reader.close()
            if reader.seqno is not None:
                say(f"stopped after row {reader.seqno}; continue with --since-id {reader.seqno}", err=True)
            raise


@contextlib.contextmanager
def _status(surl: str, reader: TableReader) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """A status line on standard error, if that is a terminal. It is cleared before each batch of rows."""
    if not sys.stderr.isatty():
        yield contextlib.nullcontext
        return
    status = Console(stderr=True).status(Text(shown(f"connecting to {surl}")))

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        status.stop()
        yield
        status.update(Text(shown(_position(surl, reader))))
        status.start()

    with status:
        yield around


def _position(surl: str, reader: TableReader) -> str:
    seqno, last_seqno = reader.seqno or 0, reader.last_seqno
    if last_seqno is None:
        return f"{surl}: row {seqno:,}"
    if seqno < last_seqno:
        return f"{surl}: row {seqno:,} of {last_seqno:,}"
    return f"{surl}: row {seqno:,}, up to date"
