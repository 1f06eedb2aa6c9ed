"""Changes: the body of a POST to a table, lines of `action TAB key TAB record`.

The record of a delete may be omitted, with or without its tab, and so may the newline of the last line. A delete may
have a record, for example the reason of the deletion.

A body is checked as a whole, which is several times as fast as checking line by line.
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
    """The valid changes of a body in order."""

    lines: list[bytes]  # `action TAB key TAB record`

    @property
    def actions(self) -> list[bytes]:
        return [line[:1] for line in self.lines]

    @property
    def keys(self) -> list[bytes]:
        return [line.split(b"\t", 2)[1] for line in self.lines]


_ACTIONS = frozenset({b"+", b"-"})
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
_HARMLESS = bytes([byte for byte in range(256) if 32 <= byte != 127])  # not a separator and no control character


# Lines that begin with an action and a key. That each has three fields is known.
_CHANGE = rb"[+-]\t[^\t]{1,%d}+\t[^\n]*+" % limits.KEY_BYTES_MAX
_CHANGES = re.compile(rb"%b(?:\n%b)*+" % (_CHANGE, _CHANGE))

# One change in ASCII, the most frequent append.
_PLAIN = re.compile(rb"[+-]\t[ -~]{1,%d}\t[ -~]*\n?" % limits.KEY_BYTES_MAX)
_PLAIN_BYTES_MAX = 4_096


def is_plain_change(body: bytes) -> bool:
    """Whether a body is one valid change in ASCII. If not, `parse_changes` parses it."""
    return len(body) <= _PLAIN_BYTES_MAX and _PLAIN.fullmatch(body) is not None


def parse_changes(body: bytes, changes_max: int, escaping: Escape = Escape.NONE) -> Changes:
    """Parse a body. The error for an invalid body has the number of its first invalid line."""
    return Changes(check_changes(body, changes_max, escaping).split(b"\n"))


def check_changes(body: bytes, changes_max: int, escaping: Escape = Escape.NONE) -> bytes:
    """Check a body. Returns its changes, separated by newlines, each with all three fields."""
    if not body:
        raise EmptyBodyError("an append needs at least one line of action, key and record, separated by tabs")
    text = body.removesuffix(b"\n")
    count = _valid_count(text, escaping)
    if count and count <= changes_max:
        return text
    lines = text.split(b"\n", changes_max)
    if len(lines) > changes_max:
        count = text.count(b"\n") + 1
        raise TooManyMessagesError(f"an append may have at most {changes_max} changes, this one has {count}")
    lines = [line + b"\t" if line.count(b"\t") == 1 and line[:1] == b"-" else line for line in lines]
    text = b"\n".join(lines)
    if _valid_count(text, escaping):
        return text
    raise _first_fault(lines, escaping)


def count_lines(text: bytes, escaping: Escape) -> int:
    """How many lines a text has, if each has three fields, without a control character or byte that no field may have;
    otherwise 0. All of this is asked of the text as a whole, and of no line."""
    separators = text.translate(None, _HARMLESS)
    count = (len(separators) + 1) // 3
    is_valid = (
        separators == (b"\t\t\n" * count)[:-1] and (escaping is Escape.NONE or is_escaped(text)) and _is_utf8(text)
    )
    return count if is_valid else 0


def _valid_count(text: bytes, escaping: Escape) -> int:
    """How many changes a text has; 0 if a line is not a change."""
    count = count_lines(text, escaping)
    return count if count and _CHANGES.fullmatch(text) is not None and _are_short(text) else 0


def _are_short(text: bytes) -> bool:
    """Whether no line is too long, found in steps of the longest line."""
    start = 0
    while len(text) - start > limits.CHANGE_BYTES_MAX:
        end = text.rfind(b"\n", start, start + limits.CHANGE_BYTES_MAX + 1)
        if end < 0:
            return False
        start = end + 1
    return True


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
        if not _valid_count(b"\n".join(half), escaping):
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
    check_changes(body, len(lines), escaping)
    return body
