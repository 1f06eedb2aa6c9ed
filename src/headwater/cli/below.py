"""Commands over all streams and tables at and below a path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

from headwater.cli.connecting import Server, connected, is_below
from headwater.cli.failing import FAILED, WRONG_CALL, fail
from headwater.cli.output import print_json, say
from headwater.errors import HeadwaterError, NetworkError, StreamGoneError, StreamNotFoundError

if TYPE_CHECKING:
    from headwater.client import Client, Stream, Table


def act_below(
    server: Server,
    prefix: str,
    act: Callable[[Stream | Table], object],
    *,
    done: str,
    question: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Act on each of them. If it fails for some, the exit code is 1.

    `done` says what it did, as `deleted`. `question` has places for the count and the prefix.
    """
    if not prefix:
        raise typer.BadParameter("the prefix is empty; name a path", param_hint="--prefix")
    with connected(server) as client:
        if not yes:
            count = sum(1 for _ in _below(client, prefix))
            _confirm(question.format(count=count, prefix=repr(prefix)), done)
        succeeded = failed = 0
        for name, target in _below(client, prefix):
            try:
                act(target)
                succeeded += 1
            except (StreamNotFoundError, StreamGoneError):
                continue  # deleted or expired meanwhile
            except NetworkError:
                say(f"headwater: {done} {succeeded} below {prefix!r} before the server was lost", err=True)
                raise
            except HeadwaterError as error:
                failed += 1
                say(f"headwater: {name} is not {done}: {error}", err=True)
    if as_json:
        print_json({"prefix": prefix, done: succeeded, "failed": failed})
    else:
        say(f"{done} {succeeded} streams and tables below {prefix!r}" + (f"; {failed} failed" if failed else ""))
    if failed:
        raise typer.Exit(FAILED)


def _below(client: Client, prefix: str) -> Iterator[tuple[str, Stream | Table]]:
    """The streams and tables below a prefix. Pages are read while what they name changes: they go on by path."""
    for stream in client.list(prefix):
        if is_below(stream.path, prefix):
            yield f"stream {stream.path}", client.stream(stream.path)
    for table in client.tables(prefix):
        if is_below(table.name, prefix):
            yield f"table {table.name}", client.table(table.name)


def _confirm(question: str, done: str) -> None:
    if not sys.stdin.isatty():
        fail(f"not {done}: {question}", "Give --yes to answer.", code=WRONG_CALL)
    if not typer.confirm(question, err=True):
        fail(f"nothing was {done}")
