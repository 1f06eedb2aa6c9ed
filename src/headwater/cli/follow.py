"""`headwater follow`: print the rows of any SURL as they come."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer
from rich.console import Console

from headwater.cli.connecting import AsJson, connected
from headwater.cli.failing import WRONG_CALL, fail
from headwater.cli.table.printing import print_rows
from headwater.protocol.tables.urls import url_fault

if TYPE_CHECKING:
    from headwater.client import TableReader


def command(
    surl: str = typer.Argument(help="The State URL of a table, on any server.", metavar="SURL"),
    since_id: int = typer.Option(0, help="Begin after this SeqNo; if it is negative, with that many of the last rows."),
    token: str | None = typer.Option(
        None, "--token", help="Sent to the SURL's server as a bearer token.", show_default=False
    ),
    as_json: AsJson = False,
) -> None:
    """Print the rows of a table as they come, each once and in order, until it is closed or Ctrl-C.

    Lost connections are made again. A table that breaks its promises ends the command: a row is missing or out of
    order, the numbering begins anew, the schema changes. On a terminal a status line shows the position.
    """
    if fault := url_fault(surl):
        fail(f"not a SURL, {fault}: {surl}", WRONG_CALL)
    parts = urlsplit(surl)
    # HEADWATER_TOKEN is for another server: only a token that is given here is sent.
    with connected(f"{parts.scheme}://{parts.netloc}", token) as client:
        reader = client.table(surl).follow(since_id=since_id)
        try:
            with _status(surl, reader) as around:
                for rows in reader.batches():
                    with around():
                        print_rows(rows, reader.table_type, as_json=as_json)
        except KeyboardInterrupt:
            reader.close()
            if reader.seqno is not None:
                typer.echo(f"stopped after row {reader.seqno}; go on with --since-id {reader.seqno}", err=True)
            raise


@contextlib.contextmanager
def _status(surl: str, reader: TableReader) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """A status line on standard error, if that is a terminal. It makes room for each batch of rows."""
    if not sys.stderr.isatty():
        yield contextlib.nullcontext
        return
    status = Console(stderr=True).status(f"connecting to {surl}")

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        status.stop()
        yield
        status.update(_position(surl, reader))
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
