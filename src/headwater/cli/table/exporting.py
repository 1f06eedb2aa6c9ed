"""Formats records by key as lines of separated fields, without I/O."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

import msgspec

RECORD = "record"  # the column of records that are not JSON objects

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def format_separated(records: Mapping[str, str], key_column: str, delimiter: str) -> str:
    """A line of column names, and a line for each key. ValueError if the records do not fit into columns."""
    objects = {key: _object(record) for key, record in records.items()}
    other = next((key for key, found in objects.items() if found is None), None)
    if other is not None and any(found is not None for found in objects.values()):
        raise ValueError(f"some records are JSON objects, and that of {other[:80]!r} is not")
    rows = {key: {RECORD: records[key]} if found is None else found for key, found in objects.items()}
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    if key_column in columns:
        raise ValueError(f"the records have a column {key_column!r} as well; name another one for the keys with --key")
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow([key_column, *columns])
    writer.writerows([key, *(row.get(name, "") for name in columns)] for key, row in rows.items())
    return text.getvalue()


def _object(record: str) -> dict[str, str] | None:
    """The fields of a JSON object as text; None if the record is something else."""
    try:
        return {name: _text(value) for name, value in _decoder.decode(record).items()}
    except msgspec.MsgspecError:
        return None


def _text(value: msgspec.Raw) -> str:
    """A text without its quotes, anything else as it is written."""
    decoded: Any = msgspec.json.decode(value) if bytes(value).startswith(b'"') else None
    return decoded if isinstance(decoded, str) else bytes(value).decode()
