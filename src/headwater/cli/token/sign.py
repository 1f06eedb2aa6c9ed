"""`headwater token sign`: make a signed URL, for reads or appends without a token."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import typer

from headwater.cli.output import say
from headwater.cli.token.files import Audit, File, after, audit, file_errors
from headwater.limits import SIGNED_URL_S_MAX
from headwater.protocol.streams.paths import STREAM_ROOT
from headwater.protocol.tables.paths import TABLE_ROOT
from headwater.server.auth.callers import Caller
from headwater.server.auth.rules import parse_token, read_auth_file
from headwater.server.auth.scopes import Action, parse_scopes
from headwater.server.auth.signing import PARAMETER, Signature, parse_secret, sign
from headwater.server.references import stream_path, table_path


def command(
    file: File,
    url: Annotated[str, typer.Argument(help="The URL of a stream or table.", show_default=False)],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The token that signs; it must allow the same.")],
    expires: Annotated[
        str, typer.Option("--expires", metavar="SPAN", help="Time until it expires, at most 7d.")
    ] = "1h",
    append: Annotated[bool, typer.Option("--append", help="The URL is for appends instead of reads.")] = False,
    audit_log: Audit = None,
) -> None:
    """Print a signed URL that lets its holder read one stream or table for a while, for example with EventSource.

    With --append it lets its holder append to it, and not read, close, create or delete it. It becomes invalid when it
    expires, and when the token that signed it expires or is revoked.
    """
    until_s = int(after(expires).timestamp())
    if after(expires) > after("1s") + timedelta(seconds=SIGNED_URL_S_MAX):
        raise typer.BadParameter("a signed URL lasts for 7d at most", param_hint="--expires")
    with file_errors(file):
        value = _signed(file, _log_path(url), name, until_s, Action.APPEND if append else Action.READ)
    audit(audit_log, "sign", urlsplit(url).path)
    parts = urlsplit(url)
    query = f"{parts.query}&{PARAMETER}={value}".removeprefix("&")
    say(urlunsplit(parts._replace(query=query, fragment="")))


def _log_path(url: str) -> str:
    path = urlsplit(url).path
    if STREAM_ROOT in path:
        return stream_path(path, path.partition(STREAM_ROOT)[0])
    if TABLE_ROOT in path:
        return table_path(path, path.partition(TABLE_ROOT)[0])
    raise typer.BadParameter(f"expected …{STREAM_ROOT}PATH or …{TABLE_ROOT}NAME, got {url[:80]!r}", param_hint="URL")


def _signed(file: Path, path: str, name: str, until_s: int, action: Action) -> str:
    auth_file = read_auth_file(file)
    entry = next((token for token in auth_file.token if token.name == name), None)
    if entry is None:
        raise ValueError(f"{file} has no token {name[:80]!r}")
    if auth_file.signing_secret is None:
        raise ValueError(f"{file} has no signing_secret; it is 32 random bytes in base64url")
    token = parse_token(entry)
    Caller(token.name, parse_scopes(token.scopes)).require(action, path)
    return sign(parse_secret(auth_file.signing_secret), path, Signature(until_s, token.id, action))
