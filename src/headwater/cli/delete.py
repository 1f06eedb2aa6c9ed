"""`headwater delete`: delete a stream, or everything below a prefix of paths."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from headwater.cli.connecting import AsJson, Server, complete_path, connected, is_below
from headwater.cli.failing import FAILED, WRONG_CALL, fail
from headwater.cli.output import print_json, say
from headwater.errors import HeadwaterError, NetworkError, StreamGoneError, StreamNotFoundError

if TYPE_CHECKING:
    from headwater.client import Client


def command(
    server: Server,
    path: Annotated[
        str, typer.Argument(help="The stream's path, or its whole URL.", autocompletion=complete_path)
    ] = "",
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix", metavar="PATH", help="Delete all streams and tables at and below this path.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --prefix deletes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a stream and its data permanently. Forks keep the data that they inherited.

    With --prefix, delete all streams and tables at and below a path. If some cannot be deleted, the others are, and the
    exit code is 1. Run the command again to continue after an interruption.
    """
    if (prefix is None) == (not path):
        raise typer.BadParameter("give the path of a stream, or --prefix", param_hint="PATH")
    if prefix is not None:
        _delete_below(server, prefix.strip("/"), yes=yes, as_json=as_json)
        return
    with connected(server, path) as client:
        stream = client.stream(path)
        stream.delete()
    if as_json:
        print_json({"url": stream.url, "deleted": True})
    else:
        say(f"deleted {stream.url}")


class _Deletable(Protocol):
    def delete(self) -> None: ...


def _delete_below(server: Server, prefix: str, *, yes: bool, as_json: bool) -> None:
    if not prefix:
        raise typer.BadParameter("the prefix is empty; name a path", param_hint="--prefix")
    with connected(server) as client:
        if not yes:
            _confirm(sum(1 for _ in _below(client, prefix)), prefix)
        deleted = failed = 0
        for name, target in _below(client, prefix):
            try:
                target.delete()
                deleted += 1
            except (StreamNotFoundError, StreamGoneError):
                continue  # deleted or expired meanwhile
            except NetworkError:
                say(f"headwater: deleted {deleted} below {prefix!r} before the server was lost", err=True)
                raise
            except HeadwaterError as error:
                failed += 1
                say(f"headwater: {name} is not deleted: {error}", err=True)
    if as_json:
        print_json({"prefix": prefix, "deleted": deleted, "failed": failed})
    else:
        say(f"deleted {deleted} streams and tables below {prefix!r}" + (f"; {failed} failed" if failed else ""))
    if failed:
        raise typer.Exit(FAILED)


def _below(client: Client, prefix: str) -> Iterator[tuple[str, _Deletable]]:
    """The streams and tables below a prefix. Pages are read while what they name is deleted: they go on by path."""
    for stream in client.list(prefix):
        if is_below(stream.path, prefix):
            yield f"stream {stream.path}", client.stream(stream.path)
    for table in client.tables(prefix):
        if is_below(table.name, prefix):
            yield f"table {table.name}", client.table(table.name)


def _confirm(count: int, prefix: str) -> None:
    question = f"Delete {count} streams and tables at and below {prefix!r} permanently?"
    if not sys.stdin.isatty():
        fail(f"not deleted: {question}", "Give --yes to answer.", code=WRONG_CALL)
    if not typer.confirm(question, err=True):
        fail("nothing was deleted")
