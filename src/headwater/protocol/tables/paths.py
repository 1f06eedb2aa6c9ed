"""Table names: where tables and their NURLs are on a server.

A name is made as the path of a stream is, of one or more segments. `/v1/table/{name}` is the table's SURL and
`/v1/table/{name}/notify` its NURL, so the last segment of a name is never `notify`.
"""

from __future__ import annotations

import msgspec

from headwater.errors import InvalidPathError
from headwater.protocol.streams.paths import parse_path, quote_path

TABLE_ROOT = "/v1/table/"  # what precedes the name of a table in its URL
RESERVED = "__stp"  # the first segment of the server's own routes below the root
NOTIFY = "notify"  # the last segment of a NURL

# What precedes the name of a table in the log. No path of a stream holds a control character, so tables and streams
# never meet, and all that is the server's own sorts before the first stream.
LOG_PREFIX = "\x01"
LOG_OWN_LAST = "\x1f"


class TableAddress(msgspec.Struct, frozen=True):
    """What a URL below the root names: a table, or the NURL of one."""

    name: str
    notify: bool = False


def parse_address(raw: str) -> TableAddress:
    """The address in the part of a URL after the table root, percent-encoded as it arrived."""
    path = parse_path(raw)
    name, slash, last = path.rpartition("/")
    if last != NOTIFY:
        return TableAddress(check_name(path))
    if not slash:
        raise InvalidPathError(f"{NOTIFY!r} cannot be the name of a table: {TABLE_ROOT}{{name}}/{NOTIFY} is a NURL")
    return TableAddress(check_name(name), notify=True)


def check_name(name: str) -> str:
    """A decoded name that a table may have."""
    first, last = name.partition("/")[0], name.rpartition("/")[2]
    if first == RESERVED:
        raise InvalidPathError(f"names of tables cannot begin with {RESERVED!r}; it is the server's own")
    if last == NOTIFY:
        raise InvalidPathError(
            f"the name of a table cannot end with {NOTIFY!r}; that is the NURL of the table before it"
        )
    return name


def log_path(name: str) -> str:
    """The path of a table in the log."""
    return LOG_PREFIX + name


def nurls_log_path(path: str) -> str:
    """The path in the log of the NURLs of a table, which are a table too; `path` is that of the table."""
    return f"{path}/{NOTIFY}"


def name_of(path: str) -> str:
    """The name of the table at a path in the log."""
    return path[len(LOG_PREFIX) :]


def surl_path(name: str) -> str:
    return TABLE_ROOT + quote_path(name)


def nurl_path(name: str) -> str:
    return f"{TABLE_ROOT}{quote_path(name)}/{NOTIFY}"


def nurl_reference(name: str) -> str:
    """The NURL of a table relative to its SURL, which may have been rewritten on the way, as by a proxy."""
    return f"./{quote_path(name.rpartition('/')[2])}/{NOTIFY}"
