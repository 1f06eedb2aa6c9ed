"""Computes the changes of an import from the rows of a file and the live rows of a table, without I/O."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec

from headwater import limits
from headwater.errors import InvalidChangeError
from headwater.log.json_framing import UNREADABLE, reason_of
from headwater.protocol.tables.changes import format_changes
from headwater.protocol.tables.escaping import Escape
from headwater.protocol.tables.rows import ADD, DELETE, Action, Row


class Format(StrEnum):
    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"


EXTENSIONS = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".tab": Format.TSV,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
}


class Difference(msgspec.Struct):
    """The changes that make a table equal to a file, with counts by kind."""

    changes: list[tuple[Action, str, str]]
    added: int = 0
    changed: int = 0
    deleted: int = 0
    unchanged: int = 0


DELIMITERS = (",", ";", "\t", "|")  # those that are detected
SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")


def check_delimiter(text: str) -> str:
    """A delimiter from the command line, where a tab may be written as `\\t`; ValueError if it is invalid."""
    delimiter = "\t" if text == "\\t" else text
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ValueError(f"a delimiter is one character, not a quote or the end of a line, got {text!r}")
    return delimiter


def read_rows(
    lines: Iterable[str], form: Format, key_column: str, escaping: Escape, delimiter: str | None = None
) -> dict[str, str]:
    """The records of a file by key. A ValueError names the first line that is invalid.

    Without a delimiter, that of CSV is the one with which the first line has the key column.
    """
    records: dict[str, str] = {}
    lines_of: dict[str, int] = {}
    rows = _json_rows(lines) if form is Format.JSONL else _separated_rows(lines, form, key_column, delimiter)
    for number, row in rows:
        key = _key(row, key_column, number)
        if key in records:
            raise ValueError(f"line {number}: the key {key[:80]!r} is in line {lines_of[key]} as well")
        record = msgspec.json.encode({name: value for name, value in row.items() if name != key_column}).decode()
        try:
            format_changes([(ADD, key, record)], escaping)
        except InvalidChangeError as error:
            raise ValueError(f"line {number}: {error.detail.removeprefix('line 1: ')}") from None
        records[key], lines_of[key] = record, number
    return records


def _separated_rows(
    lines: Iterable[str], form: Format, key_column: str, delimiter: str | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of text with the column names of the first line. A quoted field may contain line ends."""
    csv.field_size_limit(limits.CHANGE_BYTES_MAX)
    rest = iter(lines)
    first = next(rest, "")
    chosen = delimiter or ("\t" if form is Format.TSV else _delimiter_of(first, key_column))
    reader = csv.reader(itertools.chain([first] if first else [], rest), delimiter=chosen, strict=True)
    try:
        columns = next(reader, [])
        if len(set(columns)) < len(columns):
            raise ValueError(f"line 1: a column is named twice: {', '.join(columns)}")
        if key_column not in columns:
            raise ValueError(f"line 1: no column is named {key_column!r}; there are {', '.join(columns) or 'none'}")
        begin = reader.line_num + 1
        for fields in reader:
            if fields:
                if len(fields) != len(columns):
                    raise ValueError(f"line {begin}: {len(fields)} fields, and the first line has {len(columns)}")
                yield begin, dict(zip(columns, fields, strict=True))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None


def _delimiter_of(first: str, key_column: str) -> str:
    for delimiter in DELIMITERS:
        if key_column in next(csv.reader([first], delimiter=delimiter), []):
            return delimiter
    return DELIMITERS[0]


def _json_rows(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    decoder = msgspec.json.Decoder(dict[str, Any], float_hook=_as_written)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield number, decoder.decode(line)
        except UNREADABLE as error:
            raise ValueError(f"line {number}: not a JSON object: {reason_of(error)}") from None


def _as_written(number: str) -> msgspec.Raw:
    """Keep a number as it is written, because a float would lose digits."""
    return msgspec.Raw(number)


def _key(row: Mapping[str, Any], column: str, number: int) -> str:
    key = row.get(column)
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str) or not key:
        raise ValueError(f"line {number}: {column!r} must be a text or an integer that is not empty, got {key!r:.80}")
    return key


def difference(wanted: Mapping[str, str], live: Mapping[str, Row]) -> Difference:
    """Whether two records are equal. Different spellings of the same JSON are equal."""
    delta = Difference(changes=[])
    for key, record in wanted.items():
        row = live.get(key)
        if row is not None and _same(row.record, record):
            delta.unchanged += 1
            continue
        delta.changes.append((ADD, key, record))
        if row is None:
            delta.added += 1
        else:
            delta.changed += 1
    gone = [key for key in live if key not in wanted]
    delta.changes += [(DELETE, key, "") for key in gone]
    delta.deleted = len(gone)
    return delta


_exact = msgspec.json.Decoder(float_hook=Decimal)


def _same(stored: str, wanted: str) -> bool:
    if stored == wanted:
        return True
    try:
        return _equal(_exact.decode(stored), _exact.decode(wanted))
    except UNREADABLE:
        return False


def _equal(one: Any, other: Any) -> bool:
    """Equality as in JSON, where true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
