"""`headwater token list`: the tokens of an auth file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from headwater.cli.connecting import AsJson
from headwater.cli.output import print_json, print_list
from headwater.cli.token.files import File, file_errors
from headwater.cli.usage import format_limits
from headwater.server.auth.rules import TokenEntry, read_auth_file

COLUMNS = ["name", "scopes", "created", "expires", "expired", "quota"]


def command(file: File, as_json: AsJson = False) -> None:
    """List the tokens of an auth file by name. The file holds only their hashes, not the tokens."""
    with file_errors(file):
        entries = read_auth_file(file).token
    tokens = [_shown(entry) for entry in entries]
    if as_json:
        for token in tokens:
            print_json(token)
    else:
        print_list(
            [
                {**token, "scopes": " ".join(entry.scopes), "quota": format_limits(token["quota"])}
                for token, entry in zip(tokens, entries, strict=True)
            ],
            COLUMNS,
        )


def _shown(entry: TokenEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "scopes": entry.scopes,
        "created": None if entry.created is None else entry.created.isoformat(),
        "expires": None if entry.expires is None else entry.expires.isoformat(),
        "expired": entry.expires is not None and entry.expires <= datetime.now(UTC),
        "quota": {} if entry.quota is None else msgspec.to_builtins(entry.quota),
    }
