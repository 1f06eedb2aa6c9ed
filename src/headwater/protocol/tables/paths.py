"""Table names, and the URLs of tables and their NURLs: SURLs and NURLs of this server and of others.

A name has the same syntax as the path of a stream: one or more segments. `/v1/table/{name}` is the SURL of a table,
`/v1/table/{name}/notify` its NURL, and below it are also requests that concern it as a whole. So the last segment of a
name cannot be that of such a URL.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from headwater import limits
from headwater.errors import InvalidPathError
from headwater.protocol.streams.paths import parse_path, quote_path

TABLE_ROOT = "/v1/table/"  # the URL of a table is this and its name
RESERVED = "__stp"  # first segment of the server's own routes
NOTIFY = "notify"  # the last segment of a NURL
TRIM = "trim"  # the last segment of the URL of requests to trim a table
COMPACT = "compact"  # and of those to compact it
_BELOW = {
    NOTIFY: "a NURL",
    TRIM: "the URL for trims",
    COMPACT: "the URL for compaction",
}  # what a last segment makes of a URL

# Prefix of table names in the log. Paths of streams cannot contain control characters, so tables and streams do not
# collide, and tables sort before streams.
LOG_PREFIX = "\x01"
LOG_OWN_LAST = "\x1f"

_CHARACTERS = re.compile(r"(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})*")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


class TableAddress(msgspec.Struct, frozen=True):
    """A URL below the table root: a table, or with the last segment `below` its NURL or the URL of a request to it."""

    name: str
    below: str = ""


def parse_address(raw: str) -> TableAddress:
    """The address in the part of a URL after the table root, which is still percent-encoded."""
    path = parse_path(raw)
    name, slash, last = path.rpartition("/")
    if last not in _BELOW:
        return TableAddress(check_name(path))
    if not slash:
        raise InvalidPathError(
            f"a table cannot be named {last!r}, because {TABLE_ROOT}{{name}}/{last} is {_BELOW[last]}"
        )
    return TableAddress(check_name(name), last)


def check_name(name: str) -> str:
    """Check a decoded table name."""
    first, last = name.partition("/")[0], name.rpartition("/")[2]
    if first == RESERVED:
        raise InvalidPathError(f"the name of a table cannot begin with {RESERVED!r}, which is reserved")
    if last in _BELOW:
        raise InvalidPathError(f"the name of a table cannot end with {last!r}, because that would be {_BELOW[last]}")
    return name


def log_path(name: str) -> str:
    """The path of a table in the log."""
    return LOG_PREFIX + name


def nurls_log_path(path: str) -> str:
    """The path in the log of the table that stores the NURLs of the table at `path`."""
    return f"{path}/{NOTIFY}"


def name_of(path: str) -> str:
    """The name of the table at a path in the log."""
    return path[len(LOG_PREFIX) :]


def surl_path(name: str) -> str:
    return TABLE_ROOT + quote_path(name)


def nurl_path(name: str) -> str:
    return f"{TABLE_ROOT}{quote_path(name)}/{NOTIFY}"


def nurl_reference(name: str) -> str:
    """The NURL of a table relative to its SURL. It stays valid if a proxy rewrites the SURL."""
    return f"./{quote_path(name.rpartition('/')[2])}/{NOTIFY}"


def url_fault(url: str) -> str | None:
    """Describe why a URL is invalid; None if it is an absolute http or https URL that can be stored and shown."""
    if len(url) > limits.URL_LENGTH_MAX:
        return f"it is longer than {limits.URL_LENGTH_MAX} characters"
    if not _CHARACTERS.fullmatch(url):
        return "it contains a character that must be percent-encoded"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "its host is invalid"
    if parts.scheme not in ("http", "https") or not url[len(parts.scheme) :].startswith("://"):
        return "it does not begin with https:// or http://"
    if "#" in url:
        return "it has a fragment"
    return _authority_fault(parts.netloc)


def _authority_fault(authority: str) -> str | None:
    if "@" in authority:
        return "it contains a user name"
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return "it has no valid host"
    if match[1] is not None and not 0 < int(match[1]) <= 65_535:
        return "its port is not from 1 to 65535"
    return None
