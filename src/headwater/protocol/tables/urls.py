"""The syntax of SURLs and NURLs. The guarded client decides which of them the server may call."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from headwater import limits

_CHARACTERS = re.compile(r"(?:[A-Za-z0-9._~:/?#@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})*")
_AUTHORITY = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")


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
