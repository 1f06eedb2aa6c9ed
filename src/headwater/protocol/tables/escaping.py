r"""Escaping: how a key or a record holds tabs and line ends, in tables that opted in.

The row format has no escapes: a backslash is a backslash, and a tab or a newline within a field is refused. A table
with `escape=backslash` in its content type uses four escapes of PostgreSQL's COPY: `\t`, `\n`, `\r` and `\\`. Any
other use of a backslash is an error there, so each text has exactly one escaped form and keys can be compared as they
are on the wire.
"""

from __future__ import annotations

import enum
import re


class Escape(enum.Enum):
    """The value of the content type's `escape` parameter; without the parameter it is NONE."""

    NONE = "none"
    BACKSLASH = "backslash"


_ESCAPED = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_PLAIN = {escaped: plain for plain, escaped in _ESCAPED.items()}
_TABLE = str.maketrans(_ESCAPED)
_BACKSLASH = re.compile(r"\\.?", re.DOTALL)


def escape(text: str) -> str:
    """A key or a record as it is written in a table with `escape=backslash`."""
    return text.translate(_TABLE)


def unescape(text: str) -> str:
    """The key or record that was escaped. Raises ValueError for a backslash that begins no escape."""
    return _BACKSLASH.sub(_plain, text) if "\\" in text else text


def _plain(match: re.Match[str]) -> str:
    plain = _PLAIN.get(match[0])
    if plain is None:
        raise ValueError(f"{match[0]!r} is no escape; write a backslash as two")
    return plain


def is_escaped(text: bytes) -> bool:
    """Whether every backslash in a text begins an escape."""
    if b"\\" not in text:
        return True
    single = text.replace(b"\\\\", b"")
    return single.count(b"\\") == sum(map(single.count, (b"\\t", b"\\n", b"\\r")))
