"""`headwater sql`: ask questions in SQL about streams, states, tables and files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headwater import limits
from headwater.cli.connecting import Server, connected, retrying
from headwater.cli.failing import failures
from headwater.cli.output import say, warnings_said

if TYPE_CHECKING:
    from headwater.client import Report


class ResultFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    ARROW = "arrow"


def command(
    server: Server,
    query: str | None = typer.Argument(
        None, help="The query. Without it: standard input, or a prompt on a terminal.", show_default=False
    ),
    format: ResultFormat = typer.Option(  # noqa: A002
        ResultFormat.TABLE, "--format", "-f", help="json prints a JSON object per line; arrow is Arrow's IPC stream."
    ),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="Write a file, which appears when it is complete.", show_default=False
    ),
    rows: int = typer.Option(
        limits.SQL_TABLE_ROWS, min=0, help="Rows that are printed as a table at most; 0: all of them."
    ),
    follow: bool = typer.Option(False, "--follow", help="Run the query again when data arrives, until SIGINT."),
    patience: float = typer.Option(
        limits.SQL_RETRY_S, min=0, help="Seconds without the server after which a query fails."
    ),
) -> None:
    """Run a query of DuckDB's SQL over streams, states, tables and local files.

    `FROM 'shop/orders'` reads a stream, `'shop/*'` all streams that match, `'prices'` a table, `'x.parquet'` a local
    file. `state('shop/orders', 'order')` has the current entities of a type. With --follow, a table is printed again
    when it has changed, and csv and json continue with the rows that are new.
    """
    with connected(server, on_error=_ends_after(patience)) as client, warnings_said():
        from headwater.client.arrow import require_pyarrow

        require_pyarrow()
        from headwater.cli.sql.following import follow as run_following
        from headwater.cli.sql.output import ResultSink, check_sink
        from headwater.cli.sql.prompt import prompt
        from headwater.sql import SqlSession

        sink = ResultSink(format.value, output, rows)
        with failures(), SqlSession(client) as session:
            if query is None and sys.stdin.isatty() and sys.stdout.isatty() and output is None and not follow:
                prompt(session, client, sink)
                return
            check_sink(sink, is_followed=follow)
            text = sys.stdin.read() if query is None else query
            if follow:
                run_following(session, text, sink)
            else:
                sink.write(session.query(text))


def _ends_after(patience_s: float) -> Callable[[Report], None]:
    """Report retries, and end an operation that has failed for too long."""
    since_s = 0.0

    def report(failure: Report) -> None:
        nonlocal since_s
        now_s = time.monotonic()
        since_s = now_s if failure.attempt == 1 else since_s
        if now_s + failure.delay_s - since_s > patience_s:
            raise failure.error
        say(retrying(failure), err=True)

    return report
