r"""Escaping of tabs and line ends in keys and records.

By default there are no escapes: a backslash is a backslash, and a tab or newline in a field is refused. A table with
`escape=backslash` in its content type uses four escapes of PostgreSQL's COPY: `\t`, `\n`, `\r` and `\\`. Any other
backslash is an error, so each text has exactly one escaped form, and keys can be compared in escaped form.
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
    """Escape a key or record."""
    return text.translate(_TABLE)


def unescape(text: str) -> str:
    """Unescape a key or record. Raises ValueError for a backslash that is not part of an escape."""
    return _BACKSLASH.sub(_plain, text) if "\\" in text else text


def _plain(match: re.Match[str]) -> str:
    plain = _PLAIN.get(match[0])
    if plain is None:
        raise ValueError(f"{match[0]!r} is not an escape; write a backslash as two")
    return plain


def is_escaped(text: bytes) -> bool:
    """Whether every backslash in a text is part of an escape."""
    if b"\\" not in text:
        return True
    single = text.replace(b"\\\\", b"")
    return single.count(b"\\") == sum(map(single.count, (b"\\t", b"\\n", b"\\r")))
