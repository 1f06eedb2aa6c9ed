"""Changes: the body of a POST to a table, lines of `action TAB key TAB record`.

The record of a delete may be omitted, with or without its tab, and so may the newline of the last line. A delete may
have a record, for example the reason of the deletion.

A body is checked by columns, which is several times as fast as checking line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from headwater import limits
from headwater.errors import EmptyBodyError, InvalidChangeError, TooManyMessagesError
from headwater.protocol.tables.escaping import Escape, escape, is_escaped
from headwater.protocol.tables.rows import Action


class Changes(msgspec.Struct, frozen=True):
    """The valid changes of a body in order. Each list has one entry per change."""

    lines: list[bytes]  # `action TAB key TAB record`, ready for rows.format_rows
    actions: list[bytes]
    keys: list[bytes]


_ACTIONS = frozenset({b"+", b"-"})
_CONTROLS = bytes([*range(9), *range(11, 32), 127])  # all except tab and newline
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_NO_SEPARATORS = bytes([byte for byte in range(256) if byte not in b"\t\n"])


# One change in ASCII, the most frequent append.
_PLAIN = re.compile(rb"[+-]\t[ -~]{1,%d}\t[ -~]*\n?" % limits.KEY_BYTES_MAX)
_PLAIN_BYTES_MAX = 4_096


def is_plain_change(body: bytes) -> bool:
    """Whether a body is one valid change in ASCII. If not, `parse_changes` parses it."""
    return len(body) <= _PLAIN_BYTES_MAX and _PLAIN.fullmatch(body) is not None


def parse_changes(body: bytes, changes_max: int, escaping: Escape = Escape.NONE) -> Changes:
    """Parse a body. The error for an invalid body has the number of its first invalid line."""
    if not body:
        raise EmptyBodyError("an append needs at least one line of action, key and record, separated by tabs")
    text = body.removesuffix(b"\n")
    count = text.count(b"\n") + 1
    if count > changes_max:
        raise TooManyMessagesError(f"an append may have at most {changes_max} changes, this one has {count}")
    lines = text.split(b"\n")
    if not _has_three_columns(text, count):
        lines = [line + b"\t" if line.count(b"\t") == 1 and line[:1] == b"-" else line for line in lines]
        text = b"\n".join(lines)
    changes = _valid(text, lines, escaping)
    if changes is None:
        raise _first_fault(lines, escaping)
    return changes


def _has_three_columns(text: bytes, count: int) -> bool:
    return text.translate(None, _NO_SEPARATORS) == (b"\t\t\n" * count)[:-1]


def _valid(text: bytes, lines: list[bytes], escaping: Escape) -> Changes | None:
    """The changes in a text, which is also given as lines; None if any line is invalid."""
    if not _has_three_columns(text, len(lines)):
        return None
    columns = text.replace(b"\n", b"\t").split(b"\t")
    actions, keys = columns[0::3], columns[1::3]
    valid = (
        _ACTIONS.issuperset(actions)
        and all(keys)
        and len(text.translate(None, _CONTROLS)) == len(text)
        and (len(text) <= limits.KEY_BYTES_MAX or max(map(len, keys)) <= limits.KEY_BYTES_MAX)
        and (len(text) <= limits.CHANGE_BYTES_MAX or max(map(len, lines)) <= limits.CHANGE_BYTES_MAX)
        and (escaping is Escape.NONE or is_escaped(text))
        and _is_utf8(text)
    )
    return Changes(lines, actions, keys) if valid else None


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _first_fault(lines: list[bytes], escaping: Escape) -> InvalidChangeError:
    """The error for the first invalid line, found by binary search."""
    first, end = 0, len(lines)  # lines before `first` are valid; a line before `end` is invalid
    while end - first > 1:
        middle = (first + end) // 2
        half = lines[first:middle]
        if _valid(b"\n".join(half), half, escaping) is None:
            end = middle
        else:
            first = middle
    return InvalidChangeError(f"line {end}: {_fault(lines[first])}", line=end)


def _fault(line: bytes) -> str:
    """Describe the error of an invalid line, and its correction."""
    action, *rest = line.split(b"\t")
    key = rest[0] if rest else b""
    if not line:
        return "the line is empty; remove it"
    if action not in _ACTIONS:
        return f"a change begins with + or - and a tab, got {_shown(line)}"
    if not key:
        return "the key is empty; write it after the action and a tab"
    if len(rest) == 1:
        return "the record is missing; write it after the key and a tab (it may be empty)"
    if len(rest) > 2 and rest[1].endswith((b"+", b"-")):
        return "there are two changes; end each with a newline (curl -d removes newlines, --data-binary does not)"
    if len(rest) > 2:
        return "there is a tab in the key or record; replace it, or escape it in a table with escape=backslash"
    if len(key) > limits.KEY_BYTES_MAX:
        return f"the key is longer than {limits.KEY_BYTES_MAX} bytes; shorten it"
    return _fault_of_text(line)


def _fault_of_text(line: bytes) -> str:
    if len(line) > limits.CHANGE_BYTES_MAX:
        return f"the change is longer than {limits.CHANGE_BYTES_MAX} bytes; shorten its record"
    control = _CONTROL.search(line)
    if control is not None and control[0] == b"\r":
        return "there is a carriage return; end lines with a line feed alone"
    if control is not None:
        return f"there is the control character {control[0]!r}; remove it"
    if not _is_utf8(line):
        return "the line is not UTF-8; encode it as UTF-8"
    return r"there is a backslash that is not part of an escape; write \\ for a backslash, or \t, \n or \r"


def _shown(line: bytes) -> str:
    return repr(line[:20].decode(errors="replace"))


def format_changes(changes: Iterable[tuple[Action, str, str]], escaping: Escape = Escape.NONE) -> bytes:
    """Format changes (action, key, record) as the body of an append. They are checked as by the server.

    Newlines in fields are refused before the lines are joined: the text after a newline could look like a change.
    """
    lines = []
    for number, (action, key, record) in enumerate(changes, 1):
        if escaping is Escape.BACKSLASH:
            key, record = escape(key), escape(record)
        line = f"{action}\t{key}\t{record}"
        if "\n" in line:
            fault = "there is a newline in the key or record; remove it, or create the table with escape=backslash"
            raise InvalidChangeError(f"line {number}: {fault}", line=number)
        lines.append(line + "\n")
    body = "".join(lines).encode(errors="surrogatepass")  # surrogates are refused below as invalid UTF-8
    parse_changes(body, len(lines), escaping)
    return body
